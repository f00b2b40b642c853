"""The coordinator freezes, dies and comes back while a job trains: training goes on, nothing is lost or counted twice."""

import re
import signal
import socket
import threading
import time
import unittest
import urllib.request

from cluster import BIN, LEASE_MS, Cluster, ProcessTest, digits_job, metrics, wait_for

ITERATIONS = 600
TEST_EVERY = 100
LEASE_S = LEASE_MS / 1000
# By PS and by SFB: the latter has no server that would keep workers together.
JOB = {"iterations": ITERATIONS, "test_every_iterations": TEST_EVERY, "sync": {"scheme": {"ip1": "sfb"}}}


class AwayTest(ProcessTest):
    reference = None  # (model, lines of iterations, lines of tests) of an undisturbed run

    def start_training(self, *options, until=20, keeps_job=False):
        self.run_dir = self.folder / "run"
        cluster = Cluster(self, keeps_job=keeps_job)
        for _ in range(2):
            cluster.add_server(*options)
            cluster.add_worker("--metrics-listen", "127.0.0.1:0", *options)
        self.submit(cluster, self.run_dir)
        self.epoch = cluster.status()["epoch"]
        cluster.wait_for_iteration(until)
        return cluster

    def submit(self, cluster, run_dir, *arguments):
        result = cluster.submit(digits_job(**JOB), "--workers", 2, "--servers", 2, *arguments, run_dir=run_dir)
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
        for worker in cluster.workers:
            before = min(self.synchronisations(worker))
            wait_for("the worker to train", lambda: min(self.synchronisations(worker)) >= before + 10, 10)

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


class Cable:
    """What nodes take for the coordinator: passes bytes on, until it is cut; then it holds them back, and breaks nothing."""

    def __init__(self, test, address):
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.whole = threading.Event()
        self.whole.set()
        self.sockets = []
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
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other direction has closed it


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
        self.run_dir = self.folder / "run"
        self.submit(cluster, self.run_dir)
        self.epoch = cluster.status()["epoch"]
        cluster.wait_for_iteration(20)
        cable.whole.clear()
        self.assert_training_goes_on(cluster)
        # Every node finds its stream dead; the coordinator, awake, hears nobody for several leases.
        for node in [*cluster.workers, *[server for server, _ in cluster.servers]]:
            wait_for(f"{node.name} to notice", lambda n=node: "coordinator out of reach" in n.log(), 20)
        status = cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch))
        self.assertLess(status["iteration"], ITERATIONS, "it cannot know")
        self.assertIn("no node is heard", status["message"])
        self.assertEqual([w["state"] for w in status["workers"]], ["running"] * 2)
        cable.whole.set()
        self.assert_undisturbed(cluster)


class Frozen(AwayTest):
    def test_for_longer_than_the_lease(self):
        cluster = self.start_training()
        cluster.coordinator.signal(signal.SIGSTOP)
        self.assert_training_goes_on(cluster)
        time.sleep(2 * LEASE_S)
        cluster.coordinator.signal(signal.SIGCONT)
        self.assertEqual(cluster.status()["state"], "running")
        self.assert_undisturbed(cluster)

    def test_for_so_long_that_every_stream_breaks(self):
        cluster = self.start_training()
        cluster.coordinator.signal(signal.SIGSTOP)
        for worker in cluster.workers:
            wait_for("the worker to notice", lambda w=worker: "coordinator out of reach" in w.log(), 20)
        cluster.coordinator.signal(signal.SIGCONT)
        self.assert_undisturbed(cluster)

    def test_a_worker_that_dies_meanwhile_is_noticed(self):
        cluster = self.start_training()
        cluster.coordinator.signal(signal.SIGSTOP)
        cluster.workers[1].signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        cluster.coordinator.signal(signal.SIGCONT)
        gone = rf"process {cluster.workers[1].pid} \(node \d+\) is gone: it was silent"
        wait_for("the frozen worker to be given up", lambda: re.search(gone, cluster.coordinator.log()), 30)


