"""The operator's checkpoint commands on real processes: list, save, export, restore."""

import json
import re
import shutil
import signal
import unittest

from cluster import (NORMALISED, Cluster, ProcessTest, Slowed, digits_job, losses, metrics, poseidon, wait_for,
                     wait_for_line)

ITERATIONS = 80
EVERY = 20
ADAM = {"type": "adam", "learning_rate": 0.001}
# With the example's rate one worker alone, which a job may begin with, would diverge within a second.
SLOW = {"type": "sgd", "learning_rate": 0.001, "momentum": 0.9}


def job(scheme="ps", **changes):
    values = {"iterations": ITERATIONS, "test_every_iterations": 40, "sync": {"scheme": scheme},
              "checkpoint": {"every_iterations": EVERY, "keep": 3}}
    return digits_job(**{**values, **changes})


def endless(**changes):
    """Trains until it is stopped."""
    return job(**{"iterations": 1_000_000, "checkpoint": {"every_iterations": 0}, "optimizer": SLOW, **changes})


def own_job(entries, checkpoint):
    return next(entry["job_id"] for entry in entries if entry["id"] == checkpoint)


class Checkpoints(ProcessTest):
    def cluster(self, workers=2, servers=2):
        return Cluster(self).add(workers=workers, servers=servers)

    @staticmethod
    def command(cluster, *arguments, address=None, timeout_s=120):
        return poseidon("checkpoint", *arguments, "--coordinator", address or cluster.address, timeout_s=timeout_s)

    def ok(self, cluster, *arguments):
        result = self.command(cluster, *arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def refused(self, code, pattern, cluster, *arguments, **more):
        result = self.command(cluster, *arguments, **more)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertRegex(result.stderr, pattern)

    def listed(self, cluster):
        return json.loads(self.ok(cluster, "list", "--json"))

    def submit(self, cluster, description, *arguments, run_dir=None):
        result = cluster.submit(description, *arguments, run_dir=run_dir or self.folder / "run")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def stop(self, cluster):
        """The coordinator in order, which ends the job (killed, it would go on with it by itself); all others at once."""
        if cluster.coordinator.running():
            cluster.coordinator.signal(signal.SIGTERM)
            self.assertEqual(cluster.coordinator.wait(), 0, cluster.coordinator.log())
        for process in [cluster.coordinator, *cluster.workers, *(server for server, _ in cluster.servers)]:
            process.signal(signal.SIGKILL)
            process.wait()

    def again(self, workers, servers):
        """New processes of all kinds with the old ones' state and data."""
        return self.cluster(workers, servers)

    def results(self, run_dir):
        iterations, tests = metrics(run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(ITERATIONS)))
        return ((run_dir / "model.safetensors").read_bytes(), [line["loss"] for line in iterations],
                [(line["iteration"], line["test_loss"], line["test_accuracy"]) for line in tests])

    # ---- list, save, export ----

    def test_save_and_export_while_training(self):
        cluster = self.cluster()
        self.refused(1, "no committed checkpoint", cluster, "export", "--to", self.folder / "x")
        self.refused(1, "no job was submitted", cluster, "save")
        self.refused(1, "no committed checkpoint", cluster, "restore")
        self.assertEqual(self.listed(cluster), [])
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(5)
        saved = self.ok(cluster, "save").strip()
        self.assertRegex(saved, r"^\d+-\d+$")
        (entry,) = self.listed(cluster)
        self.assertEqual(entry["id"], saved)
        self.assertEqual(entry["iteration"], int(saved.split("-")[1]))
        self.assertIs(entry["committed"], True)
        self.assertGreater(entry["bytes"], 431080 * 4)
        self.assertRegex(entry["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertIn(saved, self.ok(cluster, "list"))
        file = self.folder / "model.safetensors"
        self.ok(cluster, "export", "--to", file)
        self.assertGreater(file.stat().st_size, 431080 * 4)
        second = self.ok(cluster, "save").strip()
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], [saved, second])
        again = self.folder / "again.safetensors"
        self.ok(cluster, "export", "--checkpoint", saved, "--to", again)
        self.assertEqual(file.read_bytes(), again.read_bytes())

        self.refused(2, "no committed checkpoint 99-1.*newest are", cluster, "export", "--to", file, "--checkpoint",
                     "99-1")
        self.refused(2, "is no id", cluster, "restore", "--checkpoint", "newest")
        self.refused(2, "--to", cluster, "export", "--to", self.folder / "missing" / "x")
        self.refused(2, "--to", cluster, "export")
        self.refused(1, "one job at a time", cluster, "restore")
        self.assertEqual(cluster.status()["state"], "running")
        lost, _ = cluster.servers[1]
        lost.signal(signal.SIGKILL)
        wait_for("the lost server to be noticed", lambda: len(
            [s for s in cluster.status()["servers"] if s["state"] != "lost"]) == 1)
        self.refused(1, "STORE_IDENTITY [0-9a-f]{32}, with a part of checkpoint", cluster, "export", "--to", file)

    def test_keep_does_not_remove_what_is_being_exported(self):
        cluster = self.cluster()
        self.submit(cluster, endless(checkpoint={"every_iterations": 0, "keep": 1}), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(5)
        saved = [self.ok(cluster, "save").strip() for _ in range(2)]
        # It is removed once metrics.jsonl has the lines before the other one on disk.
        wait_for("one to be kept", lambda: [entry["id"] for entry in self.listed(cluster)] == saved[1:])
        file, again = self.folder / "model.safetensors", self.folder / "again.safetensors"
        self.ok(cluster, "export", "--to", file)
        saved.append(self.ok(cluster, "save").strip())
        # The command has ended, but the last sign of its life is younger than a minute.
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], saved[1:])
        self.ok(cluster, "export", "--checkpoint", saved[1], "--to", again)
        self.assertEqual(file.read_bytes(), again.read_bytes())

    def test_parts_that_no_manifest_knows_are_removed_when_their_server_comes(self):
        cluster = self.cluster()
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(5)
        lost, kept = (self.ok(cluster, "save").strip() for _ in range(2))
        self.stop(cluster)
        (manifest,) = (self.folder / "state" / "checkpoints").glob(f"*/{lost}.json")
        manifest.unlink()
        stopped = [entry.stem for entry in (self.folder / "state" / "checkpoints").glob("*/*.json")]
        self.assertIn(kept, stopped)
        cluster = self.again(workers=2, servers=2)
        for server, _ in cluster.servers:
            wait_for("the part to be removed", lambda s=server: f"the part of checkpoint {lost} is removed" in s.log())
            for name in stopped:
                self.assertNotIn(f"the part of checkpoint {name} is removed", server.log())
        self.ok(cluster, "export", "--checkpoint", kept, "--to", self.folder / "kept.safetensors")

    def test_a_coordinator_that_knows_nothing_harms_no_earlier_checkpoint(self):
        state, file = self.folder / "state", self.folder / "model.safetensors"
        cluster = self.cluster()
        kept = {"every_iterations": EVERY, "keep": 1}
        self.submit(cluster, job(checkpoint=kept), "--workers", 2, "--servers", 2, "--wait")
        (old,) = self.listed(cluster)
        self.ok(cluster, "export", "--to", file)
        self.stop(cluster)
        state.rename(self.folder / "old-state")
        # Its first job is in epoch 1 as well, and waits when the servers come.
        cluster = Cluster(self)
        self.submit(cluster, job(checkpoint=kept, optimizer=ADAM), "--workers", 2, "--servers", 2,
                    run_dir=self.folder / "other")
        self.assertEqual(cluster.status()["epoch"], 1)
        cluster.add(workers=2, servers=2)
        cluster.wait_for_state("done")
        (new,) = self.listed(cluster)
        self.assertEqual((old["id"], new["id"]), ("1-80", "2-80"), cluster.coordinator.log())
        self.stop(cluster)
        state.rename(self.folder / "new-state")
        (self.folder / "old-state").rename(state)
        cluster = self.again(workers=2, servers=2)
        again = self.folder / "again.safetensors"
        self.ok(cluster, "export", "--checkpoint", old["id"], "--to", again)
        self.assertEqual(file.read_bytes(), again.read_bytes())

    def test_an_old_copy_of_a_coordinator_harms_no_later_checkpoint(self):
        state, file = self.folder / "state", self.folder / "model.safetensors"
        kept = {"every_iterations": EVERY, "keep": 1}
        cluster = self.cluster()
        self.submit(cluster, job(checkpoint=kept), "--workers", 2, "--servers", 2, "--wait")
        self.stop(cluster)
        shutil.copytree(state, self.folder / "copy")
        cluster = self.again(workers=2, servers=2)
        self.submit(cluster, job(checkpoint=kept, optimizer=ADAM), "--workers", 2, "--servers", 2, "--wait",
                    run_dir=self.folder / "later")
        later = self.listed(cluster)[-1]["id"]
        self.assertEqual(later, "2-80")
        self.ok(cluster, "export", "--checkpoint", later, "--to", file)
        self.stop(cluster)
        state.rename(self.folder / "newest")
        shutil.copytree(self.folder / "copy", state)
        # Twice: in the second process the epoch that the servers show would look like its own.
        for name in ("first", "second"):
            cluster = self.again(workers=2, servers=2)
            if name == "first":
                wait_for("the alarm", lambda: "begun none after 1" in cluster.coordinator.log())
            self.submit(cluster, job(checkpoint=kept), "--workers", 2, "--servers", 2, "--wait",
                        run_dir=self.folder / name)
            self.stop(cluster)
        shutil.rmtree(state)
        (self.folder / "newest").rename(state)
        cluster = self.again(workers=2, servers=2)
        again = self.folder / "again.safetensors"
        self.ok(cluster, "export", "--checkpoint", later, "--to", again)
        self.assertEqual(file.read_bytes(), again.read_bytes())

    def test_nobody_answers(self):
        self.refused(1, "no coordinator answers at 127.0.0.1:1", None, "list", "--connect-timeout-s", 1,
                     address="127.0.0.1:1")
        self.refused(2, "port", None, "save", address="nowhere")

    def exported_end(self, scheme, **changes):
        cluster = self.cluster()
        description = job(scheme, checkpoint={"every_iterations": 40, "keep": 1}, **changes)
        self.submit(cluster, description, "--workers", 2, "--servers", 2, "--wait")
        entries = self.listed(cluster)
        self.assertEqual([entry["iteration"] for entry in entries], [80], cluster.coordinator.log())
        file = self.folder / "exported.safetensors"
        self.ok(cluster, "export", "--to", file)
        self.assertEqual(file.read_bytes(), (self.folder / "run" / "model.safetensors").read_bytes())
        self.refused(1, "all 80 iterations are done", cluster, "restore")

    def test_the_last_checkpoint_is_the_model(self):
        self.exported_end("ps")

    def test_the_last_checkpoint_is_the_model_with_factors(self):
        self.exported_end("sfb", optimizer=ADAM)

    def test_the_last_checkpoint_is_the_model_with_running_statistics(self):
        self.exported_end("ps", model=NORMALISED)

    # ---- restore ----

    def restored(self, scheme, servers, **changes):
        """All processes end in the middle; the same bytes come out of as many workers and other servers."""
        expected = self.results(self.train(job(scheme, **{**changes, "checkpoint": {"every_iterations": 0}}), 2, 2))
        cluster = self.cluster(workers=2, servers=2)
        run_dir = self.folder / "run"
        self.submit(cluster, job(scheme, **changes), "--workers", 2, "--servers", 2)
        wait_for_line(run_dir, EVERY + 5)
        with Slowed(cluster.workers[0]):
            wait_for("a checkpoint", lambda: " is committed" in cluster.coordinator.log())
            self.stop(cluster)

        cluster = self.again(workers=2, servers=max(servers, 2))
        listed = self.listed(cluster)
        self.assertTrue(listed, cluster.coordinator.log())
        newest = listed[-1]
        self.assertTrue(newest["committed"])
        result = self.command(cluster, "restore", "--servers", servers, "--wait")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(cluster.coordinator.log(), f"goes on at iteration {newest['iteration']} ")
        self.assertEqual(self.results(run_dir), expected)
        self.assertEqual(len({entry["job_id"] for entry in self.listed(cluster)}), 1, "it is the same job")
        self.assertLessEqual(len(self.listed(cluster)), 3)

    def test_restored_on_one_server(self):
        self.restored("ps", 1)

    def test_restored_on_two_servers_with_factors(self):
        self.restored("sfb", 2)

    def test_restored_on_three_servers(self):
        self.restored("ps", 3, optimizer=ADAM)

    def test_restored_on_three_servers_with_factors(self):
        self.restored("sfb", 3, optimizer=ADAM)

    def test_restored_with_running_statistics(self):
        self.restored("ps", 2, model=NORMALISED, batch_size=256)

    def test_what_is_missing_is_named(self):
        cluster = self.cluster()
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(5)
        self.ok(cluster, "save")
        self.stop(cluster)
        cluster = self.again(workers=2, servers=1)
        self.refused(2, "100 workers are asked for, but the job allows", cluster, "restore", "--workers", 100)
        self.refused(2, "must be absolute", cluster, "restore", "--run-dir", "here")
        self.assertIn("accepted", self.ok(cluster, "restore", "--servers", 1))
        pattern = "waits for the server whose --data-dir has STORE_IDENTITY [0-9a-f]{32}, with a part of checkpoint"
        wait_for("the missing server to be named", lambda: re.search(pattern, cluster.status()["message"]))
        cluster.add_server()
        cluster.wait_for_iteration(20)

    def test_one_bit_is_noticed(self):
        """In the newest manifest: its checkpoint is none, and whoever would take it hears so."""
        cluster = self.cluster()
        self.submit(cluster, job(), "--workers", 2, "--servers", 2, "--wait")
        *_, older, newest = [entry["id"] for entry in self.listed(cluster)]
        self.stop(cluster)
        (manifest,) = (self.folder / "state" / "checkpoints").glob(f"*/{newest}.json")
        whole = manifest.read_text()
        manifest.write_text(re.sub(r'("samples": \d*)0,', r"\g<1>1,", whole, count=1))
        cluster = self.again(workers=2, servers=2)
        file = self.folder / "model.safetensors"
        listed = cluster.poseidon("checkpoint", "list")
        self.assertIn(f"warning: cannot be read as a checkpoint: {manifest}: its checksum is", listed.stderr)
        self.refused(1, f"checkpoint {newest} cannot be read", cluster, "export", "--checkpoint", newest, "--to", file)
        exported = cluster.poseidon("checkpoint", "export", "--to", file)
        self.assertIn(f"checkpoint {older} (job digits", exported.stdout)
        self.assertIn(f"warning: checkpoint {older} is the newest that could be read", exported.stderr)
        for other in manifest.parent.glob("*.json"):
            other.write_bytes(other.read_bytes().replace(b"stores", b"storms", 1))
        self.stop(cluster)
        cluster = self.again(workers=2, servers=2)
        self.refused(1, "no committed checkpoint can be read", cluster, "restore")
        self.stop(cluster)
        manifest.write_text(whole)
        cluster = self.again(workers=2, servers=2)
        self.ok(cluster, "export", "--checkpoint", newest, "--to", file)

    def test_the_runs_own_directory_by_another_name(self):
        """Its lines are continued, and a server that is gone for good is done without."""
        cluster = self.cluster()
        run_dir = self.folder / "run"
        saving = {"every_iterations": 10, "keep": 2, "replicas": 2}
        self.submit(cluster, endless(checkpoint=saving), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(25)
        self.stop(cluster)
        cluster = self.again(workers=2, servers=1)
        newest = self.listed(cluster)[-1]
        self.refused(2, "keeps its own state", cluster, "restore", "--run-dir", self.folder / "state")
        self.refused(2, "keeps its own state", cluster, "restore", "--run-dir", self.folder / "state/checkpoints/here")
        self.refused(2, "keeps its own state", cluster, "restore", "--run-dir", self.folder / "state/plans")
        (self.folder / "link").symlink_to("run")
        self.ok(cluster, "restore", "--servers", 1, "--run-dir", f"{self.folder}/./link/")
        cluster.wait_for_iteration(newest["iteration"] + 5)
        status = cluster.status()
        self.assertEqual(status["job_id"], newest["job_id"], "it is the same job")
        self.assertEqual(status["training_from"], newest["iteration"])
        wait_for("its lines", lambda: len(metrics(run_dir)[0]) >= newest["iteration"] + 5)
        lines, _ = metrics(run_dir)
        self.assertEqual([line["iteration"] for line in lines], list(range(len(lines))))

    def test_lines_that_a_restored_run_lacks_are_told(self):
        cluster = self.cluster()
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(10)
        saved = self.ok(cluster, "save").strip()
        self.stop(cluster)
        file = self.folder / "run/metrics.jsonl"
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:4]))
        cluster = self.again(workers=2, servers=2)
        self.ok(cluster, "restore", "--checkpoint", saved)
        iteration = int(saved.split("-")[1])
        self.assertIn(f"has no lines of iterations 4 to {iteration - 1}", cluster.coordinator.log())

    def test_a_restored_job_that_waits_outlives_its_coordinator(self):
        cluster = self.cluster()
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(5)
        saved = self.ok(cluster, "save").strip()
        self.stop(cluster)
        cluster = self.again(workers=2, servers=0)
        self.ok(cluster, "restore", "--checkpoint", saved)
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()
        cluster.restart_coordinator()
        self.assertEqual(cluster.status()["state"], "waiting")
        cluster.add_server()
        cluster.add_server()
        iteration = int(saved.split("-")[1])
        cluster.wait_for_iteration(iteration + 5)
        self.assertIn(f"goes on at iteration {iteration} (checkpoint {saved})", cluster.coordinator.log())
        wait_for("its lines", lambda: len(metrics(self.folder / "run")[0]) >= iteration + 5)
        lines, _ = metrics(self.folder / "run")
        self.assertEqual([line["iteration"] for line in lines], list(range(len(lines))))

    def test_a_run_directory_that_another_job_has_taken(self):
        cluster = self.cluster()
        self.submit(cluster, job(), "--workers", 2, "--servers", 2, "--wait")
        first = self.listed(cluster)[0]["id"]
        self.submit(cluster, job(iterations=10), "--workers", 2, "--servers", 2, "--wait")
        self.refused(2, "another job's files", cluster, "restore", "--checkpoint", first)

    def test_workers_that_the_batch_cannot_be_divided_by(self):
        """Refused before anything is moved: what stands in the run directory is a finished run."""
        cluster = self.cluster()
        self.submit(cluster, job(batch_size=16, membership={"batch": "global"}), "--workers", 2, "--servers", 2, "--wait")
        run = self.folder / "run"
        before = sorted(run.iterdir()), self.results(run)
        source = self.listed(cluster)[0]["id"]
        self.refused(2, "--workers 3: the batch of all workers, 32 .* is not divisible by 3 workers", cluster, "restore",
                     "--checkpoint", source, "--workers", 3)
        self.assertEqual((sorted(run.iterdir()), self.results(run)), before)
        self.assertEqual(cluster.status()["state"], "done")

    def test_a_branch_with_other_workers(self):
        cluster = self.cluster()
        description = job(batch_size=24, membership={"batch": "global"})
        self.submit(cluster, description, "--workers", 2, "--servers", 2, "--wait")
        before = self.results(self.folder / "run")
        source = self.listed(cluster)[0]
        branch = self.folder / "branch"
        cluster.add_worker()
        self.ok(cluster, "restore", "--checkpoint", source["id"], "--workers", 3, "--run-dir", branch, "--wait")
        iterations, _ = metrics(branch)
        self.assertEqual([line["iteration"] for line in iterations], list(range(source["iteration"], ITERATIONS)))
        self.assertTrue((branch / "model.safetensors").exists())
        # The batch of all is the same, so the losses are, but for the order of sums: with other parameters the first would
        # differ, without the momentum the second and more each of the rest.
        after = slice(source["iteration"], source["iteration"] + 10)
        for one, other in zip(losses(branch), before[1][after]):
            self.assertAlmostEqual(one, other, delta=1e-5)
        self.assertEqual(self.results(self.folder / "run"), before, "the run it comes from is as it was")
        self.assertIn(source["id"], [entry["id"] for entry in self.listed(cluster)])
        # In its own directory a run that has finished is made again from there, and what it left is kept.
        lines = (self.folder / "run" / "metrics.jsonl").read_bytes()
        self.ok(cluster, "restore", "--checkpoint", source["id"], "--workers", 2, "--wait")
        self.assertEqual(self.results(self.folder / "run"), before)
        earlier = self.folder / "run" / "earlier"
        self.assertEqual((earlier / "model.safetensors").read_bytes(), before[0])
        self.assertEqual((earlier / "metrics.jsonl").read_bytes(), lines)
        self.assertTrue((earlier / "job.json").exists())

    # ---- remove ----

    def test_checkpoints_of_jobs_that_are_over_are_removed(self):
        cluster = self.cluster()
        self.refused(2, "--checkpoint or --job", cluster, "remove")
        self.submit(cluster, job(), "--workers", 2, "--servers", 2)
        cluster.wait_for_state("done")
        ids = [entry["id"] for entry in self.listed(cluster)]
        self.assertEqual(len(ids), 3)
        self.refused(2, "is no id", cluster, "remove", "--checkpoint", "the newest")
        self.refused(2, "there is no checkpoint of a job digits-7", cluster, "remove", "--job", "digits-7")
        self.refused(2, "there is no committed checkpoint 9-9", cluster, "remove", "--checkpoint", ids[0], "9-9")
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], ids, "all or none")
        self.assertEqual(self.ok(cluster, "remove", "--checkpoint", ids[0]), ids[0] + "\n")
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], ids[1:])
        # Another job trains meanwhile, whose own are not to be had.
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2, run_dir=self.folder / "another")
        cluster.wait_for_iteration(5)
        own = self.ok(cluster, "save").strip()
        self.refused(1, f"checkpoint {own} is needed: job digits-\\d+ is running", cluster, "remove", "--checkpoint", own, ids[1])
        self.assertEqual(self.ok(cluster, "remove", "--job", "digits-1", "--keep", 1), ids[1] + "\n")
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], [ids[2], own])
        self.ok(cluster, "export", "--checkpoint", ids[2], "--to", self.folder / "kept.safetensors")
        self.assertEqual(self.stop_job(cluster, "--checkpoint-within-s", 0).returncode, 0)
        self.assertEqual(self.ok(cluster, "remove", "--job", own_job(self.listed(cluster), own)), own + "\n")
        # What is being exported stays until that is over: a minute from the export's last sign of life.
        held = self.command(cluster, "remove", "--checkpoint", ids[2])
        self.assertEqual((held.returncode, held.stdout), (0, ""), held.stderr)
        self.assertIn(f"checkpoint {ids[2]} is being exported; it will be removed after that", held.stderr)
        self.stop(cluster)
        cluster = self.again(workers=2, servers=2)
        self.assertNotIn(own, [entry["id"] for entry in self.listed(cluster)])

    # ---- stop ----

    @staticmethod
    def stop_job(cluster, *arguments):
        return poseidon("stop", "--coordinator", cluster.address, *arguments)

    def test_an_operator_stops_a_job_and_the_cluster_stays(self):
        cluster = self.cluster()
        none = self.stop_job(cluster)
        self.assertEqual(none.returncode, 1, none.stdout)
        self.assertIn("no job is active: there is nothing to stop", none.stderr)
        follower = cluster.start("follower", "poseidon", "submit", self.write_job(endless()), "--coordinator",
                                 cluster.address, "--workers", 2, "--servers", 2, "--wait", "--run-dir",
                                 self.folder / "run")
        wait_for("the job to be accepted", lambda: " accepted" in follower.log())
        cluster.wait_for_iteration(10)
        other = self.stop_job(cluster, "--job", "digits-77")
        self.assertEqual(other.returncode, 1, other.stdout)
        self.assertRegex(other.stderr, r"job digits-1 is running .* job digits-77 is not active")
        stopped = self.stop_job(cluster, "--job", "digits-1")
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        said = re.search(r"(?s)^job digits-1 ends when its final checkpoint is saved\n.*has ended after (\d+) of 1000000 "
                         r"iterations: an operator stopped it .*goes on from checkpoint (\S+); its files are in (\S+)\n"
                         r"go on with: poseidon checkpoint restore --coordinator \S+ --checkpoint \2$", stopped.stdout.strip())
        self.assertIsNotNone(said, stopped.stdout)
        self.assertEqual(said.group(3), str(self.folder / "run"))
        self.assertEqual(follower.wait(15), 3, follower.log())
        self.assertIn("an operator stopped it", follower.log())
        self.assertIn(f"go on with: poseidon checkpoint restore --coordinator {cluster.address} --checkpoint {said.group(2)}\n",
                      follower.log())
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], [said.group(2)])
        saved = int(said.group(2).split("-")[1])
        self.assertGreaterEqual(saved, 10)
        self.assertEqual(int(said.group(1)), saved)
        # The run directory has the model of the last finished iteration, and says of which checkpoint it is.
        run = self.folder / "run"
        self.assertEqual([line["iteration"] for line in metrics(run)[0]], list(range(saved)))
        exported = self.folder / "exported.safetensors"
        self.ok(cluster, "export", "--checkpoint", said.group(2), "--to", exported)
        self.assertEqual((run / "model.safetensors").read_bytes(), exported.read_bytes())
        self.assertEqual(json.loads((run / "stopped.json").read_text()),
                         {"job": "digits-1", "checkpoint": said.group(2), "iteration": saved, "iterations": 1_000_000})
        status = cluster.status()
        self.assertEqual((status["state"], status["iteration"]), ("stopped", saved))
        # The same nodes train on from there, and are stopped again: without another checkpoint.
        self.ok(cluster, "restore")
        cluster.wait_for_iteration(saved + 5)
        stopped = self.stop_job(cluster, "--checkpoint-within-s", 0)
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        self.assertIn(f"goes on from checkpoint {said.group(2)}", stopped.stdout)
        self.assertNotIn("ends when", stopped.stdout)
        self.assertEqual(len(self.listed(cluster)), 1)
        run_dir = self.folder / "next"
        self.submit(cluster, job(iterations=5), "--workers", 2, "--servers", 2, run_dir=run_dir)
        cluster.wait_for_state("done")

    def test_a_job_that_waits_for_nodes_is_stopped(self):
        cluster = self.cluster(workers=1, servers=1)
        self.submit(cluster, endless(), "--workers", 2)
        stopped = self.stop_job(cluster)
        self.assertEqual(stopped.returncode, 0, stopped.stderr)
        self.assertIn("there is no checkpoint of it", stopped.stdout)
        self.assertNotIn("go on with", stopped.stdout)
        self.assertEqual(cluster.status()["state"], "stopped")

    def test_a_checkpoint_that_cannot_be_taken_is_an_error(self):
        cluster = self.cluster()
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(10)
        checkpoints = self.folder / "state" / "checkpoints"
        shutil.rmtree(checkpoints)
        checkpoints.write_text("no folder")
        stopped = self.stop_job(cluster, "--checkpoint-within-s", 20)
        self.assertEqual(stopped.returncode, 1, stopped.stdout)
        self.assertRegex(stopped.stderr, r"has ended after .*its progress since the last checkpoint is not saved")

    def test_a_stopped_coordinator_leaves_a_checkpoint(self):
        cluster = self.cluster()
        self.submit(cluster, endless(), "--workers", 2, "--servers", 2)
        cluster.wait_for_iteration(10)
        cluster.coordinator.signal(signal.SIGTERM)
        self.assertEqual(cluster.coordinator.wait(), 0)
        saved = re.search(r"`poseidon checkpoint restore` goes on from checkpoint (\S+)", cluster.coordinator.log())
        self.assertIsNotNone(saved, cluster.coordinator.log())
        self.stop(cluster)
        cluster = self.again(workers=2, servers=2)
        self.assertEqual([entry["id"] for entry in self.listed(cluster)], [saved.group(1)])
        self.ok(cluster, "restore", "--run-dir", self.folder / "branch")
        iteration = int(saved.group(1).split("-")[1])
        cluster.wait_for_iteration(iteration + 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
