"""One rank of the PyTorch variants, in a process of its own (torch_variant.py starts it). Speaks JSON lines on stdout.

ddp, ddp-tuned    DistributedDataParallel over Gloo on a module with the network's parameter tensors. A chain of
                  functions, one per tensor, hands over gradients that are there already, last tensor first, so the
                  backward pass is nothing but DDP's work: copy into buckets, all-reduce, copy back.
gloo-allreduce    torch.distributed.all_reduce on one flat tensor of all parameters, in place.
"""

import argparse
import datetime
import pathlib
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))

from gradients import HandOver, cpu_seconds, say  # noqa: E402

CHECKED_STRIDE = 65537  # as in node.cc: one element in so many, and the last, carries a known value; the others 0


def read_sizes(path):
    return [int(word) for line in pathlib.Path(path).read_text().splitlines() for word in line.split()[1:]]


def check(what, value, expected):
    if abs(value - expected) > 1e-5 * abs(expected):
        raise SystemExit(f"wrong sum: {what} is {value} and should be {expected}")


class Parameters(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(size)) for size in sizes)
        self.gradients = [torch.full((size,), 0.0) for size in sizes]

    def forward(self, chain):
        for parameter, gradient in zip(self.tensors, self.gradients):
            chain = HandOver.apply(chain, parameter, gradient)
        return chain


class Ddp:
    def __init__(self, sizes, rank, tuned):
        self.module = Parameters(sizes)
        options = {}
        if tuned:
            # bucket_cap_mb: 25 is today's default, said explicitly. gradient_as_bucket_view: gradients stay in the
            # buckets afterwards, which saves the copy back. The connections: see torch_gloo.py.
            options = {"bucket_cap_mb": 25, "gradient_as_bucket_view": True}
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.module, **options)
        self.factor = rank + 1
        begin = 0
        self.checked = []
        for tensor, size in enumerate(sizes):
            self.checked += [(tensor, at - begin)
                             for at in range(-(-begin // CHECKED_STRIDE) * CHECKED_STRIDE, begin + size,
                                             CHECKED_STRIDE)]
            begin += size
        self.checked.append((len(sizes) - 1, sizes[-1] - 1))

    def prepare(self, iteration):
        for tensor, at in self.checked:
            self.module.gradients[tensor][at] = self.factor * (iteration + 1)
        for parameter in self.module.tensors:
            parameter.grad = None
        self.loss = self.ddp(torch.zeros((), requires_grad=True))

    def synchronise(self):
        self.loss.backward()

    def check(self, iteration, world):
        for tensor, at in self.checked:
            check(f"element {at} of gradient {tensor}", self.module.tensors[tensor].grad[at].item(),
                  (world + 1) / 2 * (iteration + 1))


class Allreduce:
    def __init__(self, sizes, rank):
        self.flat = torch.full((sum(sizes),), 0.0)
        self.factor = rank + 1

    def prepare(self, iteration):
        self.flat[::CHECKED_STRIDE] = self.factor * (iteration + 1)
        self.flat[-1] = self.factor * (iteration + 1)

    def synchronise(self):
        dist.all_reduce(self.flat)

    def check(self, iteration, world):
        expected = world * (world + 1) / 2 * (iteration + 1)
        for at, value in enumerate([*self.flat[::CHECKED_STRIDE].tolist(), self.flat[-1].item()]):
            check(f"checked element {at}", value, expected)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True, choices=["ddp", "ddp-tuned", "gloo-allreduce"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--timeout-s", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo", init_method=f"tcp://{options.master}", rank=options.rank,
                            world_size=options.world, timeout=datetime.timedelta(seconds=options.timeout_s))
    sizes = read_sizes(options.sizes)
    if options.variant == "gloo-allreduce":
        work = Allreduce(sizes, options.rank)
    else:
        work = Ddp(sizes, options.rank, tuned=options.variant == "ddp-tuned")
    # Two iterations that do not count: DDP makes its final buckets after the first.
    cpu_begin = 0.0
    for iteration in range(options.iterations + 2):
        if iteration == 2:
            say(warm=True)
            cpu_begin = cpu_seconds()
        # Setting and checking values is Python's work on this thread alone, and none of the synchronisation.
        cpu_before = time.thread_time()
        work.prepare(iteration)
        cpu_begin += time.thread_time() - cpu_before
        dist.barrier()
        begin = time.monotonic()
        work.synchronise()
        seconds = time.monotonic() - begin
        cpu_before = time.thread_time()
        work.check(iteration, options.world)
        cpu_begin += time.thread_time() - cpu_before
        if iteration >= 2:
            say(seconds=seconds)
    dist.barrier()
    say(cpu_seconds=cpu_seconds() - cpu_begin)
    dist.destroy_process_group()


main()
