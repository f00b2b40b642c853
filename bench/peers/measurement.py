"""What a variant is asked to do and what it answers."""

import dataclasses
import pathlib

from processes import Processes


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of one variant."""

    hosts: object            # hosts.NamespaceHosts or hosts.LoopbackHosts
    sizes: pathlib.Path      # lines NAME ELEMENTS ...
    iterations: int          # measured, after those that are not
    folder: pathlib.Path     # for the logs of this run
    timeout_s: int           # for the whole run
    node: pathlib.Path       # our poseidon-bench-node
    python: str = "python3"  # an interpreter that has torch
    mpi_program: pathlib.Path = None
    ps_lite: pathlib.Path = None
    source: pathlib.Path = pathlib.Path(__file__).resolve().parent

    def processes(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        return Processes(self.folder, self.timeout_s)


@dataclasses.dataclass(frozen=True)
class Measurement:
    seconds: list       # per measured iteration, of the slowest host
    cpu_seconds: float  # of all processes, over all measured iterations; None: not known


def collect(ranks, iterations):
    """From processes that say {"warm"}, {"seconds"} per iteration and {"cpu_seconds"}, and have a barrier of their
    own before each iteration."""
    for rank in ranks:
        rank.expect("warm")
    seconds = [max(rank.expect("seconds")["seconds"] for rank in ranks) for _ in range(iterations)]
    cpu = sum(rank.expect("cpu_seconds")["cpu_seconds"] for rank in ranks)
    for rank in ranks:
        rank.finish()
    return Measurement(seconds, cpu)
