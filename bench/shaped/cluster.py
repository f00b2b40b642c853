"""One job on a real cluster whose daemons are on hosts of their own: time per iteration, bytes per host."""

import dataclasses
import json
import time
import typing

from hosts import NamespaceHosts
from processes import ProcessError, Processes

WARM_UP = 2         # iterations that are not measured: connections open, buffers and congestion windows grow
POLL_S = 0.002
TIMEOUT_S = 120     # of one job


@dataclasses.dataclass(frozen=True)
class Layout:
    """Host 0 is the coordinator's, then come the workers' and the servers', unless those are with the workers."""

    workers: int
    servers: int
    servers_with_workers: bool
    mbit: float
    congestion_control: typing.Optional[str] = None

    def worker_host(self, index):
        return 1 + index

    def server_host(self, index):
        return 1 + index % self.workers if self.servers_with_workers else 1 + self.workers + index

    @property
    def hosts(self):
        return 1 + self.workers + (0 if self.servers_with_workers else self.servers)


@dataclasses.dataclass(frozen=True)
class Measurement:
    seconds: list            # between the ends of successive iterations, as the coordinator saw them
    images_per_s: float      # as the coordinator said at the last one: a window of 5 s
    sent_bytes: list         # per host and iteration
    received_bytes: list
    schemes: dict            # per layer, from the plan in force
    predicted: typing.Optional[dict]    # by the plan in force; None where nothing was measured before the job
    calibration: typing.Optional[dict]  # likewise

    @property
    def mean_s(self):
        return sum(self.seconds) / len(self.seconds)

    def busiest_bytes(self):
        """Of one direction of one card."""
        return max(self.sent_bytes + self.received_bytes)


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait_for(what, predicate, processes, deadline):
    while not predicate():
        if time.monotonic() > deadline:
            raise ProcessError(f"waited {TIMEOUT_S} s in vain for {what}")
        for process in processes:
            process.check_running()
        time.sleep(POLL_S)


def run(layout, programs, job, measured, folder):
    """`job` asks for WARM_UP + measured + 1 iterations: what happens at its end is not measured either."""
    folder.mkdir(parents=True)
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job))
    deadline = time.monotonic() + TIMEOUT_S
    with NamespaceHosts(layout.hosts, layout.mbit, layout.congestion_control) as hosts, Processes(folder, TIMEOUT_S) as processes:
        started = []

        def start(name, host, program, *arguments):
            process = processes.start(name, hosts.command(host, [programs / program, *arguments]))
            started.append(process)
            return process

        def start_listening(name, host, program, *arguments):
            address_file = folder / f"{name}.address"
            start(name, host, program, "--listen", f"{hosts.address(host)}:0", "--address-file", address_file, *arguments)
            _wait_for(f"{name} to listen", address_file.exists, started, deadline)
            return address_file.read_text().strip()

        coordinator = start_listening("coordinator", 0, "poseidon-coordinator", "--state-dir", folder / "state")
        for index in range(layout.servers):
            start_listening(f"server-{index}", layout.server_host(index), "poseidon-server", "--coordinator", coordinator,
                            "--data-dir", folder / f"server-{index}")
        for index in range(layout.workers):
            start(f"worker-{index}", layout.worker_host(index), "poseidon-worker", "--coordinator", coordinator,
                  "--listen", f"{hosts.address(layout.worker_host(index))}:0", "--threads", "1")
        run_dir = folder / "run"
        submit = processes.start("submit", hosts.command(0, [
            programs / "poseidon", "submit", job_file, "--coordinator", coordinator, "--workers", layout.workers,
            "--servers", layout.servers, "--run-dir", run_dir, "--wait"]))

        metrics = run_dir / "metrics.jsonl"
        ends = []
        for count in range(WARM_UP, WARM_UP + measured + 1):
            _wait_for(f"iteration {count}", lambda least=count: _lines(metrics) >= least, started, deadline)
            ends.append(time.monotonic())
            if count == WARM_UP:
                before = [hosts.card_bytes(host) for host in range(hosts.count)]
        after = [hosts.card_bytes(host) for host in range(hosts.count)]
        submit.finish()

        def per_iteration(direction):
            return [(new[direction] - old[direction]) / measured for old, new in zip(before, after)]

        plan = json.loads((run_dir / "plan.json").read_text())
        last = json.loads(metrics.read_text().splitlines()[WARM_UP + measured - 1])
        return Measurement(seconds=[b - a for a, b in zip(ends, ends[1:])], images_per_s=last["images_per_s"],
                           sent_bytes=per_iteration(0), received_bytes=per_iteration(1),
                           schemes={layer["name"]: layer["scheme"] for layer in plan["layers"]},
                           predicted=plan.get("predicted"), calibration=plan.get("calibration"))
