"""The command line: exit codes and messages for wrong calls, wrong job files, wrong data, absent or taken addresses."""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import unittest

from cluster import BIN, Cluster, ProcessTest, digits_job, idx_bytes, losses, poseidon, wait_for, write_gzip


class Calls(ProcessTest):
    def test_help_is_everywhere(self):
        left, seen = [[]], []
        while left:
            arguments = left.pop()
            seen.append(" ".join(arguments))
            result = poseidon(*arguments, "--help")
            self.assertEqual(result.returncode, 0, arguments)
            self.assertIn("Example", result.stdout, arguments)
            listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", result.stdout, re.MULTILINE)
            left += [[*arguments, name] for name in re.findall(r"^  (\S+)", listed[1] if listed else "", re.MULTILINE)]
        self.assertLess({"local", "submit", "checkpoint", "checkpoint restore", "data check", "tls init"}, set(seen))
        for program in ("poseidon-coordinator", "poseidon-server", "poseidon-worker"):
            daemon = self.start(program, BIN / program, "--help")
            self.assertEqual(daemon.wait(), 0)
            self.assertIn("--log-level", daemon.log())

    def test_every_program_says_its_version(self):
        ours = poseidon("--version").stdout
        self.assertRegex(ours, r"^poseidon \d+\.\d+\.\d+\n$")
        for program in ("poseidon-coordinator", "poseidon-server", "poseidon-worker"):
            daemon = self.start(program + "-version", BIN / program, "--version")
            self.assertEqual(daemon.wait(), 0)
            self.assertEqual(daemon.log(), ours)

    def test_an_unknown_subcommand_gets_the_nearest(self):
        for arguments in (["statsu"], ["statsu", "--help"]):
            result = poseidon(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn('did you mean "status"', result.stderr)

    def test_wrong_calls_exit_with_2(self):
        for arguments in ([], ["nonsense"], ["status"], ["status", "--coordinator", "nowhere"], ["local"],
                          ["models", "--unknown"], ["models", ""], ["submit", "job.json"]):
            self.assertEqual(poseidon(*arguments).returncode, 2, arguments)

    def test_a_wrong_number_of_a_servers_threads_is_refused(self):
        config = self.folder / "server.json"
        for number in ("65", "-1", '"all"'):
            config.write_text(f'{{"threads": {number}}}')
            server = self.start("server", BIN / "poseidon-server", "--config", config, "--coordinator", "127.0.0.1:1",
                                "--listen", "127.0.0.1:0", "--data-dir", self.folder / "server")
            self.assertEqual(server.wait(), 2)
            self.assertIn("--threads", server.log())
            self.assertIn("not in range 0 to 64", server.log())

    def test_models(self):
        listed = json.loads(poseidon("models", "--json").stdout)
        self.assertIn("lenet", [model["name"] for model in listed])
        lenet = json.loads(poseidon("models", "lenet", "--json").stdout)
        self.assertEqual(lenet["parameters"], 431080)
        self.assertEqual(sum(layer["parameters"] for layer in lenet["layers"]), 431080)
        self.assertLessEqual({"name", "type", "parameters", "output_shape"}, set(lenet["layers"][0]))
        unknown = poseidon("models", "lenot")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("lenet", unknown.stderr)

    def test_a_device_that_is_not_there(self):
        job = self.write_job(digits_job())
        for device in ("nonsense", "cuda:4711"):
            result = poseidon("local", job, "--workers", 1, "--servers", 1, "--device", device, "--run-dir",
                              self.folder / "run")
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn(f"--device {device}: ", result.stderr)

    def test_zero_workers_or_servers(self):
        job = self.write_job(digits_job())
        for workers, servers, flag in ((0, 1, "--workers"), (1, 0, "--servers"), (-1, 1, "--workers")):
            for command in (("local",), ("submit", "--coordinator", "127.0.0.1:1")):
                result = poseidon(*command, job, "--workers", workers, "--servers", servers)
                self.assertEqual(result.returncode, 2)
                self.assertIn(flag, result.stderr)


class JobFiles(ProcessTest):
    def refused(self, job, *words, arguments=()):
        """`local` must refuse the job with 2, with all words in the message, before it starts anything."""
        run_dir = self.folder / "refused"
        result = poseidon("local", self.write_job(job), "--workers", 1, "--servers", 1, "--run-dir", run_dir, *arguments)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(run_dir.exists())

    def test_no_such_file(self):
        result = poseidon("local", self.folder / "absent.json", "--workers", 1, "--servers", 1)
        self.assertEqual(result.returncode, 2)
        self.assertIn("absent.json", result.stderr)

    def test_no_json(self):
        self.refused('{"name": ', "job.json")

    def test_wrong_type(self):
        self.refused(digits_job(batch_size="many"), "batch_size", "many")

    def test_unknown_key_gets_the_nearest(self):
        job = digits_job()
        job["optimizer"]["momentun"] = job["optimizer"].pop("momentum")
        self.refused(job, "optimizer", "momentun", "momentum")

    def test_missing_key(self):
        self.refused(digits_job(batch_size=None), "batch_size")

    def test_missing_data_file(self):
        job = digits_job()
        job["data"]["train"]["labels"] = "nowhere/labels.gz"
        self.refused(job, "data.train.labels", str(self.folder / "nowhere/labels.gz"))

    def test_an_empty_file(self):
        path = self.folder / "empty.json"
        path.write_text("")
        result = poseidon("local", path, "--workers", 1, "--servers", 1)
        self.assertEqual(result.returncode, 2)
        self.assertIn("is empty", result.stderr)

    def test_weights_that_are_none(self):
        (self.folder / "w.safetensors").write_bytes(b"garbage" * 10)
        self.refused(digits_job(init={"weights": "w.safetensors"}), "init.weights", "w.safetensors")

    def test_missing_weights(self):
        self.refused(digits_job(init={"weights": "w.safetensors"}), "init.weights", "w.safetensors")

    def test_unknown_model(self):
        self.refused(digits_job(model="lenett"), "model", "lenett", "lenet")

    def test_shapes_that_do_not_fit_name_the_layer_and_both_shapes(self):
        network = {"name": "misfit", "input": [1, 28, 28], "layers": [
            {"name": "conv1", "type": "convolution", "outputs": 8, "kernel": 31},
            {"name": "ip", "type": "fully_connected", "outputs": 10},
            {"name": "loss", "type": "softmax_cross_entropy"}]}
        self.refused(digits_job(model=network), "conv1", "31x31", "28x28")


    def test_numbers_that_no_double_holds_name_the_key(self):
        for value in (float("inf"), float("-inf"), float("nan")):  # Infinity, as Python writes it
            job = digits_job()
            job["optimizer"]["learning_rate"] = value
            self.refused(job, "optimizer.learning_rate")
            self.refused(json.dumps(job).replace(json.dumps(value), "-1e999"), "optimizer.learning_rate", "-1e999")

    def test_a_precision_that_no_device_takes(self):
        self.refused(digits_job(precision="fp8"), "precision", "fp8", '"bf16", "fp16"')

    def test_a_precision_that_is_not_the_device_s(self):
        self.refused(digits_job(precision="bf16"), "precision", "bf16", "--device is cpu", arguments=("--device", "cpu"))

    def test_a_precision_for_which_there_is_no_gpu(self):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            pass
        else:
            self.skipTest("this machine has an NVIDIA driver")
        for precision in ("bf16", "fp16"):
            self.refused(digits_job(precision=precision), "precision", precision, "no NVIDIA driver")

    def test_a_run_directory_with_files_of_ones_own(self):
        job = digits_job(iterations=1)
        for name, text in (("job.json", json.dumps(job)), ("metrics.jsonl", '{"step": 1}\n')):
            with self.subTest(name):
                folder = self.folder / f"own {name}"
                folder.mkdir()
                (folder / name).write_text(text)
                result = poseidon("local", self.write_job(job), "--workers", 1, "--servers", 1, "--run-dir", folder)
                self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
                self.assertIn(str(folder / name), result.stderr)
                self.assertIn("--run-dir", result.stderr)
                self.assertEqual([p.name for p in folder.iterdir()], [name], "nothing was begun")
                self.assertEqual((folder / name).read_text(), text)

    def test_a_run_directory_that_cannot_be_made(self):
        result = poseidon("local", self.write_job(digits_job()), "--workers", 1, "--servers", 1, "--run-dir", "/proc/run")
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("/proc/run: cannot create this folder", result.stderr)
        self.assertIn("--run-dir", result.stderr)

    def test_a_trace_that_cannot_be_written(self):
        result = poseidon("trace", "--coordinator", "127.0.0.1:1", "--to", "/proc/nowhere/trace.json")
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("--to /proc/nowhere/trace.json", result.stderr)

    def test_a_trace_that_is_ended_by_hand_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A job in the background, or under nohup, ignores some, and so would what we start.
            self.addCleanup(signal.signal, number, signal.signal(number, lambda *_: None))
            folder = self.folder / f"ended by {number}"
            folder.mkdir()
            trace = self.start(f"trace-{number}", BIN / "poseidon", "trace", "--coordinator", "127.0.0.1:1",
                               "--to", folder / "trace.json")
            wait_for("the file that grows", lambda: list(folder.iterdir()))
            trace.signal(number)
            self.assertEqual(trace.wait(), -number)
            self.assertEqual(list(folder.iterdir()), [])

    def test_more_nodes_than_there_are(self):
        self.refused(digits_job(checkpoint={"replicas": 2}), "job.json", "checkpoint.replicas: 2")
        self.refused(digits_job(membership={"min_workers": 2}), "job.json", "1 workers", "membership.min_workers")
        job = self.write_job(digits_job(membership={"max_workers": 2}))
        result = poseidon("local", job, "--workers", 3, "--servers", 1)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("membership.max_workers", result.stderr)

    def test_tests_without_test_data_are_said(self):
        job = digits_job(iterations=2, test_every_iterations=1)
        del job["data"]["test"]
        result, _ = self.local(job, 1, 1)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("warning: test_every_iterations is 1, but there is no data.test", result.stderr)


class RunFolders(ProcessTest):
    """Where `local` puts what it makes."""

    def short_job(self, **changes):
        return digits_job(iterations=2, test_every_iterations=0, **changes)

    def test_long_names_are_cut_in_the_default_one(self):
        job = self.write_job(self.short_job(name="x" * 256))
        for _ in range(2):
            result = poseidon("local", job, "--workers", 1, "--servers", 1, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        folders = list((self.folder / "runs").iterdir())
        self.assertEqual(len(folders), 2)
        for folder in folders:
            self.assertRegex(folder.name, "^x{100}-[0-9-]+$")
            self.assertTrue((folder / "model.safetensors").exists())

    def test_the_way_out_of_a_link_is_the_systems(self):
        (self.folder / "disk/set/inner").mkdir(parents=True)
        (self.folder / "link").symlink_to(self.folder / "disk/set/inner")
        job = self.short_job()
        for key in ("images", "labels"):
            (self.folder / "disk/set" / key).symlink_to(job["data"]["train"][key])
            job["data"]["train"][key] = f"link/../{key}"
        result = poseidon("local", self.write_job(job), "--workers", 1, "--servers", 1, "--run-dir", "link/../run",
                          cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertTrue((self.folder / "disk/set/run/model.safetensors").exists())

    def local_in(self, run_dir, iterations):
        job = self.write_job(digits_job(iterations=iterations, test_every_iterations=0, checkpoint={"every_iterations": 5},
                                        optimizer={"type": "sgd", "learning_rate": 0.001}))
        return ["local", job, "--workers", 1, "--servers", 1, "--run-dir", run_dir]

    def test_one_whose_run_was_killed_takes_another(self):
        run_dir = self.folder / "run"
        killed = self.start("killed", BIN / "poseidon", *self.local_in(run_dir, 1_000_000))
        metrics = run_dir / "metrics.jsonl"
        wait_for("iterations", lambda: metrics.exists() and metrics.read_text().count("\n") > 10)
        taken = poseidon(*self.local_in(run_dir, 2))
        self.assertEqual(taken.returncode, 2, taken.stdout + taken.stderr)
        self.assertIn(f"--run-dir {run_dir}: another run is in progress there", taken.stderr)
        children = subprocess.run(["pgrep", "-P", str(killed.pid)], capture_output=True, text=True, check=True)
        killed.signal(signal.SIGSTOP)  # or it would start them again
        for pid in children.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        killed.signal(signal.SIGKILL)
        self.assertTrue((run_dir / "cluster/coordinator/job.json").exists())
        result = poseidon(*self.local_in(run_dir, 20), "--fresh")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(len(losses(run_dir)), 20)

    def test_one_that_no_message_can_hold_is_refused(self):
        run_dir = os.fsencode(self.folder) + b"/r\xe9sum"
        result = subprocess.run([BIN / "poseidon", "local", self.write_job(self.short_job()), "--workers", "1", "--servers", "1",
                                 "--run-dir", run_dir], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("--run-dir", result.stderr)
        self.assertIn("UTF-8", result.stderr)
        self.assertFalse(os.path.exists(run_dir))

    def test_two_at_the_same_moment_are_not_mixed(self):
        for attempt in range(3):
            run_dir = self.folder / f"run-{attempt}"
            call = self.local_in(run_dir, 20)  # one job file: a second write of it would empty it under the first program
            both = [self.start(f"{name}-{attempt}", BIN / "poseidon", *call) for name in ("one", "two")]
            self.assertEqual(sorted(process.wait(120) for process in both), [0, 2], both[0].log() + both[1].log())
            refused = next(process for process in both if process.wait() == 2)
            self.assertIn(f"--run-dir {run_dir}: another run is in progress there", refused.log())
            self.assertEqual(len(losses(run_dir)), 20)


class Launching(ProcessTest):
    """`local` and the processes that it starts."""

    def test_a_coordinator_that_never_listened_is_not_started_again(self):
        programs = self.folder / "bin"
        programs.mkdir()
        shutil.copy(BIN / "poseidon", programs)
        for name in ("server", "worker"):
            (programs / f"poseidon-{name}").symlink_to(BIN / f"poseidon-{name}")
        coordinator = programs / "poseidon-coordinator"
        coordinator.write_text("#!/bin/sh\necho the disk is full >&2\nexit 1\n")
        coordinator.chmod(0o755)
        job = self.write_job(digits_job(iterations=2, test_every_iterations=0))
        result = subprocess.run([programs / "poseidon", "local", job, "--workers", "1", "--servers", "1", "--run-dir",
                                 self.folder / "run"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("the disk is full", result.stderr)
        self.assertNotIn("starting it again", result.stdout)

    def test_a_parent_that_ignores_the_ends_of_its_children_changes_nothing(self):
        job = self.write_job(digits_job(iterations=2, test_every_iterations=0))
        result = subprocess.run([BIN / "poseidon", "local", job, "--workers", "1", "--servers", "1", "--run-dir",
                                 self.folder / "run"], capture_output=True, text=True, timeout=60, check=False,
                                preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("killed", result.stdout)

    def test_nobody_stays_behind_a_launcher_that_has_ended(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        daemon = self.start("daemon", BIN / "poseidon-coordinator", "--listen", "127.0.0.1:0", "--state-dir",
                            self.folder / "state", "--exit-with-parent", gone.pid)
        self.assertEqual(daemon.wait(), 1)
        self.assertIn(f"--exit-with-parent {gone.pid}: that process did not start this one, or has ended", daemon.log())


class Limits(ProcessTest):
    """What a process may not have is said at its start, not found out in the middle of a job."""

    def test_too_few_files(self):
        for name, options in (("coordinator", ["--state-dir", self.folder / "state"]),
                              ("server", ["--coordinator", "127.0.0.1:9", "--data-dir", self.folder / "data"]),
                              ("worker", ["--coordinator", "127.0.0.1:9", "--device", "cpu"])):
            result = subprocess.run(["prlimit", "--nofile=24:24", BIN / f"poseidon-{name}", "--listen", "127.0.0.1:0", *options],
                                    capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
            self.assertIn("may have 24 files open, and needs at least 128: raise the limit (ulimit -n;", result.stderr)

    def test_too_few_threads(self):
        """Root has no such limit."""
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        self.folder.chmod(0o777)
        job = self.write_job(digits_job(iterations=2, test_every_iterations=0))
        if os.geteuid() != 0 or subprocess.run([*as_nobody, BIN / "poseidon", "--version"], capture_output=True,
                                               check=False).returncode != 0:
            self.skipTest("SKIPPED: no other user can run the programs here")
        for limit in (4, 22, 28, 60):
            result = subprocess.run([*as_nobody, "prlimit", f"--nproc={limit}", BIN / "poseidon", "local", job, "--workers", "1",
                                     "--servers", "1", "--run-dir", self.folder / "run"], capture_output=True, text=True,
                                    timeout=60, check=False)
            self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
            self.assertRegex(result.stderr, rf"poseidon local needs up to \d+ threads, and the system allows \d+ more .*"
                                            rf"the user may have {limit} processes and threads \(ulimit -u\): raise that")
        left = subprocess.run(["pgrep", "-u", "65534", "poseidon"], capture_output=True, text=True, check=False).stdout
        self.assertEqual(left, "", "processes that nobody needs any more")


class Plans(ProcessTest):
    """`plan` needs no cluster and no data."""

    def plan(self, job, *arguments, workers=4, servers=2):
        result = poseidon("plan", self.write_job(job), "--workers", workers, "--servers", servers, *arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def schemes(self, job, *arguments, **counts):
        plan = json.loads(self.plan(job, "--json", *arguments, **counts))
        return {layer["name"]: layer["scheme"] for layer in plan["layers"]}

    def without_data(self, **sync):
        job = digits_job(sync=sync)
        job["data"] = {"train": {"format": "idx", "images": "nowhere/i.gz", "labels": "nowhere/l.gz"}}
        return job

    def test_json_has_the_contracts_keys(self):
        plan = json.loads(self.plan(self.without_data(), "--json"))
        self.assertLessEqual({"workers", "servers", "batch_size", "layers", "iteration_bytes", "predicted",
                              "scaling"}, set(plan))
        self.assertEqual((plan["workers"], plan["servers"], plan["batch_size"]), (4, 2, digits_job()["batch_size"]))
        for layer in plan["layers"]:
            self.assertLessEqual({"name", "type", "shape", "parameters", "scheme", "ps_bytes", "sfb_bytes", "reason",
                                  "ps_seconds", "sfb_seconds"}, set(layer))
        self.assertEqual(sum(layer[layer["scheme"] + "_bytes"] for layer in plan["layers"]), plan["iteration_bytes"])
        self.assertEqual([row["workers"] for row in plan["scaling"]], [1, 2, 4, 8, 16, 32, 64])

    def test_text_names_layers_choice_and_prediction(self):
        text = self.plan(self.without_data(), "--bandwidth", "200mbit", "--latency", "1ms", "--device-flops", "50G",
                         "--separate-servers")
        for word in ("ip1", "500x800", "shortest iteration", "predicted iteration", "EFFICIENCY", "200 Mbit/s"):
            self.assertIn(word, text)

    def test_schemes_asked_for_and_pinned(self):
        self.assertEqual(set(self.schemes(self.without_data(scheme="ps")).values()), {"ps"})
        self.assertEqual(self.schemes(self.without_data(scheme="sfb")),
                         {"conv1": "ps", "conv2": "ps", "ip1": "sfb", "ip2": "sfb"})
        job = self.without_data(scheme={"ip1": "ps", "ip2": "sfb"})
        asked = {"conv1": "ps", "conv2": "ps", "ip1": "ps", "ip2": "sfb"}
        self.assertEqual(self.schemes(job), asked)
        (self.folder / "plan.json").write_text(self.plan(job, "--json"))
        self.assertEqual(self.schemes(self.without_data(plan="plan.json")), asked)
        self.assertEqual(self.schemes(self.without_data(plan="plan.json"), workers=8, servers=3), asked)

    def test_wrong_calls_exit_with_2_and_name_the_thing(self):
        (self.folder / "other.json").write_text(json.dumps({"servers": 1, "layers": [
            {"name": "fc", "shape": [2, 2], "parameters": 4, "scheme": "sfb"}]}))
        for job, arguments, words in (
                (self.without_data(), ["--bandwidth", "10"], ["--bandwidth", "10gbit"]),
                (self.without_data(), ["--latency", "fast"], ["--latency", "50us"]),
                (self.without_data(), ["--images-per-s", "0"], ["--images-per-s"]),
                (self.without_data(), ["--workers", "0"], ["--workers 0"]),
                (self.without_data(scheme={"ip3": "sfb"}), [], ["sync.scheme.ip3", 'did you mean "ip1"']),
                (self.without_data(scheme={"conv1": "sfb"}), [], ["sync.scheme.conv1", "fully connected"]),
                (self.without_data(plan="absent.json"), [], ["sync.plan", "absent.json"]),
                (self.without_data(plan="other.json"), [], ["sync.plan", '"conv1"', '"fc"'])):
            counts = [] if "--workers" in arguments else ["--workers", 4]
            result = poseidon("plan", self.write_job(job), *counts, "--servers", 2, *arguments)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)


class WrongData(ProcessTest):
    """`local` reads the data before it starts anything (2); elsewhere the workers find out, and the job fails (1)."""

    def refused(self, job, *words):
        result, run_dir = self.local(job, 1, 1, timeout_s=60)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        for word in ("data.train", *words):
            self.assertIn(word, result.stderr)
        self.assertFalse((run_dir / "metrics.jsonl").exists())

    def data_job(self, images, labels):
        write_gzip(self.folder / "images.gz", images)
        write_gzip(self.folder / "labels.gz", labels)
        job = digits_job(iterations=2, batch_size=4)
        job["data"]["train"].update(images=str(self.folder / "images.gz"), labels=str(self.folder / "labels.gz"))
        del job["data"]["test"]
        return job

    def test_good_small_data_trains(self):
        """The counter-test of those below."""
        job = self.data_job(idx_bytes([8, 8, 8], bytes(512)), idx_bytes([8], bytes(range(8))))
        result, _ = self.local(job, 1, 1)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_label_out_of_range(self):
        self.refused(self.data_job(idx_bytes([8, 8, 8], bytes(512)), idx_bytes([8], bytes([1] * 7 + [77]))),
                     "labels.gz", "77")

    def test_truncated_idx(self):
        self.refused(self.data_job(idx_bytes([8, 8, 8], bytes(100)), idx_bytes([8], bytes(8))), "images.gz")

    def test_corrupt_gzip(self):
        job = self.data_job(idx_bytes([8, 8, 8], bytes(512)), idx_bytes([8], bytes(8)))
        path = self.folder / "images.gz"
        path.write_bytes(path.read_bytes()[:-12])
        self.refused(job, "images.gz")

    def test_a_batch_larger_than_the_data_has_samples_more_than_once(self):
        job = dict(self.data_job(idx_bytes([8, 8, 8], bytes(512)), idx_bytes([8], bytes(8))), batch_size=9)
        run_dir = self.folder / "small"
        result = poseidon("local", self.write_job(job), "--workers", 2, "--servers", 1, "--run-dir", run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("has 8 samples, but one iteration of 2 workers x batch_size 9 takes 18",
                      (run_dir / "logs" / "worker-0.log").read_text() + (run_dir / "logs" / "worker-1.log").read_text())

    def test_workers_say_what_is_wrong_with_data_that_only_they_see(self):
        job = self.data_job(idx_bytes([8, 8, 8], bytes(512)), idx_bytes([8], bytes([1] * 7 + [77])))
        cluster = Cluster(self)
        cluster.add_server()
        cluster.add_worker()
        result = cluster.submit(job, "--workers", 1, "--servers", 1, "--wait")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for word in ("labels.gz", "77"):
            self.assertIn(word, result.stderr)

    def test_nan_loss_stops_with_iteration_and_layer(self):
        job = digits_job(iterations=200, test_every_iterations=0)
        job["optimizer"]["learning_rate"] = 1e30
        result, _ = self.local(job, 1, 1, timeout_s=60)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for word in ("nan", "in iteration 1", "conv2", "learning_rate"):
            self.assertIn(word, result.stderr)


class Addresses(ProcessTest):
    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def test_a_port_in_use_is_said(self):
        cluster = Cluster(self)
        again = self.start("again", BIN / "poseidon-coordinator", "--listen", cluster.address, "--state-dir",
                           self.folder / "again")
        self.assertEqual(again.wait(), 1)
        self.assertIn("in use", again.log())
        self.assertIn(cluster.address, again.log())
        server = self.start("server", BIN / "poseidon-server", "--coordinator", cluster.address, "--listen",
                            cluster.address, "--data-dir", self.folder / "server")
        self.assertEqual(server.wait(), 1)
        self.assertIn("in use", server.log())

    def test_an_absent_coordinator_is_given_up(self):
        address = f"127.0.0.1:{self.free_port()}"
        for command in (["status"], ["submit", self.write_job(digits_job())]):
            result = poseidon(*command, "--coordinator", address, "--connect-timeout-s", 1)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"no coordinator answers at {address}", result.stderr)
        worker = self.start("worker", BIN / "poseidon-worker", "--coordinator", address, "--join-timeout-s", 1)
        self.assertEqual(worker.wait(), 1)
        self.assertRegex(worker.log().splitlines()[-1], f"no coordinator answered at {address} for 1 s.*Connection refused")

    def test_nodes_wait_for_a_coordinator_that_comes_later(self):
        address = f"127.0.0.1:{self.free_port()}"
        worker = self.start("worker", BIN / "poseidon-worker", "--coordinator", address)
        coordinator = self.start("coordinator", BIN / "poseidon-coordinator", "--listen", address, "--state-dir",
                                 self.folder / "state")
        result = poseidon("status", "--coordinator", address, "--json", "--connect-timeout-s", 20)
        self.assertEqual(result.returncode, 0, result.stderr + coordinator.log())
        wait_for("the worker to join", lambda: "joined" in worker.log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
