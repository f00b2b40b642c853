"""Processes that stop, die, freeze, come late, or talk nonsense: said by name within seconds, and nothing hangs."""

import os
import pathlib
import random
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
import unittest

from cluster import BIN, LEASE_MS, Cluster, ProcessTest, digits_job, metrics, wait_for, exists, wait_for_line

# Noticing takes one lease; the rest is for two slow cores.
NOTICE_S = LEASE_MS / 1000 + 12


def endless_job():
    """With the rate of the example one worker alone would diverge, within seconds on a fast machine."""
    return digits_job(iterations=1_000_000, test_every_iterations=0, checkpoint={"every_iterations": 1000},
                      optimizer={"type": "sgd", "learning_rate": 0.001})


def address_of_this_machine():
    """One that is no loopback; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


class Addresses(ProcessTest):
    def test_who_announces_a_loopback_address_is_refused_by_a_coordinator_that_sees_another(self):
        address = address_of_this_machine()
        if address is None:
            self.skipTest("SKIPPED: this machine has no address but loopback")

        class Elsewhere:
            def address(self, name):
                return address if name == "coordinator" else "127.0.0.1"

            def command(self, _name, arguments):
                return arguments

        cluster = Cluster(self, place=Elsewhere())
        server = cluster.add_server()
        self.assertEqual(server.wait(NOTICE_S), 2, server.log())
        self.assertIn("which only its own machine reaches, but the coordinator sees it at " + address, server.log())
        self.assertIn("--listen", server.log())
        self.assertIn("refused a message (malformed, number 1): Join from " + address, cluster.coordinator.log())
        cluster.add_worker()  # listens where it reaches the coordinator
        wait_for("the worker to join", lambda: cluster.status()["workers"])
        self.assertEqual(cluster.status()["workers"][0]["note"], "")


class CleanStop(ProcessTest):
    def test_every_daemon_stops_on_sigterm(self):
        cluster = Cluster(self).add(workers=1, servers=1)
        wait_for("both to join", lambda: len(cluster.status()["workers"]) == len(cluster.status()["servers"]) == 1)
        for process in (cluster.workers[0], cluster.servers[0][0], cluster.coordinator):
            process.signal(signal.SIGTERM)
            self.assertEqual(process.wait(10), 0, process.log())

    def test_daemons_stop_on_sigterm_while_they_train(self):
        cluster = Cluster(self).add(workers=2, servers=1)
        self.assertEqual(cluster.submit(endless_job(), "--workers", 2).returncode, 0)
        cluster.wait_for_iteration(2)
        cluster.workers[1].signal(signal.SIGTERM)
        self.assertEqual(cluster.workers[1].wait(10), 0, cluster.workers[1].log())
        wait_for("the other to train on", lambda: cluster.status()["state"] == "running" and
                 [node["state"] for node in cluster.status()["workers"]] == ["running"], NOTICE_S)
        for process in (cluster.servers[0][0], cluster.coordinator, cluster.workers[0]):
            process.signal(signal.SIGTERM)
            self.assertEqual(process.wait(15), 0, process.log())

    def test_servers_stop_while_their_disks_write(self):
        """What a disk ends by then is reported to nobody, whether the coordinator is there or not."""
        job = digits_job(iterations=1_000_000, test_every_iterations=0, checkpoint={"every_iterations": 1, "keep": 2},
                         optimizer={"type": "sgd", "learning_rate": 0.001})
        for is_there in (False, True, False):
            cluster = Cluster(self, keeps_job=True).add(workers=1, servers=2)
            self.assertEqual(cluster.submit(job, "--workers", 1, "--servers", 2).returncode, 0)
            wait_for("checkpoints", lambda: all("on disk in" in server.log() for server, _ in cluster.servers))
            if not is_there:
                cluster.coordinator.signal(signal.SIGTERM)
                self.assertEqual(cluster.coordinator.wait(15), 0, cluster.coordinator.log())
            for process, _ in cluster.servers:
                process.signal(signal.SIGTERM)
            for process, _ in cluster.servers:
                self.assertEqual(process.wait(15), 0, process.log())
            for process in (cluster.coordinator, *cluster.workers):
                process.destroy()
            shutil.rmtree(self.folder / "state")
            for index in range(2):
                shutil.rmtree(self.folder / f"server-{index}")

    def test_who_follows_the_job_no_longer_hears_that_it_goes_on(self):
        cluster = Cluster(self).add(workers=1, servers=1)
        job = self.write_job(endless_job())
        for number in (signal.SIGINT, signal.SIGTERM):
            follower = cluster.start("follower", "poseidon", "submit", job, "--coordinator", cluster.address, "--wait")
            wait_for("the progress to be shown", lambda: "iteration" in follower.log())
            follower.signal(number)
            self.assertEqual(follower.wait(10), -number)
            self.assertIn(f"the job goes on; see it with: poseidon status --coordinator {cluster.address}", follower.log())
            self.assertEqual(cluster.status()["state"], "running")
            self.assertEqual(cluster.poseidon("stop").returncode, 0)

    def test_who_follows_the_job_hears_why_the_coordinator_stops(self):
        cluster = Cluster(self).add(workers=1, servers=1)
        job = self.write_job(endless_job())
        follower = cluster.start("follower", "poseidon", "submit", job, "--coordinator", cluster.address, "--wait")
        wait_for("the job to be accepted", lambda: " accepted" in follower.log())
        cluster.wait_for_iteration(2)
        cluster.coordinator.signal(signal.SIGTERM)
        self.assertEqual(cluster.coordinator.wait(15), 0, cluster.coordinator.log())
        self.assertEqual(follower.wait(15), 3, follower.log())
        self.assertIn("the coordinator was stopped (SIGTERM)", follower.log())


def worker_words(_, victim):
    return "worker", str(victim.pid)


def server_words(cluster, victim):
    return "server", next(address for process, address in cluster.servers if process is victim)


class Losses(ProcessTest):
    """One member of a training cluster is lost and nobody comes for it: said by name, and the job goes on without a
    worker as soon as it may, and waits for a server's data."""

    def lose(self, choose, number, who):
        """`who` gives the words by which the message must name the victim."""
        cluster = Cluster(self).add(workers=2, servers=2)
        job = {**endless_job(), "checkpoint": {"every_iterations": 5}, "membership": {"replace_timeout_ms": 3000}}
        self.assertEqual(cluster.submit(job, "--workers", 2, "--servers", 2).returncode, 0)
        cluster.wait_for_iteration(12)
        victim = choose(cluster)
        victim.signal(number)
        status = cluster.wait_for_state("recovering", timeout_s=NOTICE_S)
        for word in who(cluster, victim):
            self.assertIn(word, status["message"])
        return cluster, victim

    def test_a_killed_worker(self):
        cluster, _ = self.lose(lambda c: c.workers[1], signal.SIGKILL, worker_words)
        before = cluster.status()["iteration"]
        status = cluster.wait_for_state("running", timeout_s=NOTICE_S)
        self.assertEqual([w["rank"] for w in status["workers"]], [0])
        self.assertGreater(status["epoch"], 1)
        cluster.wait_for_iteration(before + 5)

    def test_a_killed_server(self):
        cluster, _ = self.lose(lambda c: c.servers[1][0], signal.SIGKILL, server_words)
        self.assertIn("server 1", cluster.status()["message"])
        before = cluster.status()["iteration"]
        cluster.restart_server(1)
        cluster.wait_for_state("running", timeout_s=NOTICE_S)
        cluster.wait_for_iteration(before + 5)

    def test_a_frozen_worker(self):
        cluster, victim = self.lose(lambda c: c.workers[0], signal.SIGSTOP, worker_words)
        # It wakes, learns that it was given up, and joins again.
        victim.signal(signal.SIGCONT)
        wait_for("the thawed worker to join again",
                 lambda: len([w for w in cluster.status()["workers"] if w["state"] != "lost"]) == 2)

    def test_a_frozen_server(self):
        cluster, victim = self.lose(lambda c: c.servers[0][0], signal.SIGSTOP, server_words)
        victim.signal(signal.SIGCONT)  # it joins again, with its data
        cluster.wait_for_state("running", timeout_s=NOTICE_S)


