"""Which layers a model has, and how they are declared (models/README.md, "Declared models"). Pure.

A layer is a module that owns parameters: the unit that is sent, waited for and planned. A parameter of the root module
is a layer of its own, whose tensor has no name. A parameter that several modules share belongs to the first of them.
Frozen parameters are in no layer.

Called by: distribute.py. Calls: torch's modules, whose structure it reads.
"""

import collections
import dataclasses
import re

import torch

from poseidon.errors import Invalid

NAME = re.compile(r"[A-Za-z0-9_\-./]{1,128}")


@dataclasses.dataclass
class Layer:
    """One layer: tensors are (name within the layer, parameter) in the order of registration."""

    name: str
    module: torch.nn.Module
    tensors: list
    is_linear: bool = False

    def full_names(self):
        return [f"{self.name}.{name}" if name else self.name for name, _ in self.tensors]


def find_layers(model, trained):
    """The layers of `model`, in the order of registration. trained: the ids of the parameters that the optimizer steps."""
    layers, taken = [], set()
    owners = collections.Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
    for path, module in model.named_modules():
        own = []
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) in trained and id(parameter) not in taken:
                taken.add(id(parameter))
                own.append((name, parameter))
        if path:
            layers += [Layer(path, module, own, is_linear(module, own, owners))] if own else []
        else:
            layers += [Layer(name, module, [("", parameter)]) for name, parameter in own]
    for layer in layers:
        check(layer)
    return layers


def is_linear(module, own, owners):
    """Whether the gradient of the first tensor may travel as factors: not that of a weight which other modules share."""
    return isinstance(module, torch.nn.Linear) and own[:1] != [] and own[0][0] == "weight" and owners[id(own[0][1])] == 1


def check(layer):
    for full_name, (_, parameter) in zip(layer.full_names(), layer.tensors):
        if not NAME.fullmatch(full_name):
            raise Invalid(f"parameter {full_name!r}: a name has 1 to 128 letters, digits, '_', '-', '.' and '/'; rename its module")
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise Invalid(f"parameter {full_name} is {parameter.dtype}; float32, float16 and bfloat16 can be trained")
        if parameter.numel() == 0:
            raise Invalid(f"parameter {full_name} has no elements (shape {tuple(parameter.shape)}); freeze it with requires_grad_(False)")


def in_order(layers, called):
    """The layers whose modules are in `called` in that order, each other one behind the layer it was registered after."""
    place = {id(module): i for i, module in reversed(list(enumerate(called)))}
    keys, last = [], -1
    for i, layer in enumerate(layers):
        last = place.get(id(layer.module), last)
        keys.append((last, i))
    return [layers[i] for _, i in sorted(keys)]


def find_state(model):
    """[(name, buffer)]: the floating buffers that state_dict() has, such as running statistics. Each buffer once."""
    saved, seen, state = model.state_dict(keep_vars=True), set(), []
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point() and buffer.numel() > 0 and id(buffer) not in seen:
            seen.add(id(buffer))
            state.append((name, buffer))
    return state


def declare(name, layers, state):
    """The declared model, as in a job file. state: [(name, shape)]."""
    declared = []
    for layer in layers:
        entry = {"name": layer.name,
                 "tensors": [({"name": tensor} if tensor else {}) | {"shape": list(parameter.shape)} for tensor, parameter in layer.tensors]}
        if layer.is_linear:
            entry |= {"type": "linear", "multiply_adds": layer.tensors[0][1].numel()}
        declared.append(entry)
    model = {"name": name, "declared": declared}
    if state:
        model["state"] = [{"name": tensor, "shape": list(shape)} for tensor, shape in state]
    return model


def observed_order(model, example):
    """The modules in the order in which a forward pass of `example` (a tuple of arguments) calls them.

    Buffers and random states are put back, so that the pass leaves nothing behind.
    """
    called, handles = [], []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(lambda module, _: called.append(module)))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            model(*example)
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return called
