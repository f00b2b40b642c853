"""The coordinator freezes, dies and comes back while a job trains: training goes on, nothing is lost or counted twice."""

import json
import re
import signal
import time
import unittest
import urllib.request

from cluster import (BIN, LEASE_MS, Cable, Cluster, ProcessTest, Slowed, digits_job, furthest, metrics, wait_for,
                     wait_for_line)

ITERATIONS = 150
TEST_EVERY = 50
LEASE_S = LEASE_MS / 1000
# By PS and by SFB: the latter has no server that would keep workers together.
JOB = {"iterations": ITERATIONS, "test_every_iterations": TEST_EVERY, "sync": {"scheme": {"ip1": "sfb"}}}
# Where the state of a job that trains is asserted: a fast machine has trained all of the other one within a second.
ENDLESS = {**JOB, "iterations": 1_000_000, "optimizer": {"type": "sgd", "learning_rate": 0.001}}


class AwayTest(ProcessTest):
    reference = None  # (model, lines of iterations, lines of tests) of an undisturbed run

    def start_training(self, *options, until=20, job=JOB, **of_cluster):
        self.run_dir = self.folder / "run"
        cluster = Cluster(self, **of_cluster)
        for _ in range(2):
            cluster.add_server(*options)
            cluster.add_worker("--metrics-listen", "127.0.0.1:0", *options)
        self.submit(cluster, self.run_dir, job=job)
        self.epoch = 1
        self.complete = wait_for_line(self.run_dir, until)
        return cluster

    def submit(self, cluster, run_dir, *arguments, job=JOB):
        result = cluster.submit(digits_job(**job), "--workers", 2, "--servers", 2, *arguments, run_dir=run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def kill_coordinator(self, cluster):
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()

    def synchronisations(self, worker):
        """How often each layer of this worker got the parameters that its gradient led to: what only grows while it trains."""
        address = re.search(r"http://\S+/metrics", worker.log()).group(0)
        with urllib.request.urlopen(address, timeout=10) as page:
            text = page.read().decode()
        counts = re.findall(r"^poseidon_layer_sync_seconds_count{.*} (\d+)$", text, re.MULTILINE)
        self.assertTrue(counts, text)
        return list(map(int, counts))

    def assert_training_goes_on(self, cluster):
        before = {worker: min(self.synchronisations(worker)) for worker in cluster.workers}
        for worker in cluster.workers:
            wait_for("the worker to train", lambda w=worker: min(self.synchronisations(w)) >= before[w] + 10, 10)

    def assert_undisturbed(self, cluster):
        """The run ends as if nothing had been: the same model; every line once, in order, with the same loss."""
        status = cluster.wait_for_state("done", "failed", timeout_s=120)
        self.assertEqual((status["state"], status["iteration"]), ("done", ITERATIONS), status)
        self.assertEqual(status["epoch"], self.epoch)
        if AwayTest.reference is None:
            directory = self.folder / "reference"
            self.submit(cluster, directory, "--wait")
            AwayTest.reference = ((directory / "model.safetensors").read_bytes(), *metrics(directory))
        model, wanted_iterations, wanted_tests = AwayTest.reference
        iterations, tests = metrics(self.run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(ITERATIONS)))
        self.assertEqual([line["loss"] for line in iterations], [line["loss"] for line in wanted_iterations])
        self.assertEqual(len(tests), ITERATIONS // TEST_EVERY)
        self.assertEqual(tests, wanted_tests)
        self.assertEqual((self.run_dir / "model.safetensors").read_bytes(), model)
        self.assertFalse((self.folder / "state" / "job.json").exists(), "nobody needs to go on with it")
        for process in [*cluster.workers, *[server for server, _ in cluster.servers]]:
            self.assertTrue(process.running(), process.log())


class CutOff(AwayTest):
    def test_from_all_nodes(self):
        cluster = Cluster(self)
        direct = cluster.address
        cable = Cable(self, direct)
        cluster.address = cable.address
        for _ in range(2):
            cluster.add_server()
            cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        cluster.address = direct
        nodes = [*cluster.workers, *[server for server, _ in cluster.servers]]
        self.run_dir, self.epoch = self.folder / "endless", 1
        self.submit(cluster, self.run_dir, job=ENDLESS)
        self.cut_off(cluster, cable, nodes)
        status = cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch))
        self.assertIn("no message from any node", status["message"])
        self.assertEqual([w["state"] for w in status["workers"]], ["running"] * 2)
        cable.whole.set()
        wait_for_line(self.run_dir, status["iteration"] + 50)
        self.assertEqual(cluster.poseidon("stop", "--checkpoint-within-s", 0).returncode, 0)
        iterations, _ = metrics(self.run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(len(iterations))))
        # And one that they finish meanwhile: every byte is there afterwards.
        self.run_dir, self.epoch = self.folder / "run", 2
        self.submit(cluster, self.run_dir)
        self.cut_off(cluster, cable, nodes)
        cable.whole.set()
        self.assert_undisturbed(cluster)

    def cut_off(self, cluster, cable, nodes):
        """Until every node finds its stream dead; the coordinator, awake, hears nobody for several leases."""
        wait_for_line(self.run_dir, 20)
        told = {node: node.log().count("cannot reach the coordinator") for node in nodes}
        cable.whole.clear()
        for node in nodes:
            wait_for(f"{node.name} to notice",
                     lambda n=node: n.log().count("cannot reach the coordinator") > told[n], 20)