class Operators(ProcessTest):
    def test_a_second_job_is_refused_and_a_late_worker_told(self):
        cluster = Cluster(self).add(workers=1, servers=1)
        self.assertEqual(cluster.submit(endless_job(), "--workers", 1).returncode, 0)
        cluster.wait_for_iteration(1)
        second = cluster.submit(digits_job(name="other"))
        self.assertEqual(second.returncode, 1)
        self.assertIn("digits", second.stderr)
        late = cluster.add_worker()
        wait_for("the late worker to be told", lambda: "stands by to replace a lost one" in late.log())
        status = cluster.status()
        self.assertEqual(sorted(w["rank"] for w in status["workers"]), [-1, 0])
        self.assertEqual(status["state"], "running")

    def test_submit_waits_for_the_end(self):
        cluster = Cluster(self).add(workers=2, servers=1)
        result = cluster.submit(digits_job(iterations=10, sync={"scheme": "ps"}), "--workers", 2, "--wait", "--run-dir", self.folder / "run")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("accuracy", result.stdout)
        self.assertTrue((self.folder / "run" / "model.safetensors").exists())
        status = cluster.status()
        self.assertEqual((status["state"], status["iteration"]), ("done", 10))
        self.assertLessEqual({"job", "epoch", "loss", "images_per_s", "workers", "servers", "layers"}, set(status))
        self.assertEqual([layer["scheme"] for layer in status["layers"]], ["ps"] * 4)


