"""A stop loses nothing: the model and a checkpoint are there, and the same command goes on."""

import json
import shlex
import signal
import unittest

from cluster import BIN, Cluster, ProcessTest, digits_job, metrics, poseidon, wait_for, wait_for_line

ITERATIONS = 150
# Slow enough not to diverge, and one scheme, so that equal runs have equal bytes.
STEADY = {"test_every_iterations": 0, "sync": {"scheme": "ps"}, "optimizer": {"type": "sgd", "learning_rate": 0.001}}


def short_job(**changes):
    return digits_job(**{"iterations": ITERATIONS, "checkpoint": {"every_iterations": 0}, **STEADY, **changes})


def iterations(run_dir):
    return [line["iteration"] for line in metrics(run_dir)[0]]


def lines_of(run_dir):
    return [(line["iteration"], line["loss"], line["learning_rate"]) for line in metrics(run_dir)[0]]


class StopTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"

    def call(self, job, *arguments, workers=2, servers=1, run_dir=None):
        return ["local", self.write_job(job), "--workers", workers, "--servers", servers, "--run-dir",
                run_dir or self.run_dir, *arguments]

    def start_local(self, job, *arguments, name="local"):
        return self.start(name, BIN / "poseidon", *self.call(job, *arguments))

    def kill(self, process):
        process.signal(signal.SIGKILL)
        process.wait()

    def finish(self, job, *arguments, **more):
        result = poseidon(*self.call(job, *arguments, **more))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def assert_left(self, process):
        """The checkpoint that a stopped run says it has. All of its files are as of it."""
        left = json.loads((self.run_dir / "stopped.json").read_text())
        self.assertEqual(iterations(self.run_dir), list(range(left["iteration"])))
        self.assertIn(f"stopped      after {left['iteration']} of {left['iterations']} iterations", process.log())
        self.assertTrue((self.run_dir / "model.safetensors").exists())
        return left


class Signals(StopTest):
    def test_a_signal_leaves_the_model_and_the_last_line_goes_on(self):
        whole = self.folder / "whole"
        self.finish(short_job(), run_dir=whole)
        for number in (signal.SIGINT, signal.SIGTERM):
            self.run_dir = self.folder / f"run {int(number)}"
            process = self.start_local(short_job(), name=f"local-{int(number)}")
            wait_for_line(self.run_dir, 20)
            process.signal(number)
            self.assertEqual(process.wait(30), 128 + number, process.log())
            left = self.assert_left(process)
            # What a run of so many iterations leaves.
            part = self.folder / f"part {int(number)}"
            self.finish(short_job(iterations=left["iteration"]), run_dir=part)
            self.assertEqual((self.run_dir / "model.safetensors").read_bytes(), (part / "model.safetensors").read_bytes())
            self.assertEqual(lines_of(self.run_dir), lines_of(part))
            # As it says.
            last = process.log().splitlines()[-1]
            self.assertRegex(last, "^go on with: poseidon local ")
            self.write_job(short_job())
            again = poseidon(*shlex.split(last.removeprefix("go on with: poseidon ")))
            self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
            self.assertIn(f"goes on from checkpoint {left['checkpoint']} of the unfinished run there, after "
                          f"{left['iteration']} of {ITERATIONS} iterations (--fresh begins anew)\n", again.stdout)
            self.assertEqual((self.run_dir / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())
            self.assertEqual(lines_of(self.run_dir), lines_of(whole))
            self.assertFalse((self.run_dir / "stopped.json").exists())
            self.assertFalse((self.run_dir / "earlier").exists())

    def test_nothing_trained_is_nothing_to_save(self):
        process = self.start_local(short_job(iterations=1_000_000))
        wait_for("the coordinator", lambda: (self.run_dir / "cluster/coordinator.address").exists())
        process.signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 143, process.log())
        self.finish(short_job(iterations=3))
        self.assertEqual(iterations(self.run_dir), [0, 1, 2])

    def test_an_operators_stop_of_a_local_run(self):
        process = self.start_local(short_job(iterations=1_000_000))
        wait_for_line(self.run_dir, 10)
        address = (self.run_dir / "cluster/coordinator.address").read_text().strip()
        stopped = poseidon("stop", "--coordinator", address)
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        self.assertEqual(process.wait(30), 3, process.log())
        self.assert_left(process)
        self.assertRegex(process.log().splitlines()[-1], "^go on with: poseidon local ")


