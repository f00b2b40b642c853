"""Real processes for the tests: starts them, waits with deadlines, leaves none behind. Standard library only.

Every wait has a deadline and says what it waited for; nothing sleeps to hide a race.
"""

import copy
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
BIN = BUILD / "bin"
PLUGIN = BUILD / "emulated" / "libposeidon_cuda.so"  # the emulated GPU (tests/twins/emulated_gpu)
DIGITS_JOB = ROOT / "deploy" / "jobs" / "digits.json"
LEASE_MS = 1500
# A network with running statistics, which only worker 0 and the servers' memory have between checkpoints.
NORMALISED = {"name": "normalised", "input": [1, 28, 28], "layers": [
    {"name": "conv", "type": "convolution", "outputs": 4, "kernel": 5, "stride": 2},
    {"name": "bn", "type": "batch_norm"},
    {"name": "fc", "type": "fully_connected", "outputs": 10},
    {"name": "loss", "type": "softmax_cross_entropy"}]}


def digits_job(**changes):
    """The main job with absolute paths; keyword arguments replace top-level keys (None removes one)."""
    job = absolute_paths(json.loads(DIGITS_JOB.read_text()), DIGITS_JOB.parent)
    for key, value in changes.items():
        if value is None:
            del job[key]
        else:
            job[key] = value
    return copy.deepcopy(job)


def absolute_paths(job, folder):
    for name in ("train", "test"):
        source = job["data"].get(name, {})
        for key in ("images", "labels"):
            if key in source:
                source[key] = str((folder / source[key]).resolve())
    return job