def children_of(pid):
    """{pid: command line} of a process's children."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == pid:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


class Local(ProcessTest):
    def start_local(self):
        self.run_dir = self.folder / "run"
        process = self.start("local", BIN / "poseidon", "local", self.write_job(endless_job()), "--workers", 2,
                             "--servers", 1, "--run-dir", self.run_dir)
        wait_for("training to begin", lambda: "images/s" in process.log() or not process.running(), 60)
        self.assertTrue(process.running(), process.log())
        children = children_of(process.pid)
        self.assertEqual(len(children), 4, children)
        return process, children

    def assert_all_gone(self, children):
        def left():
            return [command for pid, command in children.items() if exists(pid)]

        try:
            wait_for("all children to end", lambda: not left(), 10)
        except AssertionError as late:
            logs = "\n".join(f"---- {log.name}\n{log.read_text()[-2000:]}"
                             for log in sorted((self.run_dir / "logs").glob("*.log")))
            raise AssertionError(f"{late}; these are left: {left()}\n{logs}") from late

    def test_ctrl_c_stops_all(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, children = self.start_local()
            process.signal(number)
            self.assertEqual(process.wait(15), 128 + number, process.log())
            self.assertIn("stopping: the job takes a last checkpoint", process.log())
            self.assert_all_gone(children)

    def test_its_own_death_stops_all(self):
        process, children = self.start_local()
        process.signal(signal.SIGKILL)
        process.wait()
        self.assert_all_gone(children)

    @staticmethod
    def child(process, program):
        return next((pid for pid, command in children_of(process.pid).items() if program in command), None)

    def test_a_killed_child_is_named_and_started_again(self):
        process, _ = self.start_local()
        for program, name in (("poseidon-worker", "worker-"), ("poseidon-server", "server-0")):
            victim = self.child(process, program)
            os.kill(victim, signal.SIGKILL)
            wait_for("it to be named", lambda: f"(process {victim}) ended unexpectedly with signal 9 (Killed); "
                     "starting it again" in process.log(), NOTICE_S)
            self.assertIn(name, process.log())
        self.assertEqual(len(children_of(process.pid)), 4)
        process.signal(signal.SIGTERM)
        self.assertEqual(process.wait(15), 143, process.log())

    def test_a_child_that_keeps_dying_ends_the_run_with_its_last_words(self):
        process, children = self.start_local()
        killed = 0
        while process.running() and killed < 20:
            if victim := self.child(process, "poseidon-server"):
                os.kill(victim, signal.SIGKILL)
                killed += 1
                wait_for("its end to be noticed", lambda: self.child(process, "poseidon-server") != victim or
                         not process.running(), NOTICE_S)
        self.assertEqual(process.wait(NOTICE_S), 1, process.log())
        self.assertEqual(killed, 6, process.log())
        self.assertIn("the last lines of", process.log())
        self.assertIn("server-0", process.log())
        self.assert_all_gone(children)


class Nonsense(ProcessTest):
    """Garbage on every port of a training cluster changes nothing."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def nonsense(self, rng):
        """One hostile conversation's bytes."""
        return rng.choice([
            lambda: rng.randbytes(rng.randrange(1, 4096)),
            lambda: b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda: self.PREFACE + rng.randbytes(rng.randrange(9, 2048)),
            lambda: self.PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + rng.randbytes(64),
            lambda: b"\x16\x03\x01\x02\x00\x01" + rng.randbytes(512),
            lambda: b"",
        ])()

    def attack(self, addresses, stop, sent):
        rng = random.Random(1)
        held = []
        while not stop.is_set():
            for address in addresses:
                host, port = address.rsplit(":", 1)
                try:
                    connection = socket.create_connection((host, int(port)), timeout=5)
                    connection.sendall(self.nonsense(rng))
                    sent[address] = sent.get(address, 0) + 1
                    held.append(connection)
                except OSError:
                    continue  # refused or cut: as it should
            while len(held) > 20:  # some connections just stay and say nothing more
                held.pop(0).close()
            time.sleep(0.01)
        for connection in held:
            connection.close()

    @staticmethod
    def two(workers):
        return workers if len(workers) == 2 else None

    def train_under(self, attackers):
        cluster = Cluster(self).add(workers=2, servers=2)
        workers = wait_for("both workers to join", lambda: self.two(cluster.status()["workers"]))
        addresses = [cluster.address] + [address for _, address in cluster.servers] + [w["address"] for w in workers]
        stop, sent = threading.Event(), {}
        threads = [threading.Thread(target=self.attack, args=(addresses, stop, sent)) for _ in range(attackers)]
        for thread in threads:
            thread.start()
        run_dir = self.folder / f"run-{attackers}"
        try:
            job = digits_job(iterations=60, test_every_iterations=0, sync={"scheme": "sfb"})  # convolutions go by PS
            result = cluster.submit(job, "--workers", 2, "--servers", 2, "--wait", run_dir=run_dir)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for process in [cluster.coordinator, *cluster.workers, *[server for server, _ in cluster.servers]]:
            self.assertTrue(process.running(), process.log())
            process.signal(signal.SIGTERM)
        for process in self.processes:
            self.assertEqual(process.wait(10), 0, process.log())
        self.processes.clear()
        return (run_dir / "model.safetensors").read_bytes(), {a: sent.get(a, 0) for a in addresses}

    def test_garbage_changes_nothing(self):
        quiet, _ = self.train_under(attackers=0)
        noisy, sent = self.train_under(attackers=1)
        self.assertTrue(all(count >= 20 for count in sent.values()), sent)
        self.assertEqual(quiet, noisy)


