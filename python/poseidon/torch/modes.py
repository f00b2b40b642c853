"""What a step does: on the servers, by the user's optimizer layer by layer, or by the user's optimizer at once.

Each mode has place(slot) after joining, land(layer) when what the last step made of a layer is there, before_gradients() and
after_gradients() of an iteration, step(closure), clip(max_norm), and before_finish(). Called by: session.py. Calls: session.py's end_iteration, give_rates and wait_all, optimizers.py.
"""

import collections

import torch

from poseidon.errors import Invalid
from poseidon.torch import optimizers


class ServerMode:
    """The servers keep parameters and the optimizer's state.

    They step a layer as soon as its gradients are there where they know the rates by then. A script that clips has its rates
    behind all gradients. Which of the two a script is shows in the first iteration, unless it says so (clips).
    """

    sums = False
    clips = None  # None: not known yet

    def __init__(self, session, optimizer):
        self.session, self.optimizer = session, optimizer
        self.rates = ()            # as this iteration's first gradient was sent
        self.gradient_scale = 1.0  # by clipping in this iteration
        self.clipped = False       # in this iteration

    def before_gradients(self):
        self.rates = optimizers.rates_of(self.optimizer)
        self.gradient_scale, self.clipped = 1.0, False
        if self.clips is False:
            self.session.give_rates(self.rates, 1.0)

    def after_gradients(self):
        rates = optimizers.rates_of(self.optimizer)
        if self.clips is False:
            if rates != self.rates:
                raise Invalid(f"the rates (learning rate, weight decay) were {self.rates} when backward() began and are {rates} at step(), but "
                              "the servers have stepped already: change them behind step(), or say distribute(..., clips=True)")
        else:
            self.session.give_rates(rates, self.gradient_scale)
            if self.clips is None:
                self.clips = self.clipped or rates != self.rates

    def place(self, slot):
        slot.place_parameter()

    def land(self, layer):
        for slot in layer.copied:
            slot.copy_parameter()

    def before_finish(self):
        pass

    def step(self, closure):
        loss = _called(closure)
        self.session.end_iteration()
        return loss

    def clip(self, max_norm, norm_type):
        """As torch.nn.utils.clip_grad_norm_, by a factor that the servers apply."""
        if norm_type != 2:
            raise Invalid(f"clip_grad_norm_ with norm_type {norm_type}: the servers know the norm of type 2; step=\"layer\" takes others")
        if self.clips is False:
            raise Invalid("clip_grad_norm_ in this iteration and not in the first: the servers have stepped already; say "
                          "distribute(..., clips=True)")
        norm = self.session.gradient_norm() * self.gradient_scale
        self.gradient_scale *= min(1.0, max_norm / (norm + 1e-6))
        self.clipped = True
        return torch.tensor(norm)


class SumMode:
    """Servers sum; the user's optimizer steps all parameters when all sums are there. Closures may be called many times."""

    sums = True
    clips = None  # as of ServerMode; sums are there before a script clips

    def __init__(self, session, optimizer):
        self.session, self.optimizer = session, optimizer
        self.summed = False  # this iteration's sums are the gradients, before its step

    def before_gradients(self):
        pass

    def after_gradients(self):
        pass

    def place(self, slot):
        slot.copy_parameter()

    def land(self, layer):
        for slot in layer.slots:
            slot.parameter.grad = slot.as_gradient()

    @torch.no_grad()
    def before_finish(self):
        for slot in self.session.slots:
            slot.gradient.copy_(slot.parameter)

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
            self.session.end_iteration()
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
            self.session.end_iteration()
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