def exists(pid):
    """Not as a zombie, which whoever adopted it may not have buried yet."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(what, predicate, timeout_s=30):
    """Polls until predicate() is true; its value. Fails by name after timeout_s."""
    end = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(0.02)


def poseidon(*arguments, timeout_s=120, cwd=None):
    """Runs the operator's command to its end; CompletedProcess with text output."""
    return subprocess.run([BIN / "poseidon", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout_s, cwd=cwd, check=False)


class Process:
    """One child with a log file."""

    def __init__(self, name, arguments, log):
        self.name = name
        self.log_path = pathlib.Path(log)
        with open(self.log_path, "wb") as file:
            self.popen = subprocess.Popen([str(a) for a in arguments], stdin=subprocess.DEVNULL, stdout=file,
                                          stderr=subprocess.STDOUT)

    @property
    def pid(self):
        return self.popen.pid

    def log(self):
        return self.log_path.read_text(errors="replace")

    def signal(self, number):
        self.popen.send_signal(number)

    def crashed(self):
        """It has died of a signal that no test sends."""
        return self.popen.poll() in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)

    def wait(self, timeout_s=30):
        """The exit status (negative: the signal)."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s} s; its log:\n{self.log()}") from None

    def running(self):
        return self.popen.poll() is None

    def destroy(self):
        if self.running():
            self.popen.kill()
        self.popen.wait()


class Slowed:
    """Within it a process runs 5 ms at a time: a fast machine trains hundreds of iterations a second, and would be done
    before a test has looked. No pause is near the lease."""

    def __init__(self, process, pause_s=0.045):
        self.process, self.pause_s = process, pause_s
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.is_set():
            self.process.signal(signal.SIGSTOP)
            self.over.wait(self.pause_s)
            self.process.signal(signal.SIGCONT)
            time.sleep(0.005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Cable:
    """What others take for the coordinator: passes bytes on, until it is cut; then it holds them back, and breaks
    nothing."""

    def __init__(self, test, address):
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.whole = threading.Event()
        self.whole.set()
        self.sockets = []
        self.passed = 0  # pieces, in both directions
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        test.addCleanup(self.remove)
        threading.Thread(target=self.accept, daemon=True).start()

    def remove(self):
        self.listener.close()
        self.whole.set()
        for connection in self.sockets:
            connection.close()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                self.whole.wait()
                far = socket.create_connection(self.target, timeout=10)
            except OSError:
                return  # the end of the test
            self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                source.settimeout(None)
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                self.whole.wait()
                sink.sendall(data)
                self.passed += 1
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other direction has closed it


class ProcessTest(unittest.TestCase):
    """A test with a folder of its own; every process it starts dies with it."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-test-"))
        self.processes = []
        self.addCleanup(self._clean_up)

    def _clean_up(self):
        for process in self.processes:
            process.destroy()
        crashed = self.crashed()
        if self._failed() or crashed:
            for log in sorted(self.folder.glob("*.log")):
                print(f"---- {log.relative_to(self.folder)}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.assertFalse(crashed, "processes of this test crashed")

    def crashed(self):
        return [process.name for process in self.processes if process.crashed()]

    def _failed(self):
        """Or one of its subtests. While it is cleaned up, only its result knows."""
        result = getattr(getattr(self, "_outcome", None), "result", None)
        told = [*getattr(result, "failures", []), *getattr(result, "errors", [])]
        return any(getattr(test, "test_case", test) is self for test, _ in told)

    def start(self, name, *arguments):
        process = Process(name, arguments, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def write_job(self, job, name="job.json"):
        path = self.folder / name
        path.write_text(job if isinstance(job, str) else json.dumps(job))
        return path

    def local(self, job, workers, servers, run_dir=None, timeout_s=240):
        """`poseidon local` to its end; (CompletedProcess, run directory)."""
        run_dir = run_dir or self.folder / f"run-{random.getrandbits(32):08x}"
        path = self.write_job(job, f"{run_dir.name}.json")
        result = poseidon("local", path, "--workers", workers, "--servers", servers, "--run-dir", run_dir,
                          timeout_s=timeout_s)
        return result, run_dir

    def train(self, job, workers, servers):
        """As local, but it must succeed; the run directory."""
        result, run_dir = self.local(job, workers, servers)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return run_dir


def worker_with_gpu(folder):
    """A poseidon-worker that finds the emulated GPU: it looks for its plug-in beside itself first."""
    programs = folder / "bin"
    programs.mkdir()
    shutil.copy(BIN / "poseidon-worker", programs)
    os.symlink(PLUGIN, programs / PLUGIN.name)
    return programs / "poseidon-worker"


class Here:
    """Where a cluster's processes run: on this machine, on the loopback."""

    def address(self, _name):
        return "127.0.0.1"

    def command(self, _name, arguments):
        return arguments


class OnHosts:
    """Each on a host of its own of a network as in bench/common/hosts.py. Host 0: the coordinator; then servers, then
    workers."""

    def __init__(self, network, servers):
        self.network = network
        self.first = {"coordinator": 0, "server": 1, "worker": 1 + servers}

    def host(self, name):
        kind, _, number = name.partition("-")
        return self.first[kind] + (int(number) if kind != "coordinator" else 0)

    def address(self, name):
        return self.network.address(self.host(name))

    def command(self, name, arguments):
        return self.network.command(self.host(name), arguments)


class Cluster:
    """A coordinator, servers and workers, started by hand. `place`: where, by their names; the operator's commands run
    where the coordinator does. `proofs`: the options with which a role (or "operator") proves who it is; `options`: of
    each daemon; `of_coordinator`: of that one; `keeps_job`: whether the coordinator leaves its job to the next one when
    it is stopped."""

    def __init__(self, test, lease_ms=LEASE_MS, place=None, metrics=False, status=None, proofs=lambda role: [], options=(),
                 of_coordinator=(), keeps_job=False):
        self.test = test
        self.place = place or Here()
        self.proofs = proofs
        self.servers = []  # (process, address) ...
        self.server_names = []  # ... and their names, which are their data directories'
        self.workers = []
        self.lease_ms = lease_ms
        self.options = [*options, *(["--metrics-listen", "127.0.0.1:0"] if metrics else [])]
        self.of_coordinator = [*of_coordinator, *(["--status-listen", status] if status else []),
                               *(["--job-on-stop", "keep"] if keeps_job else [])]
        self.address = f"{self.place.address('coordinator')}:0"
        self.coordinators = []
        self.restart_coordinator()

    def restart_coordinator(self):
        """A new process on the same state directory and port; the earlier one is dead."""
        name = f"coordinator-{len(self.coordinators)}" if self.coordinators else "coordinator"
        self.coordinator, self.address = self._listening(
            name, "poseidon-coordinator", "--listen", self.address, "--state-dir", self.test.folder / "state",
            "--run-root", self.test.folder, "--lease-ms", self.lease_ms, "--heartbeat-ms", self.lease_ms // 5, *self.options, *self.of_coordinator,
            *self.proofs("coordinator"))
        self.coordinators.append(self.coordinator)

    def recoveries(self):
        """(the iteration at which it began, finished iterations that it made again) of each later epoch of the cluster's first
        job, by the coordinators' logs."""
        found = []
        for begun, again in re.findall(r"epoch \d+ begins at iteration (\d+) |(\d+) finished iterations are made again",
                                       "".join(coordinator.log() for coordinator in self.coordinators)):
            if begun:
                found.append((int(begun), 0))
            else:
                found[-1] = found[-1][0], int(again)
        self.test.assertEqual(bool(found), self.status()["epoch"] > 1, "whether epochs began, by the logs and by the status")
        return found

    def assert_nearly_all_was_kept(self, iteration):
        """The job has recovered since so many iterations were complete, and made one of them again at most."""
        found = self.recoveries()
        self.test.assertTrue(found, "the job did not recover: was it done before?")
        self.test.assertGreaterEqual(min(begun for begun, _ in found), iteration - 1, found)
        self.test.assertLessEqual(max(made for _, made in found), 1, found)

    def start(self, name, program, *arguments):
        return self.test.start(name, *self.place.command(name, [BIN / program, *arguments]))

    def poseidon(self, *arguments, timeout_s=120):
        """As poseidon(), where the coordinator is."""
        command = self.place.command("coordinator", [BIN / "poseidon", *arguments, "--coordinator", self.address,
                                                     *self.proofs("operator")])
        return subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout_s, check=False)

    def _listening(self, name, program, *arguments):
        address_file = self.test.folder / f"{name}.address"
        address_file.unlink(missing_ok=True)  # of an earlier cluster in this test
        process = self.start(name, program, *arguments, "--address-file", address_file)
        wait_for(f"{name} to listen", lambda: address_file.exists() or not process.running())
        self.test.assertTrue(address_file.exists(), process.log())
        return process, address_file.read_text().strip()

    def add_server(self, *arguments, name=None):
        name = name or f"server-{len(self.servers)}"
        self.server_names.append(name)
        process, address = self._listening(name, "poseidon-server", "--coordinator", self.address, "--listen",
                                           f"{self.place.address(name)}:0", "--data-dir", self.test.folder / name,
                                           *self.options, *self.proofs("server"), *arguments)
        self.servers.append((process, address))
        return process

    def restart_server(self, index, *arguments):
        """A new process with the old one's data directory."""
        name = self.server_names[index]
        process, address = self._listening(name, "poseidon-server", "--coordinator", self.address, "--listen",
                                           f"{self.place.address(name)}:0", "--data-dir", self.test.folder / name,
                                           *self.options, *self.proofs("server"), *arguments)
        self.servers[index] = (process, address)
        return process

    def add_worker(self, *arguments, threads=1, program="poseidon-worker", name=None):
        name = name or f"worker-{len(self.workers)}"
        process = self.start(name, program, "--coordinator", self.address, "--threads", threads,
                             *self.options, *self.proofs("worker"), *arguments)
        self.workers.append(process)
        return process

    def restart_worker(self, index, *arguments):
        """Another process in its place; it has nothing of the old one's."""
        del self.workers[index]
        process = self.add_worker(*arguments)
        self.workers.insert(index, self.workers.pop())
        return process

    def add(self, workers, servers):
        for _ in range(servers):
            self.add_server()
        for _ in range(workers):
            self.add_worker()
        return self

    def submit(self, job, *arguments, run_dir=None, timeout_s=120):
        path = self.test.write_job(job, f"job-{random.getrandbits(32):08x}.json")
        extra = ["--run-dir", run_dir] if run_dir else []
        return self.poseidon("submit", path, *extra, *arguments, timeout_s=timeout_s)

    def status(self):
        result = self.poseidon("status", "--json")
        self.test.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def wait_for_state(self, *states, timeout_s=60):
        def reached():
            status = self.status()
            return status if status["state"] in states else None

        return wait_for(f"the job to be {' or '.join(states)}", reached, timeout_s)

    def wait_for_iteration(self, iteration, timeout_s=60):
        """How many are complete by then."""
        def reached():
            complete = self.status()["iteration"]
            return (complete,) if complete >= iteration else None

        return wait_for(f"iteration {iteration}", reached, timeout_s)[0]


def metrics(run_dir):
    """(lines of iterations, lines of tests)."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [l for l in lines if "loss" in l], [l for l in lines if "test_loss" in l]


def furthest(run_dir):
    """The last iteration that metrics.jsonl has, or -1."""
    path = run_dir / "metrics.jsonl"
    return max(map(int, re.findall(r'"iteration":(\d+),"loss"', path.read_text())), default=-1) if path.exists() else -1


def wait_for_line(run_dir, iteration, timeout_s=60):
    """Cluster.wait_for_iteration by the file, which tells it dozens of iterations sooner than a command on a fast
    machine."""
    def reached():
        complete = furthest(run_dir) + 1
        return (complete,) if complete >= iteration else None

    return wait_for(f"the line of iteration {iteration}", reached, timeout_s)[0]


def losses(run_dir):
    return [line["loss"] for line in metrics(run_dir)[0]]


def idx_bytes(magic_dimensions, payload):
    """A small IDX file (unsigned bytes)."""
    header = bytes([0, 0, 8, len(magic_dimensions)]) + b"".join(struct.pack(">I", d) for d in magic_dimensions)
    return header + payload


def write_gzip(path, data):
    with gzip.open(path, "wb") as file:
        file.write(data)



