"""`poseidon doctor` names the guilty one, and nobody else: a slow link, a slow worker, a slow disk, a network that is too small."""

import contextlib
import json
import os
import pathlib
import re
import signal
import sys
import threading
import time
import unittest

from cluster import Cluster, OnHosts, ProcessTest, digits_job, wait_for

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "common"))
import hosts  # noqa: E402  (the benchmark's network)

WORKERS, SERVERS = 2, 2
SLOW_MBIT = 50
BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
CGROUP2 = pathlib.Path("/sys/fs/cgroup")
SLOW_DISK_BYTES_PER_S = 1_000_000
LOOKS = 4
OTHERS_CORES = 0.3  # that programs beside the cluster use on average, from which on they may disturb a look
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What accuses one node. (A machine that others use too may lack cores, and doctor may say so.)
ACCUSATIONS = {"link", "worker", "disk", "server", "input"}


def job(**changes):
    """LeNet with a batch that takes long enough to hide what a whole network card needs for its parameters."""
    the_job = digits_job(iterations=1_000_000, test_every_iterations=0, batch_size=128,
                         sync={"scheme": "ps", "cost": "bytes", "chunk_bytes": 131072}, checkpoint={"every_iterations": 0})
    the_job.update(changes)
    return the_job


class DoctorTest(ProcessTest):
    def ask(self, *arguments, until, also=None):
        """All findings, but that cores are missing. It is asked until the accusations are `until` ([(kind, "worker 1")]) and
        there is a finding of the kind `also`. The first answer has to be right, unless doctor says that cores are missing,
        or other programs used some meanwhile, which doctor may rightly take for a slower worker: then times scatter, and it
        is asked `LOOKS` times. If something else is the larger limit there, that is said."""
        for look in range(LOOKS):
            since = self.processor_times()
            findings, said = self.ask_once(*arguments)
            now, machine, ours = (later - earlier for later, earlier in zip(self.processor_times(), since))
            others = (machine - ours) / now
            kinds = [f["kind"] for f in findings]
            accused = [(f["kind"], f["guilty"].split(" (")[0]) for f in findings if f["kind"] in ACCUSATIONS]
            self.cores_were_missing = "cpu" in kinds
            is_right = accused == until and (also is None or also in kinds)
            if is_right or not (self.cores_were_missing or others > OTHERS_CORES):
                break
            print(f"    other programs use {others:.1f} cores: look {look + 1} of {LOOKS}")
        self.assertEqual(accused, until, said)
        if also and also not in kinds and self.cores_were_missing:
            self.skipTest(f"NOT TRIED: others use the cores of this machine; doctor saw no {also}")
        return [f for f in findings if f["kind"] != "cpu"]

    def processor_times(self):
        """Seconds: the time, and what the machine's processors and the cluster's daemons have worked until then."""
        fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        machine = sum(int(ticks) for place, ticks in enumerate(fields) if place not in (3, 4))  # idle, and waiting for a disk
        ours = 0
        for process in (self.cluster.coordinator, *(server for server, _ in self.cluster.servers), *self.cluster.workers):
            stat = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ours += int(stat[11]) + int(stat[12])
        return time.monotonic(), machine / TICKS_PER_S, ours / TICKS_PER_S

    def assert_costs(self, finding, share):
        if self.cores_were_missing:
            self.skipTest("NOT TRIED: others use the cores of this machine, so that computing takes most of each iteration")
        self.assertGreater(finding["cost_share"], share)

    def ask_once(self, *arguments):
        asked = self.cluster.poseidon("doctor", "--json", *arguments)
        self.assertEqual(asked.returncode, 0, asked.stderr)
        told = json.loads(asked.stdout)
        for finding in told["findings"]:
            print(f"    {finding['kind']} {finding['cost_share']:.0%}: {finding['what']}\n      -> {finding['remedy']}")
        return told["findings"], asked.stdout

    def submit(self, the_job):
        submitted = self.cluster.submit(the_job, "--workers", WORKERS, "--servers", SERVERS, run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stdout + submitted.stderr)
        self.cluster.wait_for_iteration(10)

    def name_of(self, worker):
        """Ranks go by address, processes by the order in which they were started."""
        return "worker " + re.search(r"worker (\d) is ready", self.cluster.workers[worker].log()).group(1)

    def name_of_server(self, server):
        address = self.cluster.servers[server][1]
        rank, = (node["rank"] for node in self.cluster.status()["servers"] if node["address"] == address)
        return f"server {rank}"

    def iterations_pass(self, count):
        """So that what is seen is of now."""
        self.cluster.wait_for_iteration(self.cluster.status()["iteration"] + count)


