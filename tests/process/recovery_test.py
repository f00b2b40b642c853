"""Processes that die or freeze while they train: the job goes on by itself, to the same bytes."""

import contextlib
import io
import re
import signal
import unittest
import unittest.mock
import urllib.request

import soak
from cluster import (BUILD, NORMALISED, Cluster, ProcessTest, Slowed, digits_job, losses, metrics, wait_for,
                     wait_for_line)

ITERATIONS = 120


# Without checkpoints; quick, so there must be many iterations for the job to be there when somebody is killed.
STATISTICS = {"every": 0, "model": NORMALISED, "batch_size": 128, "iterations": 480}


def job(scheme, every=25, iterations=ITERATIONS, **changes):
    return digits_job(iterations=iterations, test_every_iterations=40, sync={"scheme": scheme},
                      checkpoint={"every_iterations": every, "keep": 2}, **changes)


# Momentum that began anew would be missed in the second of these, and more in each until the tenth.
AFTER_GROWTH = 10


class RecoveryTest(ProcessTest):
    references = {}

    def reference(self, scheme, **changes):
        """(model bytes, losses by iteration, tests) of the undisturbed run."""
        key = scheme, repr(changes)
        if key not in self.references:
            run_dir = self.train(job(scheme, **{**changes, "every": 0}), 2, 2)
            self.references[key] = self.results(run_dir, changes.get("iterations", ITERATIONS))
        return self.references[key]

    def results(self, run_dir, count=ITERATIONS):
        iterations, tests = metrics(run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(count)))
        return ((run_dir / "model.safetensors").read_bytes(), [line["loss"] for line in iterations],
                [(line["iteration"], line["test_loss"], line["test_accuracy"]) for line in tests])

    def results_of(self, run_dir):
        return self.results(run_dir)[:2]

    def begin(self, scheme, workers=2, **changes):
        cluster = Cluster(self).add(workers=workers, servers=2)
        self.run_dir = self.folder / "run"
        submitted = cluster.submit(job(scheme, **changes), "--workers", workers, "--servers", 2, run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        return cluster

    @staticmethod
    def worker_of_rank(cluster, rank):
        return next(w for w in cluster.workers if f"worker {rank} is ready" in w.log())

    def finish(self, cluster, scheme, timeout_s=90, **changes):
        status = cluster.wait_for_state("done", "failed", timeout_s=timeout_s)
        self.assertEqual(status["state"], "done", status["message"])
        model, losses, tests = self.results(self.run_dir, changes.get("iterations", ITERATIONS))
        expected_model, expected_losses, expected_tests = self.reference(scheme, **changes)
        self.assertEqual(losses, expected_losses)
        self.assertEqual(tests, expected_tests)
        self.assertEqual(model, expected_model)


class Recovery(RecoveryTest):
    def lose_worker(self, scheme, rank, **changes):
        cluster = self.begin(scheme, **changes)
        wait_for_line(self.run_dir, 1)
        victim = self.worker_of_rank(cluster, rank)
        complete = wait_for_line(self.run_dir, 30)
        victim.signal(signal.SIGKILL)
        cluster.add_worker()
        self.finish(cluster, scheme, **changes)
        cluster.assert_nearly_all_was_kept(complete)

    def test_a_killed_worker(self):
        self.lose_worker("ps", 1)

    def test_a_killed_worker_with_factors(self):
        self.lose_worker("sfb", 1)

    def test_a_killed_first_worker(self):
        self.lose_worker("ps", 0)

    def test_a_killed_first_worker_with_factors(self):
        self.lose_worker("sfb", 0)

    # No checkpoints: without worker 0's running statistics the job would have to begin anew.
    def test_a_killed_first_worker_with_running_statistics(self):
        self.lose_worker("ps", 0, **STATISTICS)

    def test_a_killed_first_worker_with_running_statistics_and_factors(self):
        self.lose_worker("sfb", 0, **STATISTICS)

    def test_a_killed_worker_tests_with_the_same_running_statistics_afterwards(self):
        self.lose_worker("ps", 1, **STATISTICS)

    def lose_device(self, scheme):
        cluster = Cluster(self).add(workers=1, servers=2)
        fragile = cluster.add_worker("--fails-after", 45, program=BUILD / "tests/poseidon-test-failing-worker")
        self.run_dir = self.folder / "run"
        submitted = cluster.submit(job(scheme), "--workers", 2, "--servers", 2, run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.assertEqual(fragile.wait(60), 1, fragile.log())
        why = "fragile cannot be used any more by this process, which ends: an illegal memory access"
        self.assertIn(why, fragile.log().splitlines()[-1])
        wait_for("the coordinator to say why", lambda: f"left ({why}" in cluster.coordinator.log())
        cluster.add_worker()
        self.finish(cluster, scheme)
        cluster.assert_nearly_all_was_kept(30)  # well beyond the checkpoint of 25: its 45 passes are of tests too

    def test_a_worker_whose_device_fails_ends_and_is_replaced(self):
        self.lose_device("ps")

    def test_a_worker_whose_device_fails_ends_and_is_replaced_with_factors(self):
        self.lose_device("sfb")

    def test_the_only_worker_is_killed_and_its_servers_have_it_all(self):
        # With the example's rate one worker alone would diverge.
        alone = {**STATISTICS, "optimizer": {"type": "sgd", "learning_rate": 0.005, "momentum": 0.9}}
        cluster = self.begin("ps", workers=1, **alone)
        complete = wait_for_line(self.run_dir, 30)
        cluster.workers[0].signal(signal.SIGKILL)
        cluster.add_worker()
        cluster.wait_for_state("done", timeout_s=90)
        cluster.assert_nearly_all_was_kept(complete)
        # The engine's threads count too, so by the same worker.
        again = self.folder / "again"
        submitted = cluster.submit(job("ps", **alone), "--workers", 1, "--servers", 2, "--wait", run_dir=again)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.assertEqual(*(self.results(folder, STATISTICS["iterations"]) for folder in (self.run_dir, again)))

    def lose_server(self, scheme):
        cluster = self.begin(scheme)
        wait_for_line(self.run_dir, 40)
        cluster.servers[1][0].signal(signal.SIGKILL)
        cluster.restart_server(1)
        self.finish(cluster, scheme)
        # From the checkpoint on they are made again: this server's part of what came after it is lost.
        found = cluster.recoveries()
        self.assertGreater(sum(made for _, made in found), 0, found)
        self.assertTrue(all(begun % 25 == 0 for begun, _ in found), found)

    def test_a_killed_server_comes_back_with_its_data(self):
        self.lose_server("ps")

    def test_a_killed_server_comes_back_with_its_data_and_factors(self):
        self.lose_server("sfb")

    def test_a_worker_that_comes_later_is_taken_in(self):
        cluster = Cluster(self).add(workers=1, servers=1)
        run_dir = self.folder / "run"
        description = digits_job(iterations=1_000_000, test_every_iterations=0, sync={"scheme": "ps"},
                                 optimizer={"type": "sgd", "learning_rate": 0.001})
        self.assertEqual(cluster.submit(description, run_dir=run_dir).returncode, 0)
        cluster.wait_for_iteration(20)
        cluster.add_worker()
        wait_for("both to train", lambda: [w["rank"] for w in cluster.status()["workers"]] == [0, 1] and
                 cluster.status()["state"] == "running")
        wait_for_line(run_dir, cluster.status()["iteration"] + 20)
        self.assertEqual(cluster.poseidon("stop", "--checkpoint-within-s", 0).returncode, 0)
        iterations, _ = metrics(run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(len(iterations))))
        rates = [line["learning_rate"] for line in iterations]
        self.assertEqual(sorted(set(rates)), [0.001, 0.002], "twice the batch, twice the rate")
        self.assertEqual(rates, sorted(rates))

    def test_a_worker_that_comes_later_gets_parameters_and_momentum(self):
        """The batch of all stays, so the next losses are those of a run that never grew."""
        changes = {"membership": {"batch": "global"}, "batch_size": 32, "test_every_iterations": 0,
                   "optimizer": {"type": "sgd", "learning_rate": 0.01, "momentum": 0.9}}
        cluster = Cluster(self).add(workers=1, servers=1)
        run_dir = self.folder / "run"
        self.assertEqual(cluster.submit(digits_job(iterations=1_000_000, **changes), run_dir=run_dir).returncode, 0)
        cluster.wait_for_iteration(20)
        cluster.add_worker()
        begins = r"begins at iteration (\d+) .*with 2 workers"
        grown = int(wait_for("both to train", lambda: re.search(begins, cluster.coordinator.log()))[1])
        wait_for_line(run_dir, grown + AFTER_GROWTH)
        self.assertEqual(cluster.poseidon("stop", "--checkpoint-within-s", 0).returncode, 0)
        self.assertGreater(grown, 0)
        again = self.folder / "again"
        alone = cluster.submit(digits_job(iterations=grown + AFTER_GROWTH, **changes), "--workers", 1, "--servers", 1,
                               "--wait", run_dir=again)
        self.assertEqual(alone.returncode, 0, alone.stdout + alone.stderr)
        same = losses(again)
        found = losses(run_dir)[:grown + AFTER_GROWTH]
        self.assertEqual(found[:grown], same[:grown])
        # Other shapes are summed in another order, no more: some 1e-7.
        for one, other in zip(found[grown:], same[grown:]):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_server_that_is_lost_for_good_is_done_without_where_there_are_copies(self):
        cluster = Cluster(self).add(workers=2, servers=3)
        run_dir = self.folder / "run"
        description = job("sfb", membership={"replace_timeout_ms": 1000})
        description["checkpoint"]["replicas"] = 2
        self.assertEqual(cluster.submit(description, "--workers", 2, "--servers", 3, run_dir=run_dir).returncode, 0)
        wait_for_line(run_dir, 28)
        with Slowed(cluster.workers[0]):  # else a fast machine is done before a disk has the first checkpoint
            wait_for("a checkpoint", lambda: " is committed" in cluster.coordinator.log())
            cluster.servers[1][0].signal(signal.SIGKILL)
        status = cluster.wait_for_state("done", "failed")
        self.assertEqual(status["state"], "done", status["message"])
        self.assertRegex(cluster.coordinator.log(), r"begins at iteration (25|50|75|100) .* with 2 workers and 2 servers")
        self.assertEqual(self.results_of(run_dir), self.reference("sfb")[:2], "schemes stay, so do the bytes")

    def test_a_server_that_comes_is_used_again(self):
        """With two copies of each checkpoint, one of two servers is lost for good: that is an alarm, until another one comes."""
        cluster = Cluster(self, metrics=True).add(workers=2, servers=2)
        self.run_dir = self.folder / "run"
        description = job("sfb", iterations=400, membership={"replace_timeout_ms": 1000})
        description["checkpoint"]["replicas"] = 2
        self.assertEqual(cluster.submit(description, "--workers", 2, "--servers", 2, run_dir=self.run_dir).returncode, 0)
        wait_for_line(self.run_dir, 28)
        with Slowed(cluster.workers[0]):
            wait_for("a checkpoint", lambda: " is committed" in cluster.coordinator.log())
            self.assertNotIn("copies", cluster.status()["message"])
            cluster.servers[1][0].signal(signal.SIGKILL)
            wait_for("the alarm", lambda: "checkpoints have 1 of 2 copies (checkpoint.replicas): 1 server is missing"
                     in cluster.status()["message"])
            self.assertEqual(self.copies_missing(cluster), 1)
            cluster.add_server()
            wait_for("its copies", lambda: "has all copies again" in cluster.coordinator.log())
            status = cluster.status()
            self.assertEqual([server["state"] for server in status["servers"]], ["running", "running"])
            self.assertNotIn("copies", status["message"])
            self.assertEqual(self.copies_missing(cluster), 0)
        self.assertIn("1 more server came", cluster.coordinator.log())
        self.finish(cluster, "sfb", iterations=400)

    def copies_missing(self, cluster):
        with urllib.request.urlopen(f"http://{cluster.status()['metrics_address']}/metrics", timeout=10) as answer:
            return int(re.search(r"^poseidon_checkpoint_copies_missing (\d+)", answer.read().decode(), re.MULTILINE).group(1))


class DamagedDisk(RecoveryTest):
    """A file of a server's store has changed its bits while the server was down."""

    def damage(self, replicas, bits):
        """So many bits of the newest checkpoint's part on server 1; how the run went on from it."""
        cluster = Cluster(self).add(workers=2, servers=2)
        self.run_dir = self.folder / "run"
        description = job("ps")
        description["checkpoint"]["replicas"] = replicas
        submitted = cluster.submit(description, "--workers", 2, "--servers", 2, run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        wait_for_line(self.run_dir, 40)
        server, _ = cluster.servers[1]
        with Slowed(cluster.workers[0]):
            wait_for("two checkpoints", lambda: cluster.coordinator.log().count("is committed") >= 2)
            server.signal(signal.SIGKILL)
            server.wait()
        tables = [p for p in (self.folder / "server-1" / "checkpoints" / "db").glob("*.sst") if p.stat().st_size > 100_000]
        tables.sort(key=lambda p: p.stat().st_mtime_ns)
        self.assertGreaterEqual(len(tables), 2)
        for table in tables[1:]:  # all but the older checkpoint's
            data = bytearray(table.read_bytes())
            for bit in range(bits):  # the end of the file has what tells of the rest
                data[int(len(data) * 0.9 * (bit + 0.5) / bits)] ^= 16
            table.write_bytes(data)
        cluster.restart_server(1)
        self.finish(cluster, "ps")
        begun = re.findall(r"epoch \d+ begins at iteration (\d+) \(checkpoint (\S+)\)", cluster.coordinator.log())
        return cluster, [int(iteration) for iteration, _ in begun], [name for _, name in begun]

    def test_an_older_checkpoint_is_used(self):
        cluster, iterations, names = self.damage(replicas=1, bits=1)
        self.assertEqual(len(iterations), 2, "once from the newest, in vain")
        self.assertEqual(iterations[0] - iterations[1], 25)
        damaged = rf"cannot read checkpoint {names[0]}.*piece \d+.*checkpoint {names[0]}"
        self.assertRegex(cluster.coordinator.log(), damaged)

    def test_the_second_copy_is_used(self):
        # The other server's pieces lie between its own: enough bits that some are in these.
        cluster, iterations, names = self.damage(replicas=2, bits=1000)
        self.assertEqual(len(iterations), 1)
        log = "".join(server.log() for server, _ in cluster.servers)
        self.assertRegex(log, rf"parts of checkpoint {names[0]} came from the second server; the first: .*piece \d+")


class Soak(unittest.TestCase):
    """What soak.sh makes of its trials, which do nothing here."""

    def soak(self, outcomes, *arguments):
        """Each outcome: what struck in a trial, or an error. (result, seeds of the trials, what was printed)."""
        left, seeds = list(outcomes), []

        def disturb(_, rng, _options, struck, _log):
            seeds.append(rng.getrandbits(32))
            outcome = left.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            struck += outcome
            return [], []

        with unittest.mock.patch.object(soak.Trial, "disturb", disturb), contextlib.redirect_stdout(io.StringIO()) as said:
            return soak.soak(soak.parse(arguments)), seeds, said.getvalue()

    def test_a_run_that_was_over_before_anything_struck_is_no_trial(self):
        fault = ("worker", "killed")
        (failed, struck), seeds, said = self.soak([[], [fault], [], [fault]], "--trials", "2")
        self.assertEqual((failed, struck, len(seeds)), ([], [fault] * 2, 4))
        self.assertIn("2 of 2 trials ended like the undisturbed run; 2 more were over before anything struck", said)
        with self.assertRaisesRegex(RuntimeError, "in a row were over"):
            self.soak([[]] * soak.MOST_MISSED, "--trials", "1")

    def test_a_failed_trial_says_how_to_repeat_it(self):
        (failed, _), seeds, said = self.soak([AssertionError("other bytes"), [("server", "killed")]], "--trials", "2",
                                            "--kinds", "server")
        self.assertEqual(len(failed), 1)
        command = re.search(r"^again: tests/process/soak.sh (.*)$", said, re.MULTILINE).group(1).split()
        self.assertEqual(command, ["--trial-seed", str(failed[0]), "--faults", "1", "--hasty", "0.0", "--frozen", "0.2",
                                   "--ended", "0.15", "--drained", "0.1", "--hijacked", "0.1", "--early", str(soak.EARLY), "--variants", *soak.VARIANTS,
                                   "--connections", *soak.CONNECTIONS, "--kinds", "server"])
        (failed, _), again, _ = self.soak([AssertionError("other bytes")], *command)
        self.assertEqual((len(failed), again), (1, seeds[:1]))


class RandomMoments(unittest.TestCase):
    """A few trials of soak.sh, which runs hundreds by hand: a worker frozen, everything ended at once, one of each kind
    killed. Each is told all but the iteration, for a few random ones would leave most out; those of a variant share its
    reference."""

    TRIALS = [
        # kind, how, share of the preparations, variant, connection
        ("worker", "frozen", 0, "ps", "tls"),
        ("all", "ended", 0, "copies", "sockets"),
        ("worker", "killed", 0, "statistics", "memory"),
        ("server", "killed", 0, "copies", "tls"),
        ("coordinator", "killed", 0, "ps", "memory"),
        ("all", "killed", 1, "ps", "sockets"),
    ]

    def test_any_process_at_any_moment(self):
        for seed, (kind, how, early, variant, connection) in enumerate(self.TRIALS, 131):
            with self.subTest(kind=kind, how=how):
                failed, struck = soak.soak(soak.parse([
                    "--trials", "1", "--seed", str(seed), "--kinds", kind, "--frozen", str(int(how == "frozen")),
                    "--ended", str(int(how == "ended")), "--early", str(early), "--variants", variant,
                    "--connections", connection]))
                self.assertEqual(failed, [])
                self.assertEqual(struck, [(kind, how)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
