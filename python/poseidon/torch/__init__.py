"""Poseidon for PyTorch: `import poseidon.torch as poseidon`. README.md beside the package says what each function does."""

try:
    import torch
except ImportError as error:
    raise ImportError("poseidon.torch needs PyTorch 2.4 or newer, and there is none here: pip install torch") from error

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 4):
    raise ImportError(f"poseidon.torch needs PyTorch 2.4 or newer; this is {torch.__version__}: pip install --upgrade torch")

from poseidon.errors import Ended, Error, Invalid, Refused, Timeout
from poseidon.torch import files as _files
from poseidon.torch.distribute import current as _current
from poseidon.torch.distribute import distribute
from poseidon.torch.sampling import batch_sampler
from poseidon.torch.steps import steps

__all__ = ["Ended", "Error", "Invalid", "Refused", "Timeout", "batch_sampler", "clip_grad_norm_", "distribute", "finish", "no_sync", "rank",
           "register_state", "report", "save", "steps", "wait", "world_size"]


def rank():
    """This worker's place from 0 on; 0 without a cluster."""
    return _current().rank


def world_size():
    """How many workers train; 1 without a cluster."""
    return _current().world_size


def no_sync(model=None):
    """Under `with`: backward passes add to the gradients and send nothing. All but the last one of an accumulation."""
    return _current().no_sync()


def clip_grad_norm_(parameters, max_norm, norm_type=2.0):
    """torch.nn.utils.clip_grad_norm_ over the mean gradient of all workers, between backward() and step().

    Returns the norm before clipping.
    """
    return _current().clip(parameters, max_norm, norm_type)


def report(loss):
    """The mean loss over this worker's samples of this iteration, for status and metrics. Before step(). It waits for the device."""
    _current().report(loss)


def wait(model=None):
    """Until all parameters have all steps. Before a program reads them otherwise than by a forward pass or state_dict()."""
    _current().wait_all()


def save(path, model):
    """Rank 0 writes a safetensors file with the names of model.state_dict(); the others wait for their parameters alone."""
    _current().wait_all()
    if rank() == 0:
        _files.write(path, model.state_dict())


def register_state(name, thing):
    """Keeps thing.state_dict() (of rank 0) with the job, and loads it when the job goes on from a checkpoint. For schedulers.

    Numbers, texts, lists and dictionaries; not tensors.
    """
    _current().register_state(name, thing)


def finish():
    """The job is done when all workers call this, after the same number of steps. A script that ends without an exception does."""
    _current().finish()
