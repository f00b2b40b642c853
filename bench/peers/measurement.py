"""What a variant is asked to do and what it answers."""

import dataclasses
import pathlib

from processes import Processes


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of one variant."""

    hosts: object            # hosts.NamespaceHosts or hosts.LoopbackHosts
    sizes: pathlib.Path      # lines NAME ELEMENTS ...
    iterations: int          # measured, after one that is not
    folder: pathlib.Path     # for the logs of this run
    timeout_s: int           # for the whole run
    node: pathlib.Path       # our poseidon-bench-node
    python: str = "python3"  # an interpreter that has torch
    mpi_program: pathlib.Path = None
    ps_lite: pathlib.Path = None

    def processes(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        return Processes(self.folder, self.timeout_s)


@dataclasses.dataclass(frozen=True)
class Measurement:
    seconds: list       # per measured iteration, of the slowest host
    cpu_seconds: float  # of all processes, over all measured iterations
