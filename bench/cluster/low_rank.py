"""PowerSGD's traffic with the arithmetic on the emulated device.

PyTorch's own hook cannot be taken: it computes on the processor, which is no match for a device, and over Gloo it works
with one bucket only: with several, callbacks begin collectives in an order of their own on every rank, and Gloo
ends the process ("op.preamble.length <= op.nbytes", PyTorch 1.13 and 2.15). So this hook does what that one does, by
default, in one bucket after the backward pass: reduces the tensors that do not shrink enough, then P of all
others, then Q. The device is charged for moving each compressed gradient through its memory as often as that hook does.
"""

import math

import torch
import torch.distributed as dist

from device_profile import ELEMENT_BYTES

MIN_COMPRESSION_RATE = 2  # that hook's default

# How often that hook moves the gradients through memory, error feedback included. Before P is sent: adds the error (reads
# two, writes one), keeps a copy (two), multiplies (one). Before Q: multiplies (one). At the end: the
# product (one), the new error (reads two, writes one). Orthogonalisation and operations are not charged, to its favour.
PASSES_BEFORE_P = 6
PASSES_BEFORE_Q = 1
PASSES_AT_END = 4


def compressed(shape, rank):
    """Whether that hook compresses a tensor of this shape."""
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows + columns) * min(rows, columns, rank) * MIN_COMPRESSION_RATE < rows * columns


def sizes(profile, rank):
    """Elements of all P, of all Q, and of what they stand for."""
    p = q = elements = 0
    for layer in profile.layers:
        for shape in layer.tensors:
            if compressed(shape, rank):
                rows, columns = shape[0], math.prod(shape[1:])
                p += rows * min(rows, columns, rank)
                q += columns * min(rows, columns, rank)
                elements += rows * columns
    return p, q, elements


class Hook:
    def __init__(self, profile, timeline, rank):
        p, q, elements = sizes(profile, rank)
        self._timeline = timeline
        self._pass_s = elements * ELEMENT_BYTES / profile.device_bytes_per_s
        self._rank = rank
        self._p, self._q = torch.zeros(p), torch.zeros(q)

    def _compute(self, passes):
        self._timeline.inputs_are_there()
        self._timeline.compute(passes * self._pass_s)

    @staticmethod
    def _reduce_and_check(values):
        if values.numel() == 0:
            return
        values.zero_()
        values[0] = values[-1] = dist.get_rank() + 1
        dist.all_reduce(values)
        expected = dist.get_world_size() * (dist.get_world_size() + 1) / 2
        if values[0].item() != expected or values[-1].item() != expected:
            raise SystemExit(f"wrong sum: the ends of P or Q are {values[0].item()} and {values[-1].item()} and should be "
                             f"{expected}")

    def reduce(self, bucket):
        """DDP calls it when the bucket's gradients are there; done when it returns."""
        if not bucket.is_last() or bucket.index() != 0:
            raise SystemExit("the gradients are in several buckets")
        rest = [gradient for gradient in bucket.gradients() if not compressed(gradient.shape, self._rank)]
        self._compute(PASSES_BEFORE_P)
        if rest:
            together = torch.cat([gradient.view(-1) for gradient in rest])
            dist.all_reduce(together)
            together.div_(dist.get_world_size())
            for gradient, reduced in zip(rest, together.split([gradient.numel() for gradient in rest])):
                gradient.copy_(reduced.view_as(gradient))
        self._reduce_and_check(self._p)
        self._compute(PASSES_BEFORE_Q)
        self._reduce_and_check(self._q)
        self._compute(PASSES_AT_END)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
