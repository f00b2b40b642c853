"""Links that are cut and mended: every process on a host of its own (a network namespace), so that nobody is told of a cut."""

import pathlib
import re
import signal
import sys
import time
import unittest

from cluster import LEASE_MS, Cluster, OnHosts, ProcessTest, digits_job, furthest, metrics, wait_for, wait_for_line

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "common"))
import hosts  # noqa: E402  (the benchmark's network)

LEASE_S = LEASE_MS / 1000
HEARTBEAT_S = LEASE_S / 5
CUT_S = 8
ITERATIONS = 300
SERVERS = 2
# Writes the time whenever a worker's sent bytes have grown, which they do in every iteration.
WATCH = """
import sys, time, urllib.request
last = -1
while True:
    page = urllib.request.urlopen(sys.argv[1], timeout=10).read().decode()
    sent = sum(float(l.split()[-1]) for l in page.splitlines() if l.startswith("poseidon_layer_sent_bytes_total"))
    if sent > last:
        print(time.monotonic(), flush=True)
    last = sent
    time.sleep(0.02)
"""


def job(iterations=ITERATIONS):
    return digits_job(iterations=iterations, test_every_iterations=0, sync={"scheme": "ps", "cost": "bytes"},
                      checkpoint={"every_iterations": 0})


@unittest.skipIf(hosts.why_not(), f"no namespaces here: {hosts.why_not()}")
class Links(ProcessTest):
    reference = None

    def setUp(self):
        super().setUp()
        hosts.remove_stale()

    def begin(self, workers, iterations=ITERATIONS, worker_options=()):
        self.network = hosts.NamespaceHosts(1 + SERVERS + workers)
        try:
            self.network.__enter__()
        except hosts.HostsError as error:
            self.skipTest(str(error))
        self.addCleanup(self.network.__exit__)
        self.places = OnHosts(self.network, SERVERS)
        self.cluster = Cluster(self, place=self.places)
        for _ in range(SERVERS):
            self.cluster.add_server()
        for index in range(workers):
            address = self.places.address(f"worker-{index}")
            self.cluster.add_worker("--listen", f"{address}:0", "--metrics-listen", f"{address}:0", *worker_options)
        self.run_dir = self.folder / "run"
        submitted = self.cluster.submit(job(iterations), "--workers", 2, "--servers", SERVERS, run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stdout + submitted.stderr)
        self.cluster.wait_for_iteration(30)
        self.epoch = self.cluster.status()["epoch"]

    def watch(self, name):
        """What writes when a worker trained, from its own host."""
        page = re.search(r"http://\S+/metrics", self.cluster.workers[int(name.partition("-")[2])].log()).group(0)
        watch = self.start("watch", *self.places.command(name, [sys.executable, "-c", WATCH, page]))
        wait_for("what it watches", lambda: len(watch.log().splitlines()) > 10)
        return watch

    def undisturbed(self):
        """(model, losses)"""
        if Links.reference is None:
            directory = self.train(job(), 2, SERVERS)
            Links.reference = (directory / "model.safetensors").read_bytes(), [l["loss"] for l in metrics(directory)[0]]
        return Links.reference

    def assert_undisturbed(self):
        status = self.cluster.wait_for_state("done", "failed", timeout_s=90)
        self.assertEqual(status["state"], "done", status["message"])
        model, wanted = self.undisturbed()
        iterations, _ = metrics(self.run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(ITERATIONS)))
        self.assertEqual([line["loss"] for line in iterations], wanted)
        self.assertEqual((self.run_dir / "model.safetensors").read_bytes(), model)

    def test_the_coordinator_is_cut_off_and_no_iteration_waits_for_it(self):
        self.begin(workers=2, iterations=1_000_000)
        watch = self.watch("worker-0")
        time.sleep(2)
        begin = time.monotonic()
        self.network.cut(0)
        time.sleep(CUT_S)
        end = time.monotonic()
        self.network.mend(0)
        wait_for("the coordinator to hear again", lambda: "no message from any node" not in self.cluster.status()["message"])
        time.sleep(2)
        status = self.cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch), status["message"])
        times = [float(line) for line in watch.log().splitlines()[:-1]]
        gaps = [(b - a, begin < b and a < end) for a, b in zip(times, times[1:])]
        inside = max(gap for gap, cut in gaps if cut)
        outside = max(gap for gap, cut in gaps if not cut)
        print(f"longest time without an iteration: {inside:.3f} s in the cut of {CUT_S} s, {outside:.3f} s outside")
        self.assertLess(inside, 2 * outside + 0.5)

    def test_a_worker_is_cut_off_and_the_others_go_on(self):
        self.begin(workers=3)  # one of them without a part
        part = self.worker_of_rank(1)
        begin = time.monotonic()
        self.network.cut(self.places.host(f"worker-{part}"))
        at_cut = len(metrics(self.run_dir)[0])
        wait_for("a new epoch", lambda: "goes on at iteration" in self.cluster.coordinator.log(), 30)
        wait_for("a new iteration", lambda: len(metrics(self.run_dir)[0]) > at_cut + 1, 30)
        took = time.monotonic() - begin
        print(f"{took:.2f} s from the cut to the next iteration; the lease is {LEASE_S} s")
        # Four times the time in which it is missed. Without a lease the others would have tried to reach it for 30 s.
        self.assertLess(took, 4 * (LEASE_S + HEARTBEAT_S))
        self.assert_undisturbed()
        self.network.mend(self.places.host(f"worker-{part}"))
        wait_for("it to join again", lambda: len(self.cluster.status()["workers"]) == 3, 30)

    def worker_of_rank(self, rank):
        return next(i for i, w in enumerate(self.cluster.workers) if f"worker {rank} is ready" in w.log())

    def test_a_worker_is_cut_off_from_the_coordinator_alone_and_keeps_its_place(self):
        self.begin(workers=2, iterations=1_000_000)
        part = self.worker_of_rank(1)
        watch = self.watch(f"worker-{part}")
        pair = 0, self.places.host(f"worker-{part}")
        self.network.cut_between(*pair)
        time.sleep(CUT_S)
        # By the worker's own page: what the coordinator knows ends with the cut.
        told = len(watch.log().splitlines())
        wait_for("it to train, leases after the cut", lambda: len(watch.log().splitlines()) >= told + 10)
        status = self.cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch), status["message"])
        self.assertEqual([w["state"] for w in status["workers"] if w["rank"] == 1], ["away"])
        self.network.mend_between(*pair)
        complete = furthest(self.run_dir)
        wait_for("it to be heard again", lambda: [
            w["state"] for w in self.cluster.status()["workers"] if w["rank"] == 1] == ["running"])
        wait_for_line(self.run_dir, max(complete, ITERATIONS) + 50)
        self.assertEqual(self.cluster.status()["epoch"], self.epoch, "nobody was given up")
        self.assertIn("sends no messages, but the job trains with it", self.cluster.coordinator.log())
        self.assertEqual(self.cluster.poseidon("stop", "--checkpoint-within-s", 0).returncode, 0)
        iterations, _ = metrics(self.run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(len(iterations))))
        self.assertEqual([line["loss"] for line in iterations[:ITERATIONS]], self.undisturbed()[1])

    def test_a_worker_and_a_server_that_never_reach_each_other_again_cost_the_worker_its_place(self):
        self.begin(workers=3, worker_options=("--server-timeout-s", 2))  # one of them without a part
        part = self.worker_of_rank(1)
        begin = time.monotonic()
        self.network.cut_between(self.places.host(f"worker-{part}"), self.places.host("server-1"))
        self.assert_undisturbed()
        print(f"{time.monotonic() - begin:.0f} s from the cut to the end")
        self.assertRegex(self.cluster.coordinator.log(), r"worker 1 \(\S+, process \d+\) failed again: server 1 at \S+ could not be reached")

    def test_a_worker_and_a_server_are_cut_off_from_each_other_for_less_than_the_lease(self):
        self.begin(workers=2)
        pair = self.places.host("worker-0"), self.places.host("server-1")
        self.network.cut_between(*pair)
        time.sleep(0.7 * LEASE_S)
        stuck = self.cluster.status()["iteration"]
        self.network.mend_between(*pair)
        self.assertLess(stuck, ITERATIONS, "the cut was meant to stop it")
        self.assert_undisturbed()
        self.assertEqual(self.cluster.status()["epoch"], self.epoch, "nobody was given up")


if __name__ == "__main__":
    unittest.main(verbosity=2)