class Frozen(AwayTest):
    def test_for_longer_than_the_lease(self):
        cluster = self.start_training(job=ENDLESS)
        cluster.coordinator.signal(signal.SIGSTOP)
        self.assert_training_goes_on(cluster)
        time.sleep(2 * LEASE_S)
        cluster.coordinator.signal(signal.SIGCONT)
        status = cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch))
        wait_for_line(self.run_dir, furthest(self.run_dir) + 50)
        status = cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch))

    def test_for_longer_than_the_lease_while_a_job_ends(self):
        cluster = self.start_training()
        cluster.coordinator.signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        cluster.coordinator.signal(signal.SIGCONT)
        self.assert_undisturbed(cluster)

    def test_for_so_long_that_every_stream_breaks(self):
        cluster = self.start_training()
        cluster.coordinator.signal(signal.SIGSTOP)
        for worker in cluster.workers:
            wait_for("the worker to notice", lambda w=worker: "cannot reach the coordinator" in w.log(), 20)
        cluster.coordinator.signal(signal.SIGCONT)
        self.assert_undisturbed(cluster)

    def test_a_worker_that_dies_meanwhile_is_noticed(self):
        cluster = self.start_training(job=ENDLESS)
        cluster.coordinator.signal(signal.SIGSTOP)
        cluster.workers[1].signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        cluster.coordinator.signal(signal.SIGCONT)
        gone = rf"process {cluster.workers[1].pid} \(node \d+\) is gone: it was silent"
        wait_for("the frozen worker to be given up", lambda: re.search(gone, cluster.coordinator.log()), 30)