class Limits(ProcessTest):
    """How long a coordinator waits, as its options say."""

    def test_for_nodes(self):
        cluster = Cluster(self, of_coordinator=["--wait-for-nodes-s", 1])
        begin = time.monotonic()
        self.assertEqual(cluster.submit(endless_job(), "--workers", 1, "--servers", 1).returncode, 0)
        status = cluster.wait_for_state("failed", timeout_s=30)  # without the option: after 120
        self.assertGreater(time.monotonic() - begin, 1)
        self.assertIn("after 1 s it still waits for nodes: 0 of 1 workers and 0 of 1 servers are here", status["message"])

    def test_for_nodes_to_be_ready(self):
        cluster = Cluster(self, lease_ms=60_000, of_coordinator=["--prepare-timeout-s", 1]).add(workers=1, servers=1)
        wait_for("both to join", lambda: len(cluster.status()["workers"]) == len(cluster.status()["servers"]) == 1)
        cluster.workers[0].signal(signal.SIGSTOP)
        self.assertEqual(cluster.submit(endless_job(), "--workers", 1, "--servers", 1).returncode, 0)
        status = cluster.wait_for_state("failed", timeout_s=30)  # without the option: after 600, or with the lease
        self.assertIn("not ready after 1 s (--prepare-timeout-s): worker 0", status["message"])

    def test_for_a_checkpoint_at_the_end(self):
        cluster = Cluster(self, of_coordinator=["--checkpoint-on-stop-s", 0]).add(workers=1, servers=1)
        job = {**endless_job(), "checkpoint": {"every_iterations": 0}}
        self.assertEqual(cluster.submit(job, "--workers", 1, "--servers", 1).returncode, 0)
        cluster.wait_for_iteration(2)
        cluster.coordinator.signal(signal.SIGTERM)
        self.assertEqual(cluster.coordinator.wait(15), 0, cluster.coordinator.log())
        self.assertIn("the coordinator was stopped (SIGTERM)", cluster.coordinator.log())
        # With 10 s, the default, there is one (checkpoint_test.py).
        self.assertNotIn("is committed", cluster.coordinator.log())