@unittest.skipIf(hosts.why_not(), f"SKIPPED: no namespaces here: {hosts.why_not()}")
class Shaped(DoctorTest):
    def setUp(self):
        super().setUp()
        hosts.remove_stale()
        self.network = hosts.NamespaceHosts(1 + SERVERS + WORKERS)
        try:
            self.network.__enter__()
        except hosts.HostsError as error:
            self.skipTest(str(error))
        self.addCleanup(self.network.__exit__)
        self.places = OnHosts(self.network, SERVERS)
        self.cluster = Cluster(self, lease_ms=3000, place=self.places)
        for _ in range(SERVERS):
            self.cluster.add_server()
        for index in range(WORKERS):
            self.cluster.add_worker("--listen", f"{self.places.address(f'worker-{index}')}:0")
        self.submit(job())

    def test_one_after_the_other(self):
        with self.subTest("healthy"):
            self.ask(until=[])
        with self.subTest("the link of a worker"), self.slow("worker-0"):
            findings = self.ask("--iterations", 5, until=[("link", self.name_of(0))])
            self.assertEqual(findings[0]["kind"], "link")
            self.assert_costs(findings[0], 0.4)
        with self.subTest("the link of a server"), self.slow("server-1"):
            self.ask("--iterations", 5, until=[("link", self.name_of_server(1))])
        with self.subTest("a worker"), self.stopped_now_and_then(self.cluster.workers[1]):
            self.ask("--iterations", 10, until=[("worker", self.name_of(1))])
        with self.subTest("a worker, in bursts"), self.stopped_for_iterations(self.cluster.workers[1]):
            findings = self.ask("--iterations", 30, until=[("worker", self.name_of(1))])
            self.assertNotIn("network", [f["kind"] for f in findings])
        with self.subTest("the network"), self.slow(*(f"{role}-{i}" for role in ("server", "worker") for i in range(2))):
            network, = (f for f in self.ask("--iterations", 5, until=[], also="network") if f["kind"] == "network")
            self.assertRegex(network["remedy"], r"it takes about [\d.]+ [GM]bit/s per node")
            self.assertIn('sync.wire_dtype "bf16"', network["remedy"])
            self.assertRegex(network["remedy"], r"fully connected layers \(ip1, ip2\)")
            self.assertRegex(network["remedy"], r"a batch of about \d+ in place of 128")
            self.assert_costs(network, 0.3)

    @contextlib.contextmanager
    def slow(self, *names):
        for name in names:
            self.network.shape(self.places.host(name), SLOW_MBIT)
        try:
            self.iterations_pass(3)
            yield
        finally:
            for name in names:
                self.network.unshape(self.places.host(name))
            self.iterations_pass(3)

    def stopped_for_iterations(self, worker):
        """Two thirds of the time, too, but so long at once that most iterations are as quick as ever."""
        begun, first = time.monotonic(), self.cluster.status()["iteration"]
        self.iterations_pass(10)
        iteration_s = (time.monotonic() - begun) / (self.cluster.status()["iteration"] - first)
        # The lease lasts 3 s.
        return self.stopped_now_and_then(worker, stopped_s=min(6 * iteration_s, 1.0), runs_s=min(3 * iteration_s, 0.5))

    @contextlib.contextmanager
    def stopped_now_and_then(self, worker, stopped_s=0.06, runs_s=0.03):
        """Two thirds of the time."""
        over = threading.Event()

        def stop_and_go():
            while not over.is_set():
                worker.signal(signal.SIGSTOP)
                over.wait(stopped_s)
                worker.signal(signal.SIGCONT)
                over.wait(runs_s)

        thread = threading.Thread(target=stop_and_go)
        thread.start()
        try:
            self.iterations_pass(3)
            yield
        finally:
            over.set()
            thread.join()


def controllers_of_version_2():
    file = CGROUP2 / "cgroup.controllers"
    return file.read_text().split() if file.exists() else []


