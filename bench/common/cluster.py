"""A real cluster whose daemons are on hosts of their own (hosts.py), and one job on it."""

import dataclasses
import json
import pathlib
import subprocess
import time
import typing

from hosts import NamespaceHosts
from processes import ProcessError, Processes

POLL_S = 0.002
WORKER = ("poseidon-worker", "--threads", "1")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Host 0 is the coordinator's, then come the workers' and the servers', unless those are with the workers."""

    workers: int
    servers: int
    servers_with_workers: bool
    mbit: typing.Optional[float]    # of every card, each way; None: not shaped
    congestion_control: typing.Optional[str] = None
    slow: float = 1                 # the factor of slow motion
    workers_per_host: int = 1

    @property
    def worker_hosts(self):
        return -(-self.workers // self.workers_per_host)

    def worker_host(self, index):
        return 1 + index // self.workers_per_host

    def server_host(self, index):
        return 1 + (index % self.worker_hosts if self.servers_with_workers else self.worker_hosts + index)

    @property
    def hosts(self):
        return 1 + self.worker_hosts + (0 if self.servers_with_workers else self.servers)


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


class Cluster:
    """`with Cluster(layout, programs, folder, 120) as cluster:` all daemons run inside and have ended after it.

    `worker` is the command of a worker but for where it connects and listens (a part that is a function gets the worker's
    number), `coordinator` and `server` are more options of those. `timeout_s` is for all of it."""

    def __init__(self, layout, programs, folder, timeout_s, worker=WORKER, coordinator=(),
                 server=()):
        self.layout = layout
        self.folder = folder
        self._programs = programs
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._worker = worker
        self._coordinator_options = coordinator
        self._server_options = server
        self.hosts = NamespaceHosts(layout.hosts, layout.mbit, layout.congestion_control, layout.slow)
        self._processes = Processes(folder, timeout_s)
        self._started = []
        self._submit = None
        self._coordinator = None
        self.run_dir = folder / "run"
        self.metrics = self.run_dir / "metrics.jsonl"

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hosts.__enter__()
        try:
            self._processes.__enter__()
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self._processes.__exit__()
        finally:
            self.hosts.__exit__()

    def _start(self, name, host, program, *arguments):
        process = self._processes.start(name, self.hosts.command(host, [self._programs / program, *arguments]))
        self._started.append(process)
        return process

    def _start_listening(self, name, host, program, *arguments):
        address_file = self.folder / f"{name}.address"
        self._start(name, host, program, "--listen", f"{self.hosts.address(host)}:0", "--address-file", address_file,
                    *arguments)
        self.wait_for(f"{name} to listen", address_file.exists)
        return address_file.read_text().strip()

    def _start_all(self):
        self._coordinator = self._start_listening("coordinator", 0, "poseidon-coordinator", "--state-dir",
                                                  self.folder / "state", "--run-root", self.run_dir,
                                                  *self._coordinator_options)
        for index in range(self.layout.servers):
            self._start_listening(f"server-{index}", self.layout.server_host(index), "poseidon-server", "--coordinator",
                                  self._coordinator, "--data-dir", self.folder / f"server-{index}", *self._server_options)
        for index in range(self.layout.workers):
            host = self.layout.worker_host(index)
            program, *arguments = (part(index) if callable(part) else part for part in self._worker)
            self._start(f"worker-{index}", host, program, "--coordinator", self._coordinator,
                        "--listen", f"{self.hosts.address(host)}:0", *arguments)

    def wait_for(self, what, predicate, poll_s=POLL_S):
        while not predicate():
            if time.monotonic() > self._deadline:
                raise ProcessError(f"waited {self._timeout_s} s in vain for {what}")
            for process in self._started:
                process.check_running()
            if self._submit is not None:
                self._submit.check_not_failed()
            time.sleep(poll_s)

    def submit(self, job):
        job_file = self.folder / "job.json"
        job_file.write_text(json.dumps(job))
        self._submit = self._processes.start("submit", self.hosts.command(0, [
            self._programs / "poseidon", "submit", job_file, "--coordinator", self._coordinator, "--workers",
            self.layout.workers, "--servers", self.layout.servers, "--run-dir", self.run_dir, "--wait"]))

    def wait_for_iteration(self, count, poll_s=POLL_S):
        """Until so many are done; the moment at which that was seen, `poll_s` too late at most."""
        self.wait_for(f"iteration {count}", lambda: _lines(self.metrics) >= count, poll_s)
        return time.monotonic()

    def card_bytes(self):
        return [self.hosts.card_bytes(host) for host in range(self.hosts.count)]

    def shape(self, mbit):
        for host in range(self.hosts.count):
            self.hosts.shape(host, mbit)

    def cpu_seconds(self, kind=""):
        """Of all daemons until now, or of those of this kind ("server")."""
        return sum(process.cpu_seconds() for process in self._started if process.name.startswith(kind))

    def check_not_failed(self):
        """Everything runs, or has ended well; and there is time left."""
        for process in self._started:
            process.check_not_failed()
        if time.monotonic() > self._deadline:
            raise ProcessError(f"the run did not end within {self._timeout_s} s")

    def status(self):
        """What `poseidon status --json` says."""
        command = self.hosts.command(0, [str(self._programs / "poseidon"), "status", "--coordinator", self._coordinator,
                                         "--json"])
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ProcessError(f"poseidon status: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def plan(self):
        """The plan in force."""
        return json.loads((self.run_dir / "plan.json").read_text())

    def metrics_line(self, number):
        return json.loads(pathlib.Path(self.metrics).read_text().splitlines()[number])

    def finish(self):
        """Waits for the job's end, which must be a success."""
        self._submit.finish()


def per_iteration(before, after, iterations, direction):
    """What each card sent (direction 0) or received (1) between two readings of card_bytes."""
    return [(new[direction] - old[direction]) / iterations for old, new in zip(before, after)]
