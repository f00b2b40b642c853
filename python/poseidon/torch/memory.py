"""Parameters and gradients in the memory that messages are sent from.

Float32 tensors of the CPU are views of that memory, so nothing is copied between torch and the wire but a gradient that
autograd has allocated (after zero_grad, once per step). Other tensors are copied, and have their float32 master there.

Called by: session.py, modes.py. Calls: torch.
"""

import torch

from poseidon.errors import Invalid


class Slot:
    """One parameter and its two places: `value` (parameters, or sums of gradients) and `gradient`."""

    __slots__ = ("name", "parameter", "group", "value", "gradient", "in_place", "placed", "ready", "version")

    def __init__(self, name, parameter, group, value, gradient):
        self.name, self.parameter, self.group = name, parameter, group
        self.value = value.view(parameter.shape)
        self.gradient = gradient.view(parameter.shape).data  # with a counter of changes of its own
        self.in_place = parameter.device.type == "cpu" and parameter.dtype == torch.float32
        self.placed = False  # the parameter is a view of `value`
        self.ready = False   # this iteration's gradient is complete ...
        self.version = 0     # ... as torch counts the changes of parameter.grad

    def take_gradient(self):
        """What autograd left in parameter.grad is in the memory afterwards."""
        grad = self.parameter.grad
        if grad is self.gradient:
            self.version = grad._version
            return
        if grad.requires_grad:  # backward(create_graph=True)
            grad = grad.detach()
        self.gradient.copy_(grad.to_dense() if grad.is_sparse else grad)
        if self.in_place:
            self.parameter.grad = self.gradient
        self.version = self.parameter.grad._version

    def as_gradient(self):
        """`value`, a sum, as a gradient of the parameter."""
        return self.value if self.in_place else self.value.to(self.parameter.device, self.parameter.dtype)

    def place_parameter(self):
        """The parameter is `value` from now on, or a copy of it."""
        if self.in_place:
            self.parameter.data, self.placed = self.value, True
        else:
            self.copy_parameter()

    def copy_parameter(self):
        self.parameter.detach().copy_(self.value)

    def check_placed(self):
        if self.placed and self.parameter.data_ptr() != self.value.data_ptr():
            raise Invalid(f"parameter {self.name} has been moved or replaced (by .to(), .half() or an assignment to .data) after "
                          "distribute(): do that before")


class LayerMemory:
    """One layer while training: its slots, and where its gradient and parameters are on their way."""

    __slots__ = ("index", "name", "module", "slots", "copied", "missing", "reported", "landing")

    def __init__(self, index, name, module, slots):
        self.index, self.name, self.module, self.slots = index, name, module, slots
        self.copied = [slot for slot in slots if not slot.in_place]
        self.missing = len(slots)  # slots that are not ready
        self.reported = False      # this iteration's gradient is on its way
        self.landing = False       # what the last step made of it has not been waited for

    def begin_iteration(self):
        self.missing, self.reported, self.landing = len(self.slots), False, True
        for slot in self.slots:
            slot.ready = False
            slot.parameter.grad = None


def place(backend, index, layer, group_of):
    """The LayerMemory of a layer (layers.py) in the memory of a backend."""
    values, gradients = backend.layer(index)
    slots, begin = [], 0
    for name, (_, parameter) in zip(layer.full_names(), layer.tensors):
        end = begin + parameter.numel()
        slots.append(Slot(name, parameter, group_of[name], values[begin:end], gradients[begin:end]))
        begin = end
    return LayerMemory(index, layer.name, layer.module, slots)


class State:
    """Buffers of the model, then registered objects, in the memory of the declared state."""

    def __init__(self, memory, buffers, capacity):
        self.buffers, self.views, begin = buffers, [], 0
        for buffer in buffers:
            self.views.append(memory[begin:begin + buffer.numel()].view(buffer.shape))
            begin += buffer.numel()
        self.objects = memory[begin:begin + capacity] if capacity else None

    def store(self):
        for view, buffer in zip(self.views, self.buffers):
            view.copy_(buffer)

    def load(self):
        for view, buffer in zip(self.views, self.buffers):
            buffer.copy_(view)
