"""What is hung on a model and its optimizer, and nothing else of them is changed.

A parameter: its gradient has been accumulated. A module: its forward pass waits for the layers with its parameters. Until
the first step, all modules note that they are called: a module that never is (its parent reads its parameters, as
nn.MultiheadAttention does with its out_proj) has its layers waited for by the nearest module around it that is, or by step().

Hooks are functions, not methods: a copy of a module (copy.deepcopy, for averages) then has no copy of the session.

Called by: distribute.py. Calls: session.py.
"""

import torch

from poseidon.errors import Invalid


def hook_model(session):
    model = session.model
    for layer in session.layers:
        for slot in layer.slots:
            slot.parameter.register_post_accumulate_grad_hook(_gradient_hook(session, layer, slot))
    layer_of = {id(slot.parameter): layer for layer in session.layers for slot in layer.slots}
    readers = {}  # module: its layers; a shared parameter's has several readers
    for module in model.modules():
        own = dict.fromkeys(layer_of[id(p)] for p in module.parameters(recurse=False) if id(p) in layer_of)
        if own:
            readers[module] = list(own)
            wait_before_forward(session, module, own)
    watch_first_iteration(session, readers)
    model.register_state_dict_pre_hook(lambda module, prefix, keep_vars: _wait_for_state(session))
    if not session.mode.sums:
        model._register_load_state_dict_pre_hook(_load_hook(session), with_module=True)


def _gradient_hook(session, layer, slot):
    def hook(parameter):
        if session.open:
            session.on_gradient(layer, slot)
    return hook


def wait_before_forward(session, module, layers):
    layers = tuple(layers)

    def wait():
        for layer in layers:
            if layer.landing and session.open:
                session.wait(layer)

    outside = torch.compiler.disable(wait)  # a compiled graph would remember whether a layer was landing

    def hook(module, inputs):
        if torch.compiler.is_compiling():
            outside()
        else:
            wait()
    module.register_forward_pre_hook(hook, prepend=True)


def _wait_for_state(session):
    if session.open:
        session.wait_all()


def _load_hook(session):
    def hook(module, *_):
        if session.open and module is model:
            raise Invalid("load_state_dict() after distribute(): the parameters are the servers' now; load before distribute(), or use "
                          "step=\"layer\"")
    model = session.model
    return hook


def watch_first_iteration(session, readers):
    """Notes which modules are called; session.first_step_done, which the first step calls, ends that."""
    called, handles = set(), []
    for module in session.model.modules():
        handles.append(module.register_forward_pre_hook(lambda module, inputs: called.add(module)))

    def done():
        for handle in handles:
            handle.remove()
        around = dict(_modules_around(session.model, ()))
        at_step = {}
        for module, layers in readers.items():
            if module in called:
                continue
            reader = next((m for m in reversed(around[module]) if m in called), None)
            if reader is None:
                at_step |= dict.fromkeys(layers)
            else:
                wait_before_forward(session, reader, layers)
        return list(at_step)

    session.first_step_done = done


def _modules_around(module, path):
    """(module, the modules around it from the root on) of each; a module in several places has the first."""
    seen = set()

    def visit(module, path):
        if module not in seen:
            seen.add(module)
            yield module, path
            for child in module.children():
                yield from visit(child, (*path, module))
    return visit(module, path)


def hook_optimizer(session):
    """The optimizer's class becomes a subclass of itself whose step is the session's, so that isinstance holds, and
    schedulers, which call the class's own step, find it."""
    original = type(session.optimizer)

    def step(self, closure=None):
        if not session.open:
            raise Invalid("this script has left its job: its optimizer steps no more")
        return session.step(closure)

    def zero_grad(self, set_to_none=True):
        session.check_nothing_sent()
        original.zero_grad(self, set_to_none)

    def add_param_group(self, group):
        raise Invalid("add_param_group() after distribute(): the layers of a job cannot change; add parameters before distribute()")

    def state_dict(self):
        _wait_for_state(session)
        return original.state_dict(self)

    def load_state_dict(self, state_dict):
        _wait_for_state(session)
        if session.open and not session.mode.sums and state_dict["state"]:
            raise Invalid("load_state_dict() of the optimizer after distribute(): what it remembers is the servers'; use step=\"layer\"")
        original.load_state_dict(self, state_dict)

    if not session.mode.sums or hasattr(session.mode, "single"):
        step = torch.optim.Optimizer.profile_hook_step(step)  # step hooks of the user's
    step.hooked = True
    # A GradScaler then leaves found_inf to step, which refuses it, and does not touch gradients that are being sent.
    body = {"step": step, "zero_grad": zero_grad, "add_param_group": add_param_group, "state_dict": state_dict,
            "load_state_dict": load_state_dict, "_step_supports_amp_scaling": True,
            "__module__": original.__module__}
    patched = session.optimizer.__dict__.pop("step", None)
    session.optimizer.__class__ = type(original.__name__, (original,), body)
    if patched is not None:
        _restore_scheduler_mark(session.optimizer, patched)


def _restore_scheduler_mark(optimizer, patched):
    """A scheduler that was made before distribute() has put a step of its own on the instance, to see that steps are made."""
    if not hasattr(patched, "_wrapped_by_lr_sched"):
        raise Invalid("the optimizer's step has been replaced on this instance: replace it after distribute()")

    def step(*arguments, **options):
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *arguments, **options)
    step._wrapped_by_lr_sched = True
    optimizer.step = step
