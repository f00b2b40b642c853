"""A script's part in one job: gradients leave as autograd completes them, forward passes wait for what they read.

One iteration: each parameter's gradient arrives (on_gradient); a layer with all of them is reported to the backend; the
optimizer's step ends the iteration; the next forward pass of each module waits for the layers that it reads.

Invariants
1. A layer's gradient memory is written only while no layer is landing and it is not reported.
2. A layer lands once per iteration, before its next gradient, whoever waits first.
3. After a step every gradient is None.
4. The state that goes with N steps is that at the beginning of iteration N, after what a script does behind optimizer.step().
Used by the thread that trains; autograd calls on_gradient on it. In a forked process every call raises.

Called by: distribute.py, hooks.py, steps.py, the package's functions. Calls: backend.py, memory.py, modes.py.
"""

import contextlib
import math
import os
import warnings

import torch

from poseidon.errors import Error, Invalid, Refused, Rewound
from poseidon.torch import modes, registered

GROUPS = "poseidon.groups"  # beside registered objects: a scheduler's state does not have the learning rates that it has set


class Alone:
    """A cluster of one: nothing is hooked, nothing is sent."""

    rank, world_size, iteration, rewinds = 0, 1, 0, 0
    counts_steps = False

    def report(self, loss):
        pass

    def register_state(self, name, thing):
        pass

    def wait_all(self):
        pass

    def finish(self):
        pass

    def close(self):
        pass

    def no_sync(self):
        return contextlib.nullcontext()

    def clip(self, parameters, max_norm, norm_type):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


