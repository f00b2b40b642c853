"""What the processes that time PyTorch's DDP share: gradients that are there already, and words on stdout."""

import json
import resource

import torch


def say(**message):
    """One line of JSON for whoever started this process."""
    print(json.dumps(message), flush=True)


def cpu_seconds():
    """Of this process, all its threads, since it began."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class HandOver(torch.autograd.Function):
    """Passes `chain` on; in the backward pass `parameter` gets `gradient`, which is there already."""

    @staticmethod
    def forward(ctx, chain, parameter, gradient):  # pylint: disable=arguments-differ,unused-argument
        ctx.gradient = gradient
        return chain.clone()

    @staticmethod
    def backward(ctx, chain):  # pylint: disable=arguments-differ
        # A new tensor on the same memory, which autograd takes as .grad without a copy.
        return chain, ctx.gradient.detach(), None
