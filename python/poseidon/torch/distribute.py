"""distribute(): from a model and its optimizer to a session in a job.

Called by: scripts, as poseidon.torch.distribute. Calls: layers.py and optimizers.py to declare the job, backend.py to join
it, memory.py, session.py, hooks.py.
"""

import atexit
import contextlib
import os
import pathlib
import sys
import threading
import warnings

import torch

from poseidon.errors import Error, Invalid, Refused
from poseidon.torch import backend as backends
from poseidon.torch import ending, hooks, layers, memory, optimizers, session

LOSS = "poseidon.loss"            # a layer of one element, for optimizers that compare losses
REGISTERED = "poseidon.registered"  # registered objects, in the declared state

_of_this_thread = threading.local()
_latest = None


def current():
    """The session of this thread, otherwise the process's latest; a cluster of one before distribute()."""
    return getattr(_of_this_thread, "session", None) or _latest or session.Alone()


def distribute(model, optimizer, *, step=None, scheme="auto", wire_dtype="fp32", clips=None, example=None, registered_bytes=4096,
               on_error="end", name=None, job=None, options=None, backend=None):
    """Joins the job that the environment names; returns the same model and optimizer, which train in it from now on.

    step: "server", "layer" or "worker"; None: the first of them that the optimizer allows (README.md).
    scheme, wire_dtype: as "sync" of a job file.
    clips: whether some step may have clip_grad_norm_ before it, or other rates than its backward pass began with; None: if the
    first step has.
    example: a tuple of arguments for model, whose forward pass tells the order of layers; None: the order of registration.
    on_error: when this script ends with an exception, "end": the others end with its last line; "leave": they go on or wait for
    a replacement.
    registered_bytes: room for register_state(). name: of the job; None: POSEIDON_JOB, or the script's.
    job: more of a job file ({"checkpoint": {...}, "membership": {...}, "sync": {...}}). options: more of the client library's.
    backend: instead of the client library (backend.py).
    """
    global _latest
    options_there = backends.options_from()
    if backend is None and options_there is None:
        _of_this_thread.session = _latest = session.Alone()
        return model, optimizer
    if getattr(current(), "open", False) and getattr(_of_this_thread, "session", None) is not None:
        raise Invalid("distribute() has been called already: one model per process")
    joined = _join(model, optimizer, backend or backends.LibraryBackend, (options_there or {}) | (options or {}), job or {},
                   step=step, scheme=scheme, wire_dtype=wire_dtype, clips=clips, example=example, on_error=on_error,
                   registered_bytes=registered_bytes, name=name)
    _of_this_thread.session = _latest = joined
    return model, optimizer


def _join(model, optimizer, backend, options, more_job, *, step, scheme, wire_dtype, clips, example, on_error, registered_bytes, name):
    model = _module_of(model)
    group_of = _groups(model, optimizer)
    found = layers.find_layers(model, set(group_of))
    if not found:
        raise Invalid("the model has no parameter that requires a gradient and that the optimizer steps")
    if example is not None:
        found = layers.in_order(found, layers.observed_order(model, example))
    step = _checked_step(step, optimizer)
    state = layers.find_state(model)
    name = name or os.environ.get("POSEIDON_JOB") or pathlib.Path(sys.argv[0] or "program").name
    group_of_name = {full: group_of[id(p)] for layer in found for full, (_, p) in zip(layer.full_names(), layer.tensors)}
    declared_state = [(tensor, buffer.shape) for tensor, buffer in state]
    if registered_bytes:
        declared_state.append((REGISTERED, (registered_bytes,)))
    declared = layers.declare(name, found, declared_state)
    loss_layer = len(found) if step == "worker" and _compares_losses(optimizer) else None
    if loss_layer is not None:
        declared["declared"].append({"name": LOSS, "tensors": [{"shape": []}]})
    rule = optimizers.server_optimizer(optimizer) if step == "server" else {"type": "sum"}
    job = {"name": name, "model": declared, "optimizer": rule} | more_job
    job["sync"] = {"scheme": scheme, "wire_dtype": wire_dtype} | more_job.get("sync", {})

    client = backend(job, options)
    try:
        placed = [memory.place(client, i, layer, group_of_name) for i, layer in enumerate(found)]
        kept = memory.State(client.state(), [buffer for _, buffer in state], registered_bytes) if declared_state else None
        joined = session.Session(model, optimizer, client, placed, kept, loss_layer)
        joined.join(step, clips)
        hooks.hook_model(joined)
        hooks.hook_optimizer(joined)
    except Refused as refused:  # the others wait for this worker in vain
        with contextlib.suppress(Error):
            client.fail(str(refused))
        client.close()
        raise
    except BaseException:
        client.close()
        raise
    atexit.register(ending.at_exit, joined, on_error)
    return joined


def _module_of(model):
    """The module under torch.compile's wrapper."""
    if isinstance(model, torch._dynamo.OptimizedModule) if hasattr(torch, "_dynamo") else False:
        warnings.warn("the model is compiled as a whole: its gradients are all complete at the end of the backward pass, so that nothing is "
                      "sent meanwhile. Compile block by block instead (block.compile() for each)", stacklevel=4)
        return model._orig_mod
    return model


def _groups(model, optimizer):
    """{id of a parameter: its parameter group}. Every parameter of the optimizer must be the model's."""
    names = {id(p): name for name, p in model.named_parameters()}
    group_of = {}
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise Invalid(f"a parameter of shape {tuple(parameter.shape)} in parameter group {index} of the optimizer is not in the model: "
                              "pass the module that has all of them")
            group_of[id(parameter)] = index
    return group_of


def _checked_step(step, optimizer):
    step = step or optimizers.default_step(optimizer)
    if step not in ("server", "layer", "worker"):
        raise Invalid(f"step is {step!r}; it is \"server\", \"layer\" or \"worker\"")
    if step == "server" and (why := optimizers.why_not_on_servers(optimizer)):
        raise Invalid(f"step=\"server\": {why}; step=\"layer\" or \"worker\" take it")
    if step == "layer" and _compares_losses(optimizer):
        raise Invalid(f"step=\"layer\": {type(optimizer).__name__} looks at all parameters at once; step=\"worker\" takes it")
    return step


def _compares_losses(optimizer):
    return isinstance(optimizer, torch.optim.LBFGS)
