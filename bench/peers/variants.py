"""All variants by name: what each needs and how it is run."""

import dataclasses
import typing

import mpi_variant
import open_mpi
import poseidon_variant
import ps_lite_variant
import torch_gloo
import torch_variant

NAMES = ["poseidon", "ddp", "ddp-tuned", "gloo-allreduce", "mpi", "mpi-segmented", "ps-lite"]


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    why_not: typing.Optional[str]  # it is skipped with this line
    run: typing.Callable           # (job, bytes of all parameters) -> Measurement


def _of_poseidon(node):
    return None if node.is_file() else (
        f"{node} is missing: cmake --preset release && cmake --build --preset release --target poseidon-bench-node")


def make(names, node, python, ps_lite):
    """The variants of these names, in this order. What they need is looked for once."""
    torch_why_not = torch_gloo.why_not(python) if {"ddp", "ddp-tuned", "gloo-allreduce"} & set(names) else None
    mpi_why_not = open_mpi.why_not() if {"mpi", "mpi-segmented"} & set(names) else None
    ps_lite_why_not = None if ps_lite else "give the path of a built test_benchmark with --ps-lite"

    def torch(name):
        return Variant(name, torch_why_not, lambda job, _: torch_variant.run(job, name))

    known = {
        "poseidon": Variant("poseidon", _of_poseidon(node), lambda job, _: poseidon_variant.run(job)),
        "ddp": torch("ddp"),
        "ddp-tuned": torch("ddp-tuned"),
        "gloo-allreduce": torch("gloo-allreduce"),
        "mpi": Variant("mpi", mpi_why_not, lambda job, _: mpi_variant.run(job, segmented=False)),
        "mpi-segmented": Variant("mpi-segmented", mpi_why_not, lambda job, _: mpi_variant.run(job, segmented=True)),
        "ps-lite": Variant("ps-lite", ps_lite_why_not, ps_lite_variant.run),
    }
    return [known[name] for name in names]