class Throttle:
    """A group of processes whose writes to one disk are slow; of version 1 of cgroups where that has disks, else of 2."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        self._disk = f"{os.major(device)}:{os.minor(device)}"
        self._is_v1 = (BLKIO / "blkio.throttle.write_bps_device").exists()
        self._root = BLKIO if self._is_v1 else CGROUP2
        self._group = self._root / f"poseidon-test-{os.getpid()}"

    def why_not(self):
        """Why they cannot be slowed; None where they can."""
        if not self._is_v1 and "io" not in controllers_of_version_2():
            return "no cgroup here throttles disks"
        if not os.access(self._root, os.W_OK):
            return "cgroups need root"
        if self._disk.startswith("0:") or not pathlib.Path(f"/sys/dev/block/{self._disk}").exists():
            return "the tests' folder is on no disk"
        return None

    def add(self, process):
        if not self._is_v1:
            (CGROUP2 / "cgroup.subtree_control").write_text("+io")
        self._group.mkdir()
        if self._is_v1:
            (self._group / "blkio.throttle.write_bps_device").write_text(f"{self._disk} {SLOW_DISK_BYTES_PER_S}\n")
        else:
            (self._group / "io.max").write_text(f"{self._disk} wbps={SLOW_DISK_BYTES_PER_S}\n")
        (self._group / "cgroup.procs").write_text(str(process.pid))

    def remove(self):
        wait_for("the cgroup to be empty", lambda: not (self._group / "cgroup.procs").read_text())
        self._group.rmdir()


class SlowDisk(DoctorTest):
    def throttle(self, process):
        throttle = Throttle(self.folder)
        try:
            throttle.add(process)
        except OSError as error:
            with contextlib.suppress(OSError):
                throttle.remove()
            self.skipTest(f"SKIPPED: {error}")

        def mend():
            with contextlib.suppress(OSError):
                process.destroy()
            throttle.remove()

        self.addCleanup(mend)

    def test_the_disk_of_one_server(self):
        why = Throttle(self.folder).why_not()
        if why:
            self.skipTest(f"SKIPPED: {why}")
        self.cluster = Cluster(self, lease_ms=3000).add(workers=WORKERS, servers=SERVERS)
        self.submit(job(batch_size=64, checkpoint={"every_iterations": 20, "keep": 2}))
        wait_for("a checkpoint", lambda: "on disk" in self.cluster.servers[1][0].log())
        with self.subTest("healthy"):
            self.ask(until=[])
        self.throttle(self.cluster.servers[0][0])
        # Slow ones are done, and nothing but them is in the coordinator's figures.
        seconds = re.compile(r"bytes on disk in ([\d.]+) s")
        wait_for("slow checkpoints", lambda: sum(
            float(took) for took in seconds.findall(self.cluster.servers[0][0].log()) if float(took) > 1) > 5)
        with self.subTest("the disk of a server"):
            self.ask(until=[("disk", self.name_of_server(0))])


class ASilentNode(DoctorTest):
    def test_is_named_and_the_others_are_told_of(self):
        """It is frozen, and its lease has not ended: nobody else knows of it yet."""
        self.cluster = Cluster(self, lease_ms=120_000).add(workers=WORKERS, servers=SERVERS)
        self.submit(job())
        wait_for("training", lambda: self.cluster.status()["iteration"] > 0)
        server, address = self.cluster.servers[1]
        rank = next(node["rank"] for node in self.cluster.status()["servers"] if node["address"] == address)
        server.signal(signal.SIGSTOP)
        self.addCleanup(server.signal, signal.SIGCONT)
        asked = self.cluster.poseidon("doctor", "--json", timeout_s=300)
        self.assertEqual(asked.returncode, 0, asked.stdout + asked.stderr)
        told = json.loads(asked.stdout)
        silent = f"server {rank} ({address})"
        notes = [note for note in told["notes"] if "no report of it came within" in note]
        self.assertEqual(len(notes), 1, told["notes"])
        self.assertIn(silent, notes[0])
        self.assertNotIn(silent, [daemon["name"] for daemon in told["metrics"]])
        self.assertEqual(len(told["metrics"]), WORKERS + SERVERS, "the coordinator, and all nodes but that one")


if __name__ == "__main__":
    unittest.main(verbosity=2)