class Killed(AwayTest):
    def test_once(self):
        cluster = self.start_training()
        with Slowed(cluster.workers[0]):
            self.kill_coordinator(cluster)
            self.assert_training_goes_on(cluster)
            cluster.restart_coordinator()
            status = cluster.status()
            self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch))
        self.assert_undisturbed(cluster)

    def test_twice(self):
        cluster = self.start_training()
        for until in (50, 100):
            wait_for_line(self.run_dir, until)
            with Slowed(cluster.workers[0]):
                self.kill_coordinator(cluster)
                before = furthest(self.run_dir)
                cluster.restart_coordinator()
                wait_for("lines of the next coordinator", lambda: furthest(self.run_dir) > before)
            self.assertLess(furthest(self.run_dir), ITERATIONS - 10, "it was all but done")
        self.assert_undisturbed(cluster)

    def test_until_after_the_end_of_training(self):
        cluster = self.start_training(until=ITERATIONS // 2)
        self.kill_coordinator(cluster)
        # One of the two has the model, which waits; the other has nothing more to do.
        wait_for("a worker to finish", lambda: any(": finished" in w.log() for w in cluster.workers), 60)
        self.assertFalse((self.run_dir / "model.safetensors").exists())
        cluster.restart_coordinator()
        self.assert_undisturbed(cluster)

    def test_before_training_began(self):
        cluster = Cluster(self)
        self.run_dir = self.folder / "run"
        self.submit(cluster, self.run_dir)
        self.kill_coordinator(cluster)
        cluster.restart_coordinator()
        self.assertEqual(cluster.status()["state"], "waiting")
        cluster.add(workers=2, servers=2)
        self.epoch = cluster.wait_for_state("running", "done")["epoch"]
        self.assert_undisturbed(cluster)

    def test_as_it_takes_a_job_into_a_finished_runs_directory(self):
        """At once when anything on its disk is touched: the job is known, and nothing of the finished run is lost."""
        cluster = Cluster(self).add(workers=1, servers=1)
        self.run_dir = self.folder / "run"
        result = cluster.submit(digits_job(iterations=5), "--workers", 1, "--servers", 1, "--wait", run_dir=self.run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for process in [*cluster.workers, *[server for server, _ in cluster.servers]]:
            process.destroy()
        files = {path.name: path.read_bytes() for path in self.run_dir.iterdir() if path.is_file()}
        self.assertIn("model.safetensors", files)
        record = self.folder / "state" / "job.json"
        path = self.write_job(digits_job(iterations=5), "again.json")
        for attempt in range(5):
            submit = self.start(f"submit-{attempt}", BIN / "poseidon", "submit", path, "--workers", 1, "--servers", 1,
                                "--run-dir", self.run_dir, "--coordinator", cluster.address)
            end = time.monotonic() + 30
            while not record.exists() and all((self.run_dir / name).exists() for name in files):
                self.assertLess(time.monotonic(), end, submit.log())  # no pause: the next steps follow within a millisecond
            self.kill_coordinator(cluster)
            submit.destroy()
            cluster.restart_coordinator()
            self.assertEqual(cluster.status()["state"], "waiting")
            earlier = self.run_dir / "earlier"
            self.assertEqual({path.name: path.read_bytes() for path in earlier.iterdir()}, files)
            self.assertFalse((self.run_dir / "model.safetensors").exists())
            # Given up, and all as it was.
            self.kill_coordinator(cluster)
            record.unlink()
            for name in files:
                (earlier / name).replace(self.run_dir / name)
            cluster.restart_coordinator()

    def follow(self, cluster, *arguments, job=JOB):
        """A `poseidon submit --wait` of two workers, as a process."""
        self.run_dir, self.epoch = self.folder / "run", 1
        return self.start("follower", BIN / "poseidon", "submit", self.write_job(digits_job(**job)), "--workers", 2,
                          "--servers", 2, "--run-dir", self.run_dir, "--coordinator", cluster.address, "--wait", *arguments)

    def test_while_somebody_follows(self):
        cluster = Cluster(self)
        cluster.add_server()
        cluster.add_server()
        for _ in range(2):
            cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        follower = self.follow(cluster)
        wait_for_line(self.run_dir, 20)
        self.kill_coordinator(cluster)
        wait_for("the follower to notice", lambda: "does not answer; the job may continue" in follower.log(), 20)
        cluster.restart_coordinator()
        self.assert_undisturbed(cluster)
        self.assertEqual(follower.wait(10), 0, follower.log())
        self.assertRegex(follower.log(), r"(?s)does not answer.*answers again.*final loss")

    def test_stopped_and_started_again(self):
        """With --job-on-stop keep: as when its package is upgraded. What it drops at its stop, servers drop too."""
        cluster = self.start_training(keeps_job=True, job=dict(JOB, checkpoint={"every_iterations": 10, "keep": 1}))
        with Slowed(cluster.workers[0]):
            cluster.coordinator.signal(signal.SIGTERM)
            self.assertEqual(cluster.coordinator.wait(20), 0, cluster.coordinator.log())
            self.assertIn("its nodes train on, and the next coordinator with this state directory continues the job",
                          cluster.coordinator.log())
            self.assert_training_goes_on(cluster)
            cluster.restart_coordinator()
        self.assert_undisturbed(cluster)
        self.assertEqual(len(json.loads(cluster.poseidon("checkpoint", "list", "--json").stdout)), 1)
        for server in range(2):  # which stores a checkpoint as a table and its index
            tables = self.folder / f"server-{server}" / "checkpoints" / "db"
            wait_for("the server to have that one alone", lambda t=tables: len(list(t.glob("*.sst"))) == 2)

    def test_the_end_of_its_terminal_keeps_the_job(self):
        # Under nohup it is ignored, and would be by what we start.
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, lambda *_: None))
        cluster = self.start_training()
        with Slowed(cluster.workers[0]):
            cluster.coordinator.signal(signal.SIGHUP)
            self.assertEqual(cluster.coordinator.wait(20), 0, cluster.coordinator.log())
            self.assertIn("its nodes train on", cluster.coordinator.log())
            cluster.restart_coordinator()
        self.assert_undisturbed(cluster)

    def test_while_an_operator_stops_the_job(self):
        """The command asks the next coordinator, which continues the job."""
        cluster = self.start_training(job=ENDLESS)
        frozen, _ = cluster.servers[1]
        frozen.signal(signal.SIGSTOP)  # so the checkpoint takes until it goes on
        stop = cluster.start("stop", "poseidon", "stop", "--coordinator", cluster.address)
        wait_for("the job to be told", lambda: "ends when its final checkpoint is saved" in stop.log())
        self.kill_coordinator(cluster)
        cluster.restart_coordinator()
        frozen.signal(signal.SIGCONT)
        self.assertEqual(stop.wait(60), 0, stop.log())
        self.assertIn("asking it again", stop.log())
        status = cluster.status()
        self.assertEqual(status["state"], "stopped")
        self.assertRegex(status["message"], r"an operator stopped it.* goes on from checkpoint 1-\d+")

    def test_for_ever(self):
        cluster = Cluster(self).add(workers=1, servers=2)
        cluster.add_worker("--coordinator-away-s", 2)
        follower = self.follow(cluster, "--coordinator-away-s", 2, job=ENDLESS)
        wait_for_line(self.run_dir, 20)
        self.kill_coordinator(cluster)
        patient, hasty = cluster.workers
        self.assertEqual(hasty.wait(20), 1)
        self.assertRegex(hasty.log(), "no coordinator answered at .* for 2 s")
        self.assertEqual(follower.wait(20), 1)
        self.assertRegex(follower.log(), "the coordinator at .* has not answered for 2 s")
        for process in (patient, *[server for server, _ in cluster.servers]):
            process.signal(signal.SIGTERM)
            self.assertEqual(process.wait(10), 0, process.log())

    def test_in_the_middle_of_a_recovery(self):
        """The epoch is over, its state saved, and a worker awaited: the next coordinator knows, and
        nodes without a part wait for it longer than for one that they have never seen."""
        cluster = self.start_training("--join-timeout-s", 1, until=50)
        lost = cluster.workers.pop()
        lost.signal(signal.SIGKILL)
        wait_for("the job to wait for another worker", lambda: "waits for worker" in cluster.status()["message"])
        self.kill_coordinator(cluster)
        time.sleep(3)  # of absence
        cluster.restart_coordinator()
        begin = time.monotonic()
        self.assertEqual(cluster.status()["state"], "recovering")
        cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        cluster.wait_for_state("running", timeout_s=20)
        took = time.monotonic() - begin
        # A node that has no part looks for the coordinator every 2 s at least; one that gave up would never come.
        self.assertLess(took, 15)
        cluster.assert_nearly_all_was_kept(self.complete)  # what was saved is where it goes on
        self.epoch = cluster.status()["epoch"]
        self.assert_undisturbed(cluster)

    def test_while_the_others_halt(self):
        """One of them does not hear it, for it is frozen; what all hold is saved by the next coordinator."""
        cluster = self.start_training(until=50, lease_ms=5000)  # so much time until the frozen one is given up, too
        frozen, _ = cluster.servers[1]
        frozen.signal(signal.SIGSTOP)
        lost = cluster.workers.pop()
        lost.signal(signal.SIGTERM)  # it says goodbye, and is missed at once
        wait_for("the job to recover", lambda: "halts the others" in cluster.status()["message"])
        self.kill_coordinator(cluster)
        cluster.restart_coordinator()
        frozen.signal(signal.SIGCONT)
        cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        cluster.wait_for_state("running", timeout_s=30)
        cluster.assert_nearly_all_was_kept(self.complete)
        self.epoch = cluster.status()["epoch"]
        self.assert_undisturbed(cluster)

    def test_nodes_that_died_meanwhile_are_noticed(self):
        cluster = self.start_training(job=ENDLESS)
        self.kill_coordinator(cluster)
        cluster.servers[1][0].signal(signal.SIGKILL)
        cluster.restart_coordinator()
        gone = rf"server {cluster.servers[1][1]} \(node \d+\) is gone: .* did not come back"
        wait_for("the dead server to be given up", lambda: re.search(gone, cluster.coordinator.log()), 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
