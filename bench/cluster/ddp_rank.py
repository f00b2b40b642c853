"""One rank of PyTorch's DDP over Gloo on an emulated device, in a process of its own (peers.py starts it). Says lines of
JSON on stdout: {"end", "cpu_s"} when an iteration has ended, by the clock that all hosts share.

The module is in emulated_module.py; buckets, hooks and sums are DDP's and Gloo's own. An iteration ends when all
gradients are reduced and the device has done the optimizer's step.

Without gradient_as_bucket_view DDP writes the results back to the gradients, which would double the memory: there the
ranks share them, of even and of odd iterations apart, so that nobody writes what another one still reads.
"""

import datetime
import inspect

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import device_profile
import low_rank
from emulated_module import Checks, Rank, Tensors, parser, private_memory, shared_memory

VARIANTS = ["ddp", "ddp-tuned", "ddp-tuned-fp16", "ddp-powersgd"]


def make_rank(options, profile):
    if options.variant == "ddp":
        shared = shared_memory(options.shared)
        gradients = [Tensors(profile, shared, number * profile.parameter_bytes) for number in (1, 2)]
    else:
        gradients = [Tensors(profile, private_memory(profile))]
    compressed = options.variant == "ddp-powersgd"
    checks = Checks(profile, options.rank, options.world, shared=options.variant == "ddp",
                    # What is compressed is checked as it travels.
                    left_out=lambda shape: compressed and low_rank.compressed(shape, options.powersgd_rank))
    return Rank(profile, options, gradients, checks)


def make_ddp(options, profile, rank):
    choice = {}
    if options.variant != "ddp":
        # bucket_cap_mb: 25 is today's default, said explicitly. gradient_as_bucket_view: gradients stay in the buckets
        # afterwards, which saves the copy back.
        choice = {"bucket_cap_mb": 25, "gradient_as_bucket_view": True}
    if options.variant == "ddp-powersgd":
        # One: see low_rank.py. The first bucket has a limit of its own.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 2 * profile.parameter_bytes
        choice["bucket_cap_mb"] = 1 + 2 * profile.parameter_bytes // 2**20
    # Parameters are not sent round at the start: they are equal, nobody reads them, and no iteration has to do with it.
    if "init_sync" in inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters:
        choice["init_sync"] = False
    else:  # PyTorch 1.13 has no such option
        torch.nn.parallel.distributed._sync_module_states = lambda **_: None
    ddp = torch.nn.parallel.DistributedDataParallel(rank.module, **choice)
    if options.variant == "ddp-tuned-fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif options.variant == "ddp-powersgd":
        ddp.register_comm_hook(low_rank.Hook(profile, rank.timeline, options.powersgd_rank), low_rank.Hook.reduce)
    return ddp


def main():
    arguments = parser()
    arguments.add_argument("--variant", required=True, choices=VARIANTS)
    arguments.add_argument("--master", required=True)
    arguments.add_argument("--powersgd-rank", type=int, required=True)
    arguments.add_argument("--timeout-s", type=int, required=True)
    options = arguments.parse_args()
    profile = device_profile.load(options.profile)
    dist.init_process_group("gloo", init_method=f"tcp://{options.master}", rank=options.rank,
                            world_size=options.world, timeout=datetime.timedelta(seconds=options.timeout_s))
    rank = make_rank(options, profile)
    ddp = make_ddp(options, profile, rank)
    dist.barrier()
    rank.train(options, lambda chain: ddp(chain).backward())
    dist.barrier()
    dist.destroy_process_group()


main()
