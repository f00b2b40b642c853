"""Nodes that leave as planned: a worker that gets SIGTERM, and what `poseidon drain` takes out of service."""

import json
import re
import signal
import time
import unittest

from cluster import Cluster, ProcessTest, digits_job, wait_for

LEASE_MS = 5000


def job(**changes):
    the_job = digits_job(iterations=1_000_000, test_every_iterations=0, checkpoint={"every_iterations": 0},
                         membership={"min_workers": 1, "batch": "global", "replace_timeout_ms": 60000}, batch_size=60)
    the_job.update(changes)
    return the_job


class Leaving(ProcessTest):
    def begin(self, workers, servers, the_job=None):
        self.cluster = Cluster(self, lease_ms=LEASE_MS).add(workers=workers, servers=servers)
        wait_for("all to join", lambda: len(self.cluster.status()["workers"]) == workers and
                 len(self.cluster.status()["servers"]) == servers)
        submitted = self.cluster.submit(the_job or job(), run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stdout + submitted.stderr)
        self.cluster.wait_for_iteration(10)

    def nodes(self, role, *states):
        return [node for node in self.cluster.status()[role] if node["state"] in states]

    def iterations_pass(self, count):
        self.cluster.wait_for_iteration(self.cluster.status()["iteration"] + count)

    def drain(self, node, *arguments):
        return self.cluster.poseidon("drain", node, *arguments)

    def test_a_worker_that_says_goodbye_is_not_waited_for(self):
        self.begin(workers=3, servers=1)
        leaver = self.cluster.workers[1]
        leaver.signal(signal.SIGTERM)
        self.assertEqual(leaver.wait(15), 0, leaver.log())
        self.assertIn("says goodbye (SIGTERM)", leaver.log())
        self.assertNotIn("has not released", leaver.log())
        wait_for("the others to train", lambda: len(self.nodes("workers", "running")) == 2)
        self.iterations_pass(5)
        log = self.cluster.coordinator.log()
        self.assertLessEqual(max(made for _, made in self.cluster.recoveries()), 1, "the iteration in flight at most")
        stood = float(re.search(r"goes on at iteration \d+, ([\d.]+) s after it stopped", log).group(1))
        print(f"    the job stood still for {stood} s")
        self.assertLess(stood, 20, "not until replace_timeout_ms, 60 s, is over")
        told = self.iterations_told()
        self.assertEqual(told, list(range(len(told))), "each iteration once")

    def iterations_told(self):
        """Of lines that are whole: more are being written."""
        lines = (self.folder / "run/metrics.jsonl").read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line)["iteration"] for line in lines if '"loss"' in line]

    def test_one_that_comes_back_is_told_when_it_joins(self):
        self.begin(workers=2, servers=1)
        self.cluster.workers[1].signal(signal.SIGTERM)
        self.assertEqual(self.cluster.workers[1].wait(15), 0)
        wait_for("the other to train", lambda: len(self.nodes("workers", "running")) == 1)
        self.cluster.add_worker()
        note = wait_for("the newcomer to be told", lambda: [node["note"] for node in self.nodes("workers", "idle")
                                                            if node["note"].startswith("joins in ")])[0]
        self.assertRegex(note, r"joins in \d+ s, or at the next checkpoint")
        began = time.monotonic()
        wait_for("it to be taken in", lambda: len(self.nodes("workers", "running")) == 2, timeout_s=60)
        print(f"    taken in after {time.monotonic() - began:.1f} s")

    def test_nobody_else_is_there(self):
        """The last worker saves what it has, and the next one goes on from there."""
        self.begin(workers=1, servers=1)
        self.cluster.workers[0].signal(signal.SIGTERM)
        self.assertEqual(self.cluster.workers[0].wait(15), 0)
        self.cluster.wait_for_state("recovering")
        self.cluster.add_worker()
        self.cluster.wait_for_state("running")
        self.iterations_pass(5)
        self.assertLessEqual(max(made for _, made in self.cluster.recoveries()), 1, "the iteration in flight at most")

    def test_a_worker_is_drained_and_taken_back(self):
        self.begin(workers=2, servers=1)
        address = self.nodes("workers", "running")[0]["address"]
        drained = self.drain(address)
        self.assertEqual(drained.returncode, 0, drained.stdout + drained.stderr)
        self.assertIn("is drained: no job uses it, and it may be stopped", drained.stdout)
        wait_for("the other to train", lambda: len(self.nodes("workers", "running")) == 1)
        self.assertEqual([node["address"] for node in self.nodes("workers", "drained")], [address])
        self.iterations_pass(3)
        last = self.drain(self.nodes("workers", "running")[0]["address"])
        self.assertEqual(last.returncode, 1, last.stdout + last.stderr)
        self.assertIn("cannot go on without worker", last.stderr)
        self.assertIn("start another worker first", last.stderr)
        undone = self.drain(address, "--undo")
        self.assertEqual(undone.returncode, 0, undone.stdout + undone.stderr)
        wait_for("it to be taken in again", lambda: len(self.nodes("workers", "running")) == 2, timeout_s=60)
        nobody = self.drain("10.9.8.7:6")
        self.assertEqual(nobody.returncode, 2)
        self.assertIn("no node at 10.9.8.7:6", nobody.stderr)
        self.assertIn(address, nobody.stderr, "the addresses that there are")

    def test_a_server_is_drained_and_stopped(self):
        self.begin(workers=2, servers=2)
        process, address = self.cluster.servers[1]
        drained = self.drain(address)
        self.assertEqual(drained.returncode, 0, drained.stdout + drained.stderr)
        self.assertEqual([node["state"] for node in self.cluster.status()["servers"] if node["address"] == address],
                         ["drained"])
        process.signal(signal.SIGKILL)
        self.iterations_pass(5)
        status = self.cluster.status()
        self.assertEqual(status["state"], "running")
        # Nor is it needed by who is lost later: a checkpoint without it is there.
        epoch = status["epoch"]
        self.cluster.workers[0].signal(signal.SIGKILL)
        self.cluster.add_worker()
        wait_for("the next epoch", lambda: self.cluster.status()["epoch"] > epoch and
                 self.cluster.status()["state"] == "running", timeout_s=60)
        self.iterations_pass(3)
        found = [made for _, made in self.cluster.recoveries()]
        self.assertLessEqual(max(found), 1, found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