class Interrupted(ProcessTest):
    def test_local_is_interrupted_while_its_coordinator_does_not_answer(self):
        path = self.write_job(digits_job(iterations=1_000_000, test_every_iterations=0))
        local = self.start("local", BIN / "poseidon", "local", path, "--workers", 1, "--servers", 1, "--run-dir",
                           self.folder / "run")

        def child(program):
            for pid in pathlib.Path(f"/proc/{local.pid}/task/{local.pid}/children").read_text().split():
                if program.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
            return None

        wait_for("the first server", lambda: child("poseidon-server"))  # the coordinator is reached by then
        coordinator = child("poseidon-coordinator")
        os.kill(coordinator, signal.SIGSTOP)
        time.sleep(1)
        local.signal(signal.SIGINT)
        # A status that does not come (4 s), and children that do not end by themselves (5 s for each kind); a submission
        # alone would take 30 s.
        self.assertEqual(local.wait(25), 130, local.log())
        self.assertFalse(exists(coordinator), "nothing stays behind")


class FullDisk(ProcessTest):
    """The run directory's disk has no room for the model when training is done, and nobody else has it."""

    def mount(self, *options):
        return subprocess.run(["mount", *options, self.folder / "disk"], capture_output=True, text=True, check=False)

    def mount_small(self):
        (self.folder / "disk").mkdir()
        made = self.mount("-t", "tmpfs", "-o", "size=512k", "tmpfs")
        if made.returncode != 0:
            self.skipTest(f"no small disk can be mounted here: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.folder / "disk"], check=True)

    def fill(self):
        """The disk, to its last block; the file to be removed."""
        filler = self.folder / "disk/filler"
        with filler.open("wb", buffering=0) as file, self.assertRaises(OSError):
            while True:
                file.write(bytes(4096))
        return filler

    def test_lines_that_find_no_room_until_the_end_are_no_success(self):
        """The model is there, but not all that should be beside it."""
        run = self.folder / "run"
        cluster = Cluster(self)
        submitted = cluster.submit(digits_job(iterations=20, test_every_iterations=0), "--workers", 1, "--servers", 1, run_dir=run)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        wait_for("job.json", lambda: (run / "job.json").exists())
        (run / "metrics.jsonl").unlink()
        try:
            os.mknod(run / "metrics.jsonl", stat.S_IFCHR | 0o666, os.makedev(1, 7))  # /dev/full
        except PermissionError:
            self.skipTest("SKIPPED: no device can be made here")
        cluster.add(workers=1, servers=1)
        wait_for("the end", lambda: cluster.status()["state"] in ("done", "failed"))
        status = cluster.status()
        self.assertEqual(status["state"], "failed", status["message"])
        self.assertIn("the model is stored, but the last lines of the run directory could not be written", status["message"])
        self.assertIn("No space left on device", status["message"])
        self.assertTrue((run / "model.safetensors").exists())
        wait_for("the alarm", lambda: "lacks its last lines" in cluster.coordinator.log())

    def test_another_coordinator_goes_on_with_a_job_whose_disk_is_full(self):
        """The coordinator's own record is on another disk, and must not wait for the run's."""
        self.mount_small()
        run = self.folder / "disk/run"
        iterations = 600
        cluster = Cluster(self)
        submitted = cluster.submit(digits_job(iterations=iterations, test_every_iterations=0), "--workers", 2,
                                   "--servers", 1, run_dir=run)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        wait_for("job.json", lambda: (run / "job.json").exists())
        filler = self.fill()
        cluster.add(workers=2, servers=1)
        cluster.wait_for_iteration(20)
        status = cluster.status()
        self.assertIn("No space left on device", status["message"])
        self.assertEqual((run / "metrics.jsonl").stat().st_size, 0)
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()
        cluster.restart_coordinator()
        again = cluster.status()
        self.assertEqual((again["state"], again["epoch"]), ("running", status["epoch"]), cluster.coordinator.log())
        filler.unlink()
        self.assertEqual(self.mount("-o", "remount,size=64m").returncode, 0)
        cluster.wait_for_state("done", timeout_s=120)
        lines, _ = metrics(run)
        self.assertEqual([line["iteration"] for line in lines], list(range(iterations)))

    def test_a_worker_lost_while_the_state_directory_is_full_costs_no_iteration(self):
        """What all have finished is stored, and waits for its manifest to be written."""
        self.mount_small()
        (self.folder / "disk/state").mkdir()
        (self.folder / "state").symlink_to("disk/state")
        run = self.folder / "run"
        cluster = Cluster(self).add(workers=2, servers=2)
        iterations = 400
        submitted = cluster.submit(digits_job(iterations=iterations, test_every_iterations=0), "--workers", 2, run_dir=run)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        wait_for_line(run, 30)
        filler = self.fill()
        complete = wait_for_line(run, 40)
        cluster.workers[0].signal(signal.SIGKILL)
        cluster.add_worker()
        wait_for("the alarm", lambda: "cannot write down yet that iteration" in cluster.coordinator.log())
        status = cluster.status()
        self.assertEqual(status["state"], "recovering")
        self.assertIn("No space left on device", status["message"])
        filler.unlink()
        cluster.wait_for_state("done", timeout_s=120)
        cluster.assert_nearly_all_was_kept(complete)
        self.assertEqual([line["iteration"] for line in metrics(run)[0]], list(range(iterations)))

    def test_a_finished_model_waits_for_its_folder(self):
        cluster = Cluster(self).add(workers=1, servers=1)
        run, moved = self.folder / "run", self.folder / "moved"
        # With the rate of the example one worker alone is near diverging by then.
        job = digits_job(iterations=200, test_every_iterations=0, optimizer={"type": "sgd", "learning_rate": 0.001})
        self.assertEqual(cluster.submit(job, "--workers", 1, run_dir=run).returncode, 0)
        wait_for_line(run, 5)
        run.rename(moved)
        wait_for("the model to be refused", lambda: "the model cannot be stored" in cluster.coordinator.log(), 60)
        self.assertEqual(cluster.status()["state"], "running")
        moved.rename(run)
        cluster.wait_for_state("done", timeout_s=30)
        self.assertGreater((run / "model.safetensors").stat().st_size, 1_000_000)
        self.assertEqual([line["iteration"] for line in metrics(run)[0]], list(range(200)))

    def test_a_finished_model_waits_for_room(self):
        self.mount_small()
        cluster = Cluster(self).add(workers=2, servers=1)
        run = self.folder / "disk/run"
        job = digits_job(iterations=20, test_every_iterations=0)
        self.assertEqual(cluster.submit(job, "--workers", 2, run_dir=run).returncode, 0)
        wait_for("the model to be refused", lambda: "the model cannot be stored" in cluster.coordinator.log(), 60)
        self.assertIn("No space left on device", cluster.coordinator.log())
        status = cluster.status()
        self.assertEqual(status["state"], "running")
        self.assertIn("the model cannot be stored", status["message"])
        self.assertEqual(self.mount("-o", "remount,size=64m").returncode, 0)
        cluster.wait_for_state("done", timeout_s=30)
        self.assertGreater((run / "model.safetensors").stat().st_size, 1_000_000)
        self.assertEqual([path.name for path in run.iterdir() if ".tmp" in path.name], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