class Session:
    counts_steps = True

    def __init__(self, model, optimizer, backend, layers, state, loss_layer):
        """layers: LayerMemory of each; state: memory.State or None; loss_layer: index of a layer of one element, or None."""
        self.model, self.optimizer, self.backend = model, optimizer, backend
        self.layers, self.state = layers, state
        self.slots = [slot for layer in layers for slot in layer.slots]
        self.frozen = [p for group in optimizer.param_groups for p in group["params"] if not p.requires_grad]
        self.original_class = type(optimizer)
        self.loss_memory = None if loss_layer is None else backend.layer(loss_layer)
        self.loss_layer = loss_layer
        self.mode = None
        self.objects = {}          # registered: name -> object
        self.rewound = False       # the job went back: the rest of this iteration of the script counts for nothing
        self.rewinds = 0
        self._settled = 0          # rewinds that settle() has seen
        self._landed = True        # no layer is landing
        self._stepping = False     # the last iteration has not been ended for the backend
        self.open = True
        self.first_step_done = None  # hooks.py: tells which layers no hook waits for
        self.read_unseen = []        # these
        self._syncing = True
        self._loss = math.nan
        self.pid = os.getpid()

    # Joining and leaving.

    @torch.no_grad()
    def join(self, step, clips):
        for slot in self.slots:
            slot.value.copy_(slot.parameter)
        if self.state is not None:
            self.state.store()
        self.backend.join()
        self.rank, self.world_size = self.backend.rank(), self.backend.world_size()
        if self.backend.iteration() > 0 and step != "server":
            raise Refused(f"the job has made {self.backend.iteration()} steps, and with step=\"{step}\" nobody can give their parameters to a "
                          "worker that begins now: start the whole job again, or use step=\"server\"")
        self.mode = modes.MODES[step](self, self.optimizer)
        self.mode.clips = clips
        for slot in self.slots:
            self.mode.place(slot)
        if self.state is not None:
            self.state.load()

    def finish(self):
        """The job is done when all workers call this."""
        if self.open:
            self.wait_all()
            self.mode.before_finish()
            self.backend.finish()
            self.close()

    def fail(self, reason):
        """All other scripts of the job end with this reason."""
        try:
            self.backend.fail(reason)
        except Error as error:
            warnings.warn(f"the job was not told that this script has failed: {error}", stacklevel=2)
        self.close()

    def close(self):
        """Leaves the job. Parameters stay as they are, in memory of torch's own."""
        if not self.open or os.getpid() != self.pid:
            return
        self.open = False
        for slot in self.slots:
            slot.parameter.grad = None
            if slot.placed:
                slot.parameter.data = slot.value.clone()
        self.backend.close()

    def check_usable(self):
        if os.getpid() != self.pid:
            raise Invalid("this process was forked from one that trains (a DataLoader's worker?): only that one can train and wait "
                          "for parameters")
        if not self.open:
            raise Invalid("this script has left its job: it has finished, or it failed before")

    # One iteration.

    @property
    def iteration(self):
        self.begin_iteration()
        return self.backend.iteration()

    def on_gradient(self, layer, slot):
        """The gradient of one backward pass has been accumulated."""
        if slot.ready:
            raise Invalid(f"parameter {slot.name} got another gradient after its gradient was sent: put every backward pass but the last of "
                          "an iteration under poseidon.no_sync(model)")
        if not self._landed:
            self.wait_all()
        slot.take_gradient()
        if not self._syncing or self.rewound:
            return
        slot.ready = True
        layer.missing -= 1
        if layer.missing == 0:
            self._send(layer)

    def send_the_rest(self):
        """Reports the layers whose backward pass did not reach all parameters."""
        self.wait_all()
        for layer in self.layers:
            if not layer.reported:
                self._complete(layer)

    def gradient_norm(self):
        """Of the mean gradient of all workers; NaN: the job went back."""
        self.check_usable()
        self.check_unchanged()
        if not self.rewound:
            self.send_the_rest()
        norm = None if self.rewound else self._call(self.backend.gradient_norm)
        return math.nan if norm is None else norm

    def give_rates(self, rates, gradient_scale):
        """rates: (learning rate, weight decay) per parameter group, of this iteration's step."""
        self._call(self.backend.rates, [rates[slot.group] for slot in self.slots], gradient_scale)

    def end_iteration(self):
        self.check_usable()
        self.check_unchanged()
        if not self.rewound:
            self.send_the_rest()
            self._send_loss()
        if not self.rewound:
            self.mode.after_gradients()
        self._stepping = not self.rewound
        for layer in self.layers:
            layer.begin_iteration()
            layer.landing = self._stepping
        self.rewound, self._landed = False, not self._stepping

    @torch.no_grad()
    def begin_iteration(self):
        """Ends the last iteration for the backend, now that the script has changed what it changes after optimizer.step()."""
        if not self._stepping:
            return
        self._stepping = False
        if self.state is not None and self.rank == 0:
            self.state.store()
            if self.objects:
                self.state.objects.copy_(registered.encode(self._states(), self.state.objects.numel()))
        self._call(self.backend.step, self._loss)
        self._loss = math.nan

    def check_unchanged(self):
        for parameter in self.frozen:
            if parameter.requires_grad:
                raise Invalid("a parameter that was frozen at distribute() requires a gradient now: the layers of a job cannot change; "
                              "unfreeze it before distribute()")
        for slot in self.slots:
            slot.check_placed()
            if slot.ready and slot.parameter.grad is None:
                raise Invalid(f"the gradient of {slot.name} was removed after it was sent: call zero_grad() after step(), or put backward passes "
                              "whose gradients are thrown away under poseidon.no_sync(model)")
            if slot.ready and slot.parameter.grad._version != slot.version:
                raise Invalid(f"the gradient of {slot.name} was changed after it was sent: clip with poseidon.clip_grad_norm_ in place of "
                              "torch.nn.utils.clip_grad_norm_, and scale the loss in place of gradients")

    def check_nothing_sent(self):
        if self.open and any(slot.ready for slot in self.slots):
            raise Invalid("zero_grad() between backward() and step(): the gradients are sent already. Call it after step(), or put backward "
                          "passes whose gradients are thrown away under poseidon.no_sync(model)")

    def _complete(self, layer):
        """Reports a layer whose backward pass did not reach all parameters: those without a gradient count as zeros."""
        for slot in layer.slots:
            if not slot.parameter.requires_grad:
                raise Invalid(f"parameter {slot.name} was frozen after distribute(): the layers of a job cannot change; freeze it before")
            if slot.parameter.grad is None:
                slot.gradient.zero_()
            elif not slot.ready:
                slot.take_gradient()
        self._send(layer)

    def _send(self, layer):
        self.check_usable()
        if not self.rewound and not any(other.reported for other in self.layers):
            self.mode.before_gradients()
        layer.reported = True
        if not self.rewound:
            self._call(self.backend.gradient, layer.index)

    def _send_loss(self):
        if self.loss_layer is not None and not self.rewound:
            self.loss_memory[1].fill_(self._loss)
            self.backend.gradient(self.loss_layer)

    def mean_loss(self):
        """The mean of all workers' losses of the last iteration; None where the job does not sum it."""
        if self.loss_layer is None:
            return None
        return self.loss_memory[0].item()

    def wait(self, layer):
        if layer.landing:
            self.check_usable()
            if self._stepping:
                self.begin_iteration()
            if layer.landing:
                self._call(self.backend.wait, layer.index)
            if layer.landing:
                layer.landing = False
                self.mode.land(layer)

    def wait_all(self):
        self.check_usable()
        for layer in self.layers:
            self.wait(layer)
        if self.loss_layer is not None and not self._landed:
            self._call(self.backend.wait, self.loss_layer)
        self._landed = True

    def original_step(self, closure):
        return self.original_class.step(self.optimizer, closure) if closure else self.original_class.step(self.optimizer)

    def step(self, closure):
        if getattr(self.optimizer, "found_inf", None) is not None:
            raise Invalid("torch.amp.GradScaler cannot be used with poseidon.torch yet: use bfloat16 autocast, which needs no scaling")
        result = self.mode.step(closure)
        if self.first_step_done is not None:
            self.read_unseen, self.first_step_done = self.first_step_done(), None
        for layer in self.read_unseen:
            self.wait(layer)
        return result

    def _call(self, function, *arguments):
        """What the job does after a loss is no error of the script: what it was about to do counts for nothing."""
        try:
            return function(*arguments)
        except Rewound as rewound:
            if self.mode.sums:
                raise Error(f"{rewound}; a script with step=\"layer\" or \"worker\" cannot go back yet, start it again") from rewound
            self._go_back()

    def _go_back(self):
        self.rewound = True
        self.rewinds += 1
        self.rank, self.world_size = self.backend.rank(), self.backend.world_size()
        for layer in self.layers:
            layer.landing = False
            self.mode.land(layer)

    @torch.no_grad()
    def settle(self):
        """Between two iterations of a script that can go back: after a rewind, all is as the job's iteration began."""
        self.begin_iteration()
        if self.rewinds == self._settled:
            return
        self._settled, self.rewound = self.rewinds, False
        for layer in self.layers:
            layer.begin_iteration()
            layer.landing = False
        if self.state is not None:
            self.state.load()
            self._load_objects()

    # What else a script says.

    def report(self, loss):
        self._loss = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    @contextlib.contextmanager
    def no_sync(self):
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def clip(self, parameters, max_norm, norm_type):
        given = {id(p) for p in ([parameters] if isinstance(parameters, torch.Tensor) else parameters)}
        if not {id(slot.parameter) for slot in self.slots} <= given:
            raise Invalid("clip_grad_norm_ of some of the parameters: the norm is that of all; pass model.parameters()")
        return self.mode.clip(float(max_norm), float(norm_type))

    def register_state(self, name, thing):
        """thing: as it is when an iteration begins."""
        if self.state is None or self.state.objects is None:
            raise Invalid(f"no room for {name!r}: say distribute(..., registered_bytes=4096)")
        if name in self.objects:
            raise Invalid(f"an object is registered as {name!r} already")
        registered.encode({name: thing.state_dict()}, self.state.objects.numel())
        self.objects[name] = thing
        if self.iteration > 0:
            self._load_objects()

    def _states(self):
        groups = [{key: float(value) for key, value in group.items() if key != "params" and _is_number(value)}
                  for group in self.optimizer.param_groups]
        return {name: thing.state_dict() for name, thing in self.objects.items()} | {GROUPS: groups}

    def _load_objects(self):
        states = registered.decode(self.state.objects) if self.objects else {}
        for name, thing in self.objects.items():
            if name in states:
                thing.load_state_dict(states[name])
        for group, values in zip(self.optimizer.param_groups, states.get(GROUPS, [])):
            for key, value in values.items():
                if isinstance(group[key], torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = type(group[key])(value)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) or isinstance(value, torch.Tensor) and value.numel() == 1
