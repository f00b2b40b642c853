"""The network that the peers train on an emulated device: the profile's tensors, and times instead of arithmetic.

Forward and backward of each layer sleep as long as the device would compute. When a layer's backward is done, its
gradients are there already and are handed over; from there on all is the peer's own.

Memory: nobody reads the parameters, so they are never touched. Gradients are zero but for a few elements per tensor, so
that the pages they are read from are the kernel's zero page.
"""

import argparse
import mmap
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))

from gradients import HandOver, cpu_seconds, say  # noqa: E402
from timeline import DeviceTimeline  # noqa: E402

CHECKED_STRIDE = 262147  # one element in so many of a tensor has a value that depends on rank and iteration


class Compute(torch.autograd.Function):
    """A layer: passes `chain` on when the device has computed it, forward and backward."""

    @staticmethod
    def forward(ctx, chain, layer, timeline):  # pylint: disable=arguments-differ
        ctx.layer, ctx.timeline = layer, timeline
        timeline.compute(layer.forward_s)
        return chain.clone()

    @staticmethod
    def backward(ctx, chain):  # pylint: disable=arguments-differ
        ctx.timeline.compute(ctx.layer.backward_s)
        return chain, None, None


def shared_memory(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def private_memory(profile):
    # Pages that were never written are the kernel's zero page, as long as they are small ones.
    memory = mmap.mmap(-1, profile.parameter_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class Tensors:
    """All tensors of a profile, one after the other in one memory."""

    def __init__(self, profile, memory, begin_bytes=0):
        self.flat = torch.frombuffer(memory, dtype=torch.float32, count=profile.parameters, offset=begin_bytes)
        self.views = []
        begin = 0
        for layer in profile.layers:
            for shape, elements in zip(layer.tensors, layer.elements):
                self.views.append(self.flat[begin:begin + elements].view(shape))
                begin += elements


class Module(torch.nn.Module):
    """With the profile's tensors; `gradients` are what the next backward pass hands over."""

    def __init__(self, profile, timeline, parameters):
        super().__init__()
        self.profile = profile
        self.timeline = timeline
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(view) for view in parameters.views)
        self.gradients = None

    def forward(self, chain):
        tensors = zip(self.tensors, self.gradients.views)
        for layer in self.profile.layers:
            # The backward pass goes the other way: first the device computes, then the gradients are there.
            for _ in layer.tensors:
                chain = HandOver.apply(chain, *next(tensors))
            chain = Compute.apply(chain, layer, self.timeline)
        return chain


class Checks:
    """A few elements whose mean over all ranks is known."""

    def __init__(self, profile, rank, world, shared, left_out):
        # What ranks share has the same value on all of them.
        self._factor, self._mean_factor = (1, 1) if shared else (rank + 1, (world + 1) / 2)
        self._places = []  # per tensor
        flat, begin = [], 0
        for layer in profile.layers:
            for shape, elements in zip(layer.tensors, layer.elements):
                count = 0 if left_out(shape) else -(-elements // CHECKED_STRIDE)
                places = elements - 1 - CHECKED_STRIDE * torch.arange(count)
                self._places.append(places)
                flat.append(places + begin)
                begin += elements
        self._flat = torch.cat(flat)

    @staticmethod
    def _value(iteration):
        return iteration % 7 + 1  # small whole numbers, which 16 bits hold too

    def prepare(self, gradients, iteration):
        gradients.flat[self._flat] = float(self._factor * self._value(iteration))

    def check(self, parameters, iteration):
        expected = self._mean_factor * self._value(iteration)
        for number, (parameter, places) in enumerate(zip(parameters, self._places)):
            values = parameter.grad.view(-1)[places]
            wrong = (values - expected).abs() > 1e-3 * expected  # division and sum in 16 bits
            if wrong.any():
                at = int(wrong.nonzero()[0])
                raise SystemExit(f"wrong mean in iteration {iteration}: element {int(places[at])} of tensor {number} is "
                                 f"{values[at].item()} and should be {expected}")


class Rank:
    """What one process does: its module, and the loop. `gradients` are taken in turn by the iterations."""

    def __init__(self, profile, options, gradients, checks):
        self.timeline = DeviceTimeline(options.slow_motion)
        self.module = Module(profile, self.timeline, Tensors(profile, shared_memory(options.shared)))
        self._optimizer_s = profile.optimizer_s
        self._gradients = gradients
        self._checks = checks

    def iterate(self, iteration, backward):
        """`backward` begins with the forward pass and returns when all gradients are reduced. Returns when the
        iteration has ended, and the CPU time for what training would not do."""
        self.timeline.inputs_are_there()  # parameters: a new iteration begins
        cpu_before = time.thread_time()
        # While the device computes forward, as this thread has nothing to do.
        if iteration > 0:
            self._checks.check(self.module.tensors, iteration - 1)
        self.module.gradients = self._gradients[iteration % len(self._gradients)]
        self._checks.prepare(self.module.gradients, iteration)
        for parameter in self.module.tensors:
            parameter.grad = None
        cpu = time.thread_time() - cpu_before
        backward(torch.zeros((), requires_grad=True))
        self.timeline.inputs_are_there()  # gradients of all ranks
        self.timeline.compute(self._optimizer_s)
        return time.monotonic(), cpu

    def train(self, options, backward):
        not_counted = 0.0
        for iteration in range(options.warm_up + options.iterations):
            end, cpu = self.iterate(iteration, backward)
            not_counted += cpu
            say(end=end, cpu_s=cpu_seconds() - not_counted)
        self._checks.check(self.module.tensors, options.warm_up + options.iterations - 1)


def parser():
    """Of what every rank is told."""
    made = argparse.ArgumentParser()
    made.add_argument("--rank", type=int, required=True)
    made.add_argument("--world", type=int, required=True)
    made.add_argument("--profile", required=True)
    made.add_argument("--shared", required=True, help="a file that all ranks map: parameters, then two sets of gradients")
    made.add_argument("--slow-motion", type=float, required=True)
    made.add_argument("--warm-up", type=int, required=True)
    made.add_argument("--iterations", type=int, required=True)
    return made
