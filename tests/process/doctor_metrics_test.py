"""What `poseidon doctor` says out of the counters in nodes' heartbeats: a disk that fills up and fails its checkpoints, workers
that were faster before, callers that are turned away. No daemon serves metrics here."""

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import threading
import unittest

from cluster import Cluster, ProcessTest, digits_job, poseidon, wait_for

WORKERS, SERVERS = 2, 2
# What a healthy cluster is not told.
HEALTH = {"store", "space", "checkpoint", "streams", "paused", "path", "samples", "refused", "certificate", "slower"}
DISK_BYTES = 96 << 20
FREE_BYTES = 100 << 10  # left of it when it is full


def job(**changes):
    the_job = digits_job(iterations=1_000_000, test_every_iterations=0, batch_size=64, sync={"scheme": "ps", "cost": "bytes"},
                         checkpoint={"every_iterations": 0})
    the_job.update(changes)
    return the_job


class DoctorTest(ProcessTest):
    def look(self, *arguments):
        """What doctor says, and of it the findings by their kind."""
        asked = self.cluster.poseidon("doctor", "--json", *arguments)
        self.assertEqual(asked.returncode, 0, asked.stderr)
        told = json.loads(asked.stdout)
        for finding in told["findings"]:
            print(f"    {finding['kind']}: {finding['what']}\n      -> {finding['remedy']}")
        return told, {finding["kind"]: finding for finding in told["findings"]}

    def submit(self, the_job):
        submitted = self.cluster.submit(the_job, "--workers", WORKERS, "--servers", SERVERS, run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stdout + submitted.stderr)
        self.cluster.wait_for_iteration(60)

    def names(self, kind):
        return [f"{kind} {node['rank']} ({node['address']})" for node in self.cluster.status()[f"{kind}s"]]


class AJobThatDoesNotTrain(DoctorTest):
    def test_is_told_with_what_status_knows(self):
        self.cluster = Cluster(self).add(workers=WORKERS, servers=SERVERS)
        self.submit(job())
        self.cluster.workers[0].signal(signal.SIGKILL)
        self.cluster.wait_for_state("recovering")
        _, findings = self.look()
        self.assertEqual(list(findings), ["not_training"])
        self.assertRegex(findings["not_training"]["what"],
                         r"is recovering and does not train: .*worker \d .* was lost.*; worker \d \(.*\) is lost")
        self.assertIn("nothing was traced", self.cluster.poseidon("doctor").stdout)


class AFullDisk(DoctorTest):
    def mount_small_disks(self):
        """One for each server, so that nothing depends on how full this machine's own is."""
        for server in range(SERVERS):
            disk = self.folder / f"server-{server}"
            disk.mkdir()
            made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], capture_output=True,
                                  text=True, check=False)
            if made.returncode != 0:
                self.skipTest(f"SKIPPED: no small disk can be mounted here: {made.stderr.strip()}")
            self.addCleanup(subprocess.run, ["umount", "--lazy", disk], check=True)

    def fill(self, disk):
        """Nearly, whatever the server writes meanwhile."""
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while ballast.write(bytes(1 << 20)):
                    pass
            ballast.truncate(max(0, ballast.tell() - FREE_BYTES))

    def test_is_named_before_and_when_checkpoints_fail(self):
        self.mount_small_disks()
        self.cluster = Cluster(self, lease_ms=3000).add(workers=WORKERS, servers=SERVERS)
        self.submit(job(checkpoint={"every_iterations": 20, "keep": 2}))
        wait_for("a checkpoint", lambda: all("on disk" in server.log() for server, _ in self.cluster.servers))
        full = next(f"server {node['rank']} ({node['address']})" for node in self.cluster.status()["servers"]
                    if node["address"] == self.cluster.servers[0][1])
        told, findings = self.look()
        # Others may use the machine more than before.
        self.assertFalse((HEALTH - {"slower"}) & set(findings), findings)
        self.assertEqual([daemon["name"] for daemon in told["metrics"]],
                         ["coordinator", *self.names("server"), *self.names("worker")])
        self.assertEqual(told["notes"], [])

        self.fill(self.folder / "server-0")
        wait_for("a checkpoint to fail", lambda: "No space left" in self.cluster.servers[0][0].log(), 60)
        # On a slow machine no checkpoint may fail between the two moments at which doctor looks.
        findings = wait_for("doctor to see one fail", lambda: found if "checkpoint" in (found := self.look()[1]) else None, 120)
        self.assertEqual(findings["space"]["guilty"], full)
        self.assertRegex(findings["space"]["what"], r"left, its part of a checkpoint takes about [\d.]+ MB")
        self.assertIn(f"failed at {full}", findings["checkpoint"]["what"])
        self.assertIn("checkpoint.keep", findings["space"]["remedy"])


class WorkersThatWereFaster(DoctorTest):
    def test_are_told_by_their_own_counters(self):
        self.cluster = Cluster(self, lease_ms=3000).add(workers=WORKERS, servers=SERVERS)
        self.submit(job())
        told, _ = self.look()
        self.assertEqual(told["notes"], [])
        # Both are stopped most of the time: neither is slower than the other.
        over = threading.Event()

        def stop_and_go():
            while not over.is_set():
                for worker in self.cluster.workers:
                    worker.signal(signal.SIGSTOP)
                over.wait(0.09)
                for worker in self.cluster.workers:
                    worker.signal(signal.SIGCONT)
                over.wait(0.02)

        thread = threading.Thread(target=stop_and_go)
        thread.start()
        try:
            _, findings = self.look("--iterations", 40)
        finally:
            over.set()
            thread.join()
        # Where chance made it the slower of the two as well, that is said of it there.
        slower = next(finding for finding in findings.values() if "on average before" in finding["what"])
        self.assertIn(slower["kind"], ("slower", "worker"))
        # Both are slower than they were: then neither is the guilty one, and the text names them.
        self.assertRegex(slower["guilty"] or slower["what"], r"\bworker \d")
        self.assertRegex(slower["what"], r"[\d.e+]+ ms on average before")


class WithTls(DoctorTest):
    def test_who_is_turned_away_meanwhile_is_counted(self):
        ours = self.folder / "ours"
        self.assertEqual(poseidon("tls", "init", "--to", ours).returncode, 0)
        self.cluster = Cluster(self, lease_ms=3000, proofs=lambda role: ["--tls-dir", ours / role]).add(workers=WORKERS,
                                                                                                        servers=SERVERS)
        self.submit(job())
        over = threading.Event()

        def knock():
            host, port = self.cluster.servers[1][1].split(":")
            anybody = ssl.create_default_context()
            anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
            anybody.set_alpn_protocols(["h2"])
            while not over.is_set():
                with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as raw, \
                        anybody.wrap_socket(raw) as wrapped:
                    wrapped.recv(1)
                over.wait(0.2)

        thread = threading.Thread(target=knock)
        thread.start()
        try:
            told, findings = self.look()
        finally:
            over.set()
            thread.join()
        self.assertEqual(len(told["metrics"]), 1 + SERVERS + WORKERS, told["notes"])
        self.assertIn(self.cluster.servers[1][1], findings["refused"]["guilty"])
        self.assertRegex(findings["refused"]["what"], r"refuses connections \(in these seconds: \d+ no_certificate\)")
        left = {daemon["certificate_left_seconds"] for daemon in told["metrics"]}
        self.assertNotIn(None, left)


if __name__ == "__main__":
    unittest.main(verbosity=2)
