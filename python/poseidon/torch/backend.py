"""The seam between the front end and a cluster: the calls of poseidon/client.h.

Called by: session.py. Calls: an implementation. LibraryBackend is the real one; the tests have a cluster in memory
(python/tests/twin.py) that passes through the same calls.
"""

import abc
import json
import os
import threading
import time

import torch

from poseidon import _library
from poseidon.errors import Error, Invalid, Timeout

WAIT_TIMEOUT_S = 43200  # as the library's own
INTERRUPTIBLE_S = 1


class Backend(abc.ABC):
    """One worker's part in one job. Used by one thread at a time. Errors are those of poseidon/errors.py.

    Made from a job (docs/job.md, its model declared) and options (poseidon/client.h). In a job that sums, with
    {"optimizer": {"type": "sum"}}, the parameters' memory of a layer receives the mean of all workers' gradients in place of
    parameters. Until the first step it has what worker 0 wrote there.
    """

    @abc.abstractmethod
    def layer(self, layer):
        """(parameters, gradients) of a layer of the declaration: 1-dimensional float32 tensors, views of its memory."""

    @abc.abstractmethod
    def state(self):
        """The declared state end to end, likewise; None where none is declared."""

    @abc.abstractmethod
    def join(self):
        """Waits for all workers. Worker 0's parameters and state are now everyone's, or a checkpoint's."""

    @abc.abstractmethod
    def rank(self): ...

    @abc.abstractmethod
    def world_size(self): ...

    @abc.abstractmethod
    def iteration(self):
        """The steps that the job's parameters have seen."""

    @abc.abstractmethod
    def gradient(self, layer):
        """The layer's gradient is in its memory, and stays there until all layers have been waited for after the step."""

    @abc.abstractmethod
    def gradient_norm(self):
        """Of the mean gradient of all workers and layers. After all gradients, before step(); not in a job that sums."""

    @abc.abstractmethod
    def rates(self, rates, gradient_scale):
        """Those of this iteration's step: (learning rate, weight decay) of each tensor, as declared; and a factor of the mean
        gradient. After all gradients, before step(); not in a job that sums."""

    @abc.abstractmethod
    def step(self, loss):
        """Ends the iteration; the state is copied. loss: a number, NaN where unknown."""

    @abc.abstractmethod
    def wait(self, layer):
        """Until the layer's parameters (or sums) have all steps that were ended."""

    @abc.abstractmethod
    def finish(self):
        """After the last step, called by all workers. The job is done. In a job that sums, the gradients' memory has the model."""

    @abc.abstractmethod
    def fail(self, reason):
        """This script cannot go on: the job fails with this reason on all workers."""

    @abc.abstractmethod
    def close(self):
        """Leaves the job if it has not ended. The memory is gone afterwards."""


class LibraryBackend(Backend):
    """By the client library."""

    def __init__(self, job, options):
        self._joining = None
        self._wait_timeout_s = options.get("wait_timeout_s", WAIT_TIMEOUT_S)
        self._client = _library.Client(json.dumps(job), json.dumps(options | {"wait_timeout_s": INTERRUPTIBLE_S}))

    def layer(self, layer):
        parameters, gradients = self._client.layer(layer)
        return torch.frombuffer(parameters, dtype=torch.float32), torch.frombuffer(gradients, dtype=torch.float32)

    def state(self):
        values = self._client.state()
        return None if values is None else torch.frombuffer(values, dtype=torch.float32)

    def join(self):
        """On a thread of its own, so that Ctrl-C ends the wait for it."""
        failure = []

        def run():
            try:
                self._client.join()
            except Error as error:
                failure.append(error)

        self._joining = threading.Thread(target=run, name="poseidon join", daemon=True)
        self._joining.start()
        while self._joining.is_alive():
            self._joining.join(0.2)
        if failure:
            raise failure[0]

    def rank(self):
        return self._client.rank()

    def world_size(self):
        return self._client.world_size()

    def iteration(self):
        return self._client.iteration()

    def gradient(self, layer):
        self._patiently(self._client.gradient, layer)

    def gradient_norm(self):
        return self._patiently(self._client.gradient_norm)

    def rates(self, rates, gradient_scale):
        self._patiently(self._client.rates, rates, gradient_scale)

    def step(self, loss):
        self._patiently(self._client.step, loss)

    def wait(self, layer):
        self._patiently(self._client.wait, layer)

    def finish(self):
        self._patiently(self._client.finish)

    def fail(self, reason):
        self._client.fail(reason)

    def close(self):
        if self._joining is None or not self._joining.is_alive():
            self._client.close()

    def _patiently(self, call, *arguments):
        """A call that may wait long, in short parts: Ctrl-C is heard between two of them."""
        begin = None
        while True:
            try:
                return call(*arguments)
            except Timeout:
                begin = begin or time.monotonic()
                if time.monotonic() - begin >= self._wait_timeout_s:
                    raise


def options_from(environment=os.environ):
    """The options for a cluster as launchers name it; None without a cluster."""
    coordinator = environment.get("POSEIDON_COORDINATOR")
    world_size = _number(environment, "WORLD_SIZE", 1)
    if not coordinator:
        if world_size > 1:
            raise Invalid(f"WORLD_SIZE is {world_size}, so this is one of several workers, but POSEIDON_COORDINATOR is not set: set "
                          "it to the coordinator's host:port")
        return None
    options = {"coordinator": coordinator, "rank": _number(environment, "RANK", -1)}
    if "WORLD_SIZE" in environment:
        options["workers"] = world_size
    if environment.get("POSEIDON_RUN_DIR"):
        options["run_dir"] = environment["POSEIDON_RUN_DIR"]
    if "POSEIDON_SERVERS" in environment:
        options["servers"] = _number(environment, "POSEIDON_SERVERS", 1)
    return options


def _number(environment, name, default):
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{name} is {text!r}; it must be a whole number") from None