class Again(StopTest):
    """The same command where a run was killed."""

    def killed_run(self, iteration, job):
        process = self.start_local(job, name=f"killed-{len(self.processes)}")
        wait_for_line(self.run_dir, iteration)
        if job["checkpoint"]["every_iterations"] > 0:
            self.wait_for_checkpoint()
        self.kill(process)

    def wait_for_checkpoint(self):
        """One is committed: a busy machine may have written many more lines by then."""
        wait_for("a checkpoint", lambda: list((self.run_dir / "cluster/coordinator/checkpoints").glob("*/*.json")))

    def test_goes_on_from_its_newest_checkpoint(self):
        job = short_job(checkpoint={"every_iterations": 10, "keep": 2})
        self.killed_run(35, job)
        result = self.finish(job, servers=1)
        self.assertRegex(result.stdout, r"goes on from checkpoint \d+-[2-9]\d+ of the unfinished run there")
        self.assertEqual(iterations(self.run_dir), list(range(ITERATIONS)))
        whole = self.folder / "whole"
        self.finish(job, run_dir=whole)
        self.assertEqual((self.run_dir / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())

    def test_fresh_keeps_all_that_was_there(self):
        job = short_job(checkpoint={"every_iterations": 10})
        self.killed_run(25, job)
        for count, earlier in ((1_000_000, "earlier"), (5, "earlier-2")):
            lines = (self.run_dir / "metrics.jsonl").read_bytes()
            process = self.start_local({**job, "iterations": count}, "--fresh", name=earlier)
            wait_for("the word of it", lambda: f"begins anew; the files of an unfinished run there are in "
                     f"{self.run_dir / earlier} now\n" in process.log())
            self.assertEqual((self.run_dir / earlier / "metrics.jsonl").read_bytes(), lines)
            self.assertTrue(list((self.run_dir / earlier / "cluster/coordinator/checkpoints").glob("*/*.json")))
            self.assertTrue((self.run_dir / earlier / "logs/worker-0.log").exists())
            if count > 5:
                wait_for_line(self.run_dir, 15)
                self.wait_for_checkpoint()
                self.kill(process)
        self.assertEqual(process.wait(60), 0, process.log())
        self.assertEqual(iterations(self.run_dir), list(range(5)))

    def test_without_a_checkpoint_begins_anew_and_keeps_the_lines(self):
        self.killed_run(20, short_job())
        lines = (self.run_dir / "metrics.jsonl").read_bytes()
        result = self.finish(short_job(iterations=5))
        self.assertIn("begins anew; the files of an unfinished run without a checkpoint there are in "
                      f"{self.run_dir / 'earlier'} now\n", result.stdout)
        self.assertEqual((self.run_dir / "earlier/metrics.jsonl").read_bytes(), lines)

    def test_a_finished_run_is_kept(self):
        self.finish(short_job(iterations=3))
        for count, earlier in ((4, "earlier"), (5, "earlier-2")):
            model = (self.run_dir / "model.safetensors").read_bytes()
            result = self.finish(short_job(iterations=count))
            self.assertIn(f"the files of a finished run there are in {self.run_dir / earlier} now", result.stdout)
            self.assertEqual((self.run_dir / earlier / "model.safetensors").read_bytes(), model)
            self.assertEqual(iterations(self.run_dir / earlier), list(range(count - 1)))
        self.assertEqual(iterations(self.run_dir), list(range(5)))

    def test_another_job_is_refused_by_the_field(self):
        job = short_job(checkpoint={"every_iterations": 10})
        self.killed_run(25, job)
        lines = (self.run_dir / "metrics.jsonl").read_bytes()
        job["optimizer"] = {"type": "sgd", "learning_rate": 0.001, "momentum": 0.5}
        refused = poseidon(*self.call(job))
        self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
        self.assertRegex(refused.stderr, r"holds an unfinished run of another job: optimizer\.momentum was 0.* and is 0\.5")
        self.assertIn("--fresh begins anew", refused.stderr)
        self.assertEqual((self.run_dir / "metrics.jsonl").read_bytes(), lines)
        self.assertFalse((self.run_dir / "earlier").exists())

    def test_a_longer_run_at_another_rate_goes_on(self):
        self.killed_run(25, short_job(checkpoint={"every_iterations": 10}))
        longer = short_job(iterations=60, optimizer={"type": "sgd", "learning_rate": 0.0005})
        result = self.finish(longer, servers=2)
        self.assertIn("goes on from checkpoint", result.stdout)
        lines = metrics(self.run_dir)[0]
        self.assertEqual([line["iteration"] for line in lines], list(range(60)))
        self.assertEqual((lines[0]["learning_rate"], lines[-1]["learning_rate"]), (0.001, 0.0005))


class Restore(StopTest):
    """`poseidon checkpoint restore --job`."""

    def test_what_may_change_does_and_the_rest_is_refused_by_name(self):
        cluster = Cluster(self).add(workers=2, servers=1)
        submitted = cluster.submit(short_job(iterations=1_000_000), "--workers", 2, "--servers", 1, run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        cluster.wait_for_iteration(15)
        self.assertEqual(cluster.poseidon("stop").returncode, 0)
        left = json.loads((self.run_dir / "stopped.json").read_text())

        def restore(job):
            return cluster.poseidon("checkpoint", "restore", "--job", self.write_job(job, "new.json"), "--wait")

        for changes, field in (({"optimizer": {"type": "adam", "learning_rate": 0.001}}, "optimizer"),
                               ({"model": "mlp"}, "model"), ({"name": "others"}, "name")):
            refused = restore(short_job(**changes))
            self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
            self.assertRegex(refused.stderr, rf"--job: {field}\S* was .* may not change from a checkpoint on; checkpoint "
                                             rf"{left['checkpoint']} is of job digits-1")
        until = left["iteration"] + 20
        changed = short_job(iterations=until, batch_size=16, test_every_iterations=10,
                            optimizer={"type": "sgd", "learning_rate": 0.002})
        result = restore(changed)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        lines, tests = metrics(self.run_dir)
        self.assertEqual([line["iteration"] for line in lines], list(range(until)))
        self.assertEqual(lines[left["iteration"]]["learning_rate"], 0.002)
        self.assertTrue(tests)
        self.assertEqual(json.loads((self.run_dir / "job.json").read_text())["batch_size"], 16)
        self.assertFalse((self.run_dir / "stopped.json").exists())

    def test_with_tls_the_coordinator_reads_the_model_as_well(self):
        made = poseidon("tls", "init", "--to", self.folder / "tls")
        self.assertEqual(made.returncode, 0, made.stderr)
        cluster = Cluster(self, proofs=lambda role: ["--tls-dir", self.folder / "tls" / role]).add(workers=1, servers=2)
        submitted = cluster.submit(short_job(iterations=1_000_000), "--workers", 1, run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        cluster.wait_for_iteration(5)
        stopped = cluster.poseidon("stop")
        self.assertEqual(stopped.returncode, 0, stopped.stdout + stopped.stderr)
        self.assertNotIn("is not written", stopped.stdout)
        exported = self.folder / "exported.safetensors"
        self.assertEqual(cluster.poseidon("checkpoint", "export", "--to", exported).returncode, 0)
        self.assertEqual((self.run_dir / "model.safetensors").read_bytes(), exported.read_bytes())

    def test_without_a_server_the_message_says_what_is_missing(self):
        cluster = Cluster(self).add(workers=1, servers=2)
        submitted = cluster.submit(short_job(iterations=1_000_000, checkpoint={"every_iterations": 5}), "--workers", 1,
                                   run_dir=self.run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        cluster.wait_for_iteration(15)
        self.kill(cluster.servers[1][0])
        stopped = cluster.poseidon("stop", "--checkpoint-within-s", 0)
        self.assertEqual(stopped.returncode, 0, stopped.stdout + stopped.stderr)
        self.assertIn("model.safetensors is not written", cluster.status()["message"])
        self.assertEqual(cluster.status()["state"], "stopped")
        self.assertTrue((self.run_dir / "stopped.json").exists())
        self.assertFalse((self.run_dir / "model.safetensors").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
