"""One rank of PyTorch's DDP over Gloo on an emulated device, in a process of its own (ddp.py starts it). Says lines of
JSON on stdout: {"end", "cpu_s"} when an iteration has ended, by the clock that all hosts share.

The module has the profile's parameter tensors and its forward and backward sleep as long as the device would compute.
When a layer's backward is done, its gradients are there already and are handed over; from there on all is DDP's and
Gloo's own: buckets, hooks, sums. An iteration ends when all gradients are reduced and the device has done the optimizer's step.

Memory: nobody reads the parameters, so they are never touched, unless DDP sends them round at the start; then all ranks
share one file. Gradients are zero but for a few elements per tensor, so that the pages they are read from are the
kernel's zero page; buckets and what Gloo does are as large as ever. Without gradient_as_bucket_view DDP writes the
results back to the gradients, so the ranks share those too, of even and of odd iterations apart.
"""

import argparse
import datetime
import inspect
import mmap
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))

import device_profile  # noqa: E402
import low_rank  # noqa: E402
from gradients import HandOver, cpu_seconds, say  # noqa: E402
from timeline import DeviceTimeline  # noqa: E402

VARIANTS = ["ddp", "ddp-tuned", "ddp-tuned-fp16", "ddp-powersgd"]
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
    def __init__(self, options):
        profile = device_profile.load(options.profile)
        tuned = options.variant != "ddp"
        low_rank_hook = options.variant == "ddp-powersgd"
        self.optimizer_s = profile.optimizer_s
        self.timeline = DeviceTimeline(options.slow_motion)
        shared = shared_memory(options.shared)
        self.module = Module(profile, self.timeline, Tensors(profile, shared))
        if tuned:
            self.gradients = [Tensors(profile, private_memory(profile))]
        else:
            self.gradients = [Tensors(profile, shared, number * profile.parameter_bytes) for number in (1, 2)]
        self.checks = Checks(profile, options.rank, options.world, shared=not tuned,
                             # What is compressed is checked as it travels.
                             left_out=lambda shape: low_rank_hook and low_rank.compressed(shape, options.powersgd_rank))
        self.ddp = self._make_ddp(profile, options, tuned)

    def _make_ddp(self, profile, options, tuned):
        choice = {}
        if tuned:
            # bucket_cap_mb: 25 is today's default, said explicitly. gradient_as_bucket_view: gradients stay in the
            # buckets afterwards, which saves the copy back.
            choice = {"bucket_cap_mb": 25, "gradient_as_bucket_view": True}
        if options.variant == "ddp-powersgd":
            choice["bucket_cap_mb"] = dist._DEFAULT_FIRST_BUCKET_BYTES = 2 * profile.parameter_bytes  # one: see low_rank.py
        if "init_sync" in inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters:
            choice["init_sync"] = False  # they are equal, and nobody reads them
        ddp = torch.nn.parallel.DistributedDataParallel(self.module, **choice)
        if options.variant == "ddp-tuned-fp16":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif options.variant == "ddp-powersgd":
            hook = low_rank.Hook(profile, self.timeline, options.powersgd_rank)
            ddp.register_comm_hook(hook, low_rank.Hook.reduce)
        return ddp

    def iterate(self, iteration):
        """Returns when the iteration has ended, and the CPU time for what training would not do."""
        self.timeline.inputs_are_there()  # parameters: a new iteration begins
        cpu_before = time.thread_time()
        # While the device computes forward, as this thread has nothing to do.
        if iteration > 0:
            self.checks.check(self.module.tensors, iteration - 1)
        self.module.gradients = self.gradients[iteration % len(self.gradients)]
        self.checks.prepare(self.module.gradients, iteration)
        for parameter in self.module.tensors:
            parameter.grad = None
        cpu = time.thread_time() - cpu_before
        self.ddp(torch.zeros((), requires_grad=True)).backward()
        self.timeline.inputs_are_there()  # gradients of all ranks
        self.timeline.compute(self.optimizer_s)
        return time.monotonic(), cpu


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True, choices=VARIANTS)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--shared", required=True, help="a file that all ranks map: parameters, then two sets of gradients")
    parser.add_argument("--slow-motion", type=float, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--powersgd-rank", type=int, default=4)
    parser.add_argument("--timeout-s", type=int, required=True)
    return parser.parse_args()


def main():
    options = parse_arguments()
    dist.init_process_group("gloo", init_method=f"tcp://{options.master}", rank=options.rank,
                            world_size=options.world, timeout=datetime.timedelta(seconds=options.timeout_s))
    rank = Rank(options)
    dist.barrier()
    not_counted = 0.0
    for iteration in range(options.warm_up + options.iterations):
        end, cpu = rank.iterate(iteration)
        not_counted += cpu
        say(end=end, cpu_s=cpu_seconds() - not_counted)
    rank.checks.check(rank.module.tensors, options.warm_up + options.iterations - 1)
    dist.barrier()
    dist.destroy_process_group()


main()