class Killed(AwayTest):
    def test_once(self):
        cluster = self.start_training()
        self.kill_coordinator(cluster)
        self.assert_training_goes_on(cluster)
        cluster.restart_coordinator()
        status = cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("running", self.epoch))
        self.assert_undisturbed(cluster)

    def test_twice(self):
        cluster = self.start_training()
        for until in (200, 400):
            cluster.wait_for_iteration(until)
            self.kill_coordinator(cluster)
            cluster.restart_coordinator()
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
        self.epoch = cluster.status()["epoch"]
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

    def follow(self, cluster, *arguments):
        """A `poseidon submit --wait` of two workers, as a process."""
        self.run_dir = self.folder / "run"
        return self.start("follower", BIN / "poseidon", "submit", self.write_job(digits_job(**JOB)), "--workers", 2,
                          "--servers", 2, "--run-dir", self.run_dir, "--coordinator", cluster.address, "--wait", *arguments)

    def test_while_somebody_follows(self):
        cluster = Cluster(self)
        cluster.add_server()
        cluster.add_server()
        for _ in range(2):
            cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        follower = self.follow(cluster)
        cluster.wait_for_iteration(20)
        self.epoch = cluster.status()["epoch"]
        self.kill_coordinator(cluster)
        wait_for("the follower to notice", lambda: "does not answer; the job may go on" in follower.log(), 20)
        cluster.restart_coordinator()
        self.assert_undisturbed(cluster)
        self.assertEqual(follower.wait(10), 0, follower.log())
        self.assertRegex(follower.log(), r"(?s)does not answer.*answers again.*final loss")

    def test_stopped_and_started_again(self):
        """With --job-on-stop keep: as when its package is upgraded."""
        cluster = self.start_training(keeps_job=True)
        cluster.coordinator.signal(signal.SIGTERM)
        self.assertEqual(cluster.coordinator.wait(20), 0, cluster.coordinator.log())
        self.assertIn("its nodes train on, and the next coordinator with this state directory goes on with it",
                      cluster.coordinator.log())
        self.assert_training_goes_on(cluster)
        cluster.restart_coordinator()
        self.assert_undisturbed(cluster)

    def test_while_an_operator_stops_the_job(self):
        """The next coordinator, which goes on with the job, is asked again."""
        cluster = self.start_training()
        frozen, _ = cluster.servers[1]
        frozen.signal(signal.SIGSTOP)  # so the checkpoint takes until it goes on
        stop = cluster.start("stop", "poseidon", "stop", "--coordinator", cluster.address)
        wait_for("the job to be told", lambda: "ends when what it has trained is saved" in stop.log())
        self.kill_coordinator(cluster)
        cluster.restart_coordinator()
        frozen.signal(signal.SIGCONT)
        self.assertEqual(stop.wait(60), 0, stop.log())
        self.assertIn("is asked again", stop.log())
        status = cluster.status()
        self.assertEqual(status["state"], "failed")
        self.assertRegex(status["message"], r"an operator stopped it.* goes on from checkpoint 1-\d+")

    def test_for_ever(self):
        cluster = Cluster(self).add(workers=1, servers=2)
        cluster.add_worker("--coordinator-away-s", 2)
        follower = self.follow(cluster, "--coordinator-away-s", 2)
        cluster.wait_for_iteration(20)
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
        cluster = self.start_training("--join-timeout-s", 1, until=100)
        complete = cluster.status()["iteration"]
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
        self.assertLess(took, LEASE_S + 5, "a node looks for the coordinator every 2 s at least")
        cluster.assert_nearly_all_was_kept(complete)  # what was saved is where it goes on
        self.epoch = cluster.status()["epoch"]
        self.assert_undisturbed(cluster)

    def test_while_the_others_halt(self):
        """One of them does not hear it, for it is frozen; what all hold is saved by the next coordinator."""
        cluster = self.start_training(until=100)
        complete = cluster.status()["iteration"]
        frozen, _ = cluster.servers[1]
        lost = cluster.workers.pop()
        lost.signal(signal.SIGKILL)
        time.sleep(0.7 * LEASE_S)  # its lease is over well before the other's
        frozen.signal(signal.SIGSTOP)
        wait_for("the job to recover", lambda: "halts the others" in cluster.status()["message"])
        self.kill_coordinator(cluster)
        cluster.restart_coordinator()
        frozen.signal(signal.SIGCONT)
        cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        cluster.wait_for_state("running", timeout_s=30)
        cluster.assert_nearly_all_was_kept(complete)
        self.epoch = cluster.status()["epoch"]
        self.assert_undisturbed(cluster)

    def test_nodes_that_died_meanwhile_are_noticed(self):
        cluster = self.start_training()
        self.kill_coordinator(cluster)
        cluster.servers[1][0].signal(signal.SIGKILL)
        cluster.restart_coordinator()
        gone = rf"server {cluster.servers[1][1]} \(node \d+\) is gone: .* did not come back"
        wait_for("the dead server to be given up", lambda: re.search(gone, cluster.coordinator.log()), 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
