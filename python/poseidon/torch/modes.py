"""What a step does: on the servers, by the user's optimizer layer by layer, or by the user's optimizer at once.

Each mode has place(slot) after joining, land(layer) when what the last step made of a layer is there, step(closure), and
clip(max_norm). Called by: session.py. Calls: session.py's end_iteration and wait_all, optimizers.py.
"""

import collections
import math

import torch

from poseidon.errors import Invalid
from poseidon.torch import optimizers


class ServerMode:
    """The servers keep parameters and the optimizer's state."""

    sums = False

    def __init__(self, session, optimizer):
        self.session, self.optimizer = session, optimizer

    def place(self, slot):
        slot.place_parameter()

    def land(self, layer):
        for slot in layer.copied:
            slot.copy_parameter()

    def step(self, closure):
        loss = _called(closure)
        self.session.end_iteration(optimizers.rates_of(self.optimizer))
        return loss

    def clip(self, max_norm, norm_type):
        declared = self.session.clip_norm
        if norm_type != 2 or max_norm != declared:
            raise Invalid(f"clip_grad_norm_ with max_norm {max_norm} and norm_type {norm_type}, but the servers clip by "
                          f"{declared or 'nothing'}: say distribute(..., clip_norm={max_norm}), or step=\"layer\"")
        return torch.tensor(math.nan)


class SumMode:
    """Servers sum; the user's optimizer steps all parameters when all sums are there. Closures may be called many times."""

    sums = True

    def __init__(self, session, optimizer):
        self.session, self.optimizer = session, optimizer
        self.summed = False  # this iteration's sums are the gradients, before its step

    def place(self, slot):
        slot.copy_parameter()

    def land(self, layer):
        for slot in layer.slots:
            slot.parameter.grad = slot.as_gradient()

    def step(self, closure):
        if closure is None:
            self.sum()
        result = self.session.original_step(self.closure_over_all(closure))
        self.end()
        return result

    def closure_over_all(self, closure):
        if closure is None:
            return None

        def over_all():
            self.summed = False
            loss = _called(closure)
            self.sum(loss)
            mean = self.session.mean_loss()
            return loss if mean is None else loss.new_tensor(mean)
        return over_all

    def sum(self, loss=None):
        if not self.summed:
            if loss is not None:
                self.session.report(loss)
            self.session.end_iteration(())
            self.session.wait_all()
            self.summed = True

    def end(self):
        self.summed = False
        for slot in self.session.slots:
            slot.parameter.grad = None

    def clip(self, max_norm, norm_type):
        self.sum()
        return torch.nn.utils.clip_grad_norm_([slot.parameter for slot in self.session.slots], max_norm, norm_type)


class LayerMode(SumMode):
    """As SumMode, but each layer is stepped when its next forward pass, or anybody else, waits for it.

    One instance of the user's optimizer class steps one parameter. It remembers in the user's instance, and has the options
    (such as the learning rate) that the parameter group had at the step.
    """

    def __init__(self, session, optimizer):
        super().__init__(session, optimizer)
        self.options = None  # per parameter group, of the step that is landing; None: nothing is stepped when it lands
        self.single = {id(slot.parameter): _for_one(optimizer, slot) for slot in session.slots}

    def land(self, layer):
        if self.options is None:
            return super().land(layer)
        for slot in layer.slots:
            kept = slot.parameter.grad
            slot.parameter.grad = slot.as_gradient()
            self.step_one(slot)
            slot.parameter.grad = kept

    def step_one(self, slot):
        single = self.single[id(slot.parameter)]
        single.state = self.optimizer.state  # load_state_dict() makes another
        single.param_groups[0].update(self.options[slot.group])
        self.session.original_class.step(single)

    def step(self, closure):
        loss = _called(closure)
        if not self.summed:
            self.session.end_iteration(())
        self.options = [_options(group) for group in self.optimizer.param_groups]
        if self.summed:
            for slot in self.session.slots:
                self.step_one(slot)
            self.end()
        return loss

    def sum(self, loss=None):
        self.session.wait_all()
        self.options = None
        super().sum(loss)


MODES = {"server": ServerMode, "layer": LayerMode, "worker": SumMode}


def _called(closure):
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _options(group):
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items() if key != "params"}


def _for_one(optimizer, slot):
    """An instance of the optimizer's class for one parameter, without its constructor, whose arguments only the user knows."""
    single = object.__new__(type(optimizer))
    single.__dict__.update(optimizer.__dict__)
    single.__dict__.pop("step", None)
    single.param_groups = [{**optimizer.param_groups[slot.group], "params": [slot.parameter]}]
    single._optimizer_step_pre_hooks = collections.OrderedDict()
    single._optimizer_step_post_hooks = collections.OrderedDict()
    return single
