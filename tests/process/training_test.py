"""What a cluster of real processes trains: accuracy, files, reproducibility, agreement with PyTorch."""

import json
import math
import re
import signal
import subprocess
import sys
import unittest

import cluster
from cluster import BUILD, ROOT, Cluster, ProcessTest, digits_job, losses, metrics

sys.path.insert(0, str(ROOT / "tests" / "golden" / "trajectory"))
sys.path.insert(0, str(ROOT / "tests" / "golden" / "small_networks"))
import lenet_weights  # noqa: E402
import small_networks  # noqa: E402

LENET_SHAPES = {name: shape for name, shape, _ in lenet_weights.TENSORS}


def worst_difference(values, expected):
    """(relative difference, iteration) where two loss curves are furthest apart."""
    return max((abs(a - b) / abs(b), i) for i, (a, b) in enumerate(zip(values, expected)))


class MainJob(ProcessTest):
    def test_digits_reach_their_accuracy_and_leave_their_files(self):
        job = digits_job()
        result, run_dir = self.local(job, 4, 2)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for word in ("iteration", "images/s", "ps ", "final loss", "accuracy", "model.safetensors", "metrics.jsonl"):
            self.assertIn(word, result.stdout)
        self.check_metrics(run_dir, job)
        for name in ("coordinator", "server-0", "server-1", "worker-0", "worker-3"):
            self.assertTrue((run_dir / "logs" / f"{name}.log").exists(), name)
        self.check_model(run_dir / "model.safetensors")

    def check_metrics(self, run_dir, job):
        iterations, tests = metrics(run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(job["iterations"])))
        for line in iterations:
            self.assertLessEqual({"iteration", "loss", "learning_rate", "images_per_s"}, set(line))
            self.assertTrue(math.isfinite(line["loss"]))
            self.assertGreater(line["learning_rate"], 0)
            self.assertGreaterEqual(line["images_per_s"], 0)
        every = job["test_every_iterations"]
        self.assertEqual([line["iteration"] for line in tests], list(range(every, job["iterations"] + 1, every)))
        for line in tests:
            self.assertLessEqual({"iteration", "test_loss", "test_accuracy"}, set(line))
        self.assertEqual(iterations[0]["learning_rate"], job["optimizer"]["learning_rate"])
        self.assertGreaterEqual(tests[-1]["test_accuracy"], 0.97)
        self.assertLess(iterations[-1]["loss"], iterations[0]["loss"] / 10)

    def check_model(self, path):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        tensors = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        self.assertEqual(tensors, LENET_SHAPES)

        python = BUILD.parent / "venv" / "bin" / "python"
        if not python.exists():
            self.skipTest("no public safetensors package here (tests/run.sh installs it); all else was checked")
        shapes = [f"{name}={'x'.join(map(str, shape))}" for name, shape in LENET_SHAPES.items()]
        check = subprocess.run([python, ROOT / "tests" / "data" / "check_safetensors.py", path, *shapes, "--finite",
                                "--exactly"], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)


class Reproducibility(ProcessTest):
    def test_the_same_job_twice_gives_the_same_bytes(self):
        job = digits_job(iterations=60, test_every_iterations=0)
        first = self.train(job, 4, 2)
        second = self.train(job, 4, 2)
        self.assertEqual(losses(first), losses(second))
        self.assertEqual((first / "model.safetensors").read_bytes(), (second / "model.safetensors").read_bytes())

    def test_the_number_of_servers_changes_nothing(self):
        job = digits_job(iterations=30, test_every_iterations=0)
        job["sync"] = {"scheme": "ps", "chunk_bytes": 65536}  # "auto" may choose otherwise with other servers
        one = self.train(job, 2, 1)
        three = self.train(job, 2, 3)
        self.assertEqual((one / "model.safetensors").read_bytes(), (three / "model.safetensors").read_bytes())

    def test_the_number_of_a_servers_threads_changes_nothing(self):
        job = digits_job(iterations=30, test_every_iterations=0, sync={"scheme": "ps"})
        models = []
        for threads in (1, 3):
            ours = Cluster(self)
            server = ours.add_server("--threads", threads)
            ours.add(workers=2, servers=0)
            run_dir = self.folder / f"run-{threads}"
            result = ours.submit(job, "--workers", 2, "--wait", run_dir=run_dir)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn(f"threads: {threads}\n", server.log())
            models.append((run_dir / "model.safetensors").read_bytes())
            for process in self.processes:
                process.signal(signal.SIGTERM)
                self.assertEqual(process.wait(10), 0, process.log())
            self.processes.clear()
        self.assertEqual(models[0], models[1])

    def test_shared_memory_and_sockets_give_the_same_bytes(self):
        job = digits_job(iterations=30, test_every_iterations=0, sync={"scheme": "ps"})
        models = []
        for flags in ([], ["--no-shared-memory"]):
            ours = Cluster(self, options=["--log-format", "json"]).add(workers=0, servers=2)
            for _ in range(2):
                ours.add_worker(*flags)
            run_dir = self.folder / f"run{''.join(flags)}"
            result = ours.submit(job, "--workers", 2, "--wait", run_dir=run_dir)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            models.append((run_dir / "model.safetensors").read_bytes())
            for process in self.processes:
                process.signal(signal.SIGTERM)
                self.assertEqual(process.wait(10), 0, process.log())
            for server, _ in ours.servers:
                sent = int(re.search(r"sent (\d+) MB of tensors through shared memory", server.log()).group(1))
                self.assertEqual(sent > 0, not flags, "chosen by itself, and not against one's will")
            self.logs_are_json(ours, len(models))  # one job after the other, in one state directory
            self.processes.clear()
        self.assertEqual(models[0], models[1])

    def logs_are_json(self, ours, number):
        """Of daemons that have trained and ended: every line is an object that says who, when and, where known, for what."""
        coordinator = self.objects(ours.coordinator, "coordinator")
        words = [line["message"] for line in coordinator]
        began = next(i for i, text in enumerate(words) if "was submitted" in text)
        ended = next(i for i, text in enumerate(words) if text.endswith(" is done"))
        for line in coordinator[began:ended + 1]:
            self.assertEqual((line.get("job"), line.get("epoch"), line.get("node")), (f"digits-{number}", number, None), line)
        self.assertEqual([line for line in (*coordinator[:began], coordinator[-1]) if "job" in line], [])
        nodes = set()
        for role, processes in (("server", [server for server, _ in ours.servers]), ("worker", ours.workers)):
            for process in processes:
                lines = self.objects(process, role)
                joined = next(i for i, line in enumerate(lines) if line["message"].startswith("joined as node "))
                node = int(lines[joined]["message"].split()[-1])
                nodes.add(node)
                self.assertEqual([line.get("node") for line in lines], [None] * joined + [node] * (len(lines) - joined))
                of_job = [line for line in lines if f"epoch {number}" in line["message"]]
                self.assertGreaterEqual(len(of_job), 2, lines)
                for line in of_job:
                    self.assertEqual((line.get("job"), line.get("epoch")), (f"digits-{number}", number), line)
        self.assertEqual(len(nodes), 4)

    def objects(self, process, daemon):
        # The address goes to stdout, which has the same file here.
        text = [line for line in process.log().splitlines() if not line.startswith("listening on 127.0.0.1:")]
        lines = [json.loads(line) for line in text]
        self.assertGreaterEqual(len(lines), 3)
        for line in lines:
            self.assertEqual((line["daemon"], line["pid"]), (daemon, process.pid), line)
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(line["level"], ("info", "warning"), line)
            self.assertTrue(line["message"])
        return lines

    def test_another_seed_gives_another_model(self):
        """The counter-test: equal bytes above mean something."""
        one = self.train(digits_job(iterations=5, test_every_iterations=0), 2, 1)
        other = self.train(digits_job(iterations=5, test_every_iterations=0, init={"seed": 2}), 2, 1)
        self.assertNotEqual((one / "model.safetensors").read_bytes(), (other / "model.safetensors").read_bytes())


class Agreement(ProcessTest):
    """tests/golden/trajectory/README.md says why these jobs go slowly."""

    FOLDER = ROOT / "tests" / "golden" / "trajectory"

    def agree(self, what, values, expected, tolerance):
        self.assertEqual(len(values), 200)
        self.assertEqual(len(expected), 200)
        difference, iteration = worst_difference(values, expected)
        print(f"{what}: {difference:.2e} relative at worst (iteration {iteration})")
        self.assertLess(expected[-1], expected[0] / 2)
        self.assertLessEqual(difference, tolerance)

    def test_losses_agree_with_pytorch_and_however_the_batch_is_shared(self):
        golden = json.loads((self.FOLDER / "losses.json").read_text())
        weights = self.folder / "weights.safetensors"
        self.assertEqual(lenet_weights.write(weights), golden["weights_sha256"])
        for case in golden["cases"]:
            job = cluster.absolute_paths(json.loads((self.FOLDER / "job.json").read_text()), self.FOLDER)
            job["init"] = {"weights": str(weights)}
            job["optimizer"]["learning_rate"] = case["learning_rate"]
            job["model"] = self.lenet(case["pool"])
            one = losses(self.train(job, 1, 1))
            four = losses(self.train(dict(job, batch_size=32), 4, 2))
            with self.subTest(case["pool"]):
                self.agree(f"{case['pool']} pooling, 4 x 32 against 1 x 128", four, one, 1e-4)
                self.agree(f"{case['pool']} pooling, against PyTorch", four, case["losses"], 1e-3)

    @staticmethod
    def lenet(pool):
        network = json.loads((ROOT / "models" / "lenet.json").read_text())
        for layer in network["layers"]:
            if layer["type"] == "pooling":
                layer["pool"] = pool
        return network


class SmallNetworks(ProcessTest):
    """ResNet-18 and VGG in small, with batch normalisation: tests/golden/small_networks/README.md."""

    FOLDER = ROOT / "tests" / "golden" / "small_networks"

    def job_of(self, case):
        network, tensors = small_networks.NETWORKS[case["network"]]()
        weights = self.folder / f"{case['network']}.safetensors"
        self.assertEqual(lenet_weights.write(weights, tensors), case["weights_sha256"])
        job = json.loads((self.FOLDER / "job.json").read_text())
        for part, images in small_networks.IMAGES.items():
            file = self.folder / f"{part}.bin"
            file.write_bytes(small_networks.cifar_bytes(part, images))
            job["data"][part]["files"] = [str(file)]
        job["optimizer"]["learning_rate"] = case["learning_rate"]
        return dict(job, model=network, init={"weights": str(weights)}, test_every_iterations=job["iterations"])

    def test_losses_agree_with_pytorch(self):
        golden = json.loads((self.FOLDER / "losses.json").read_text())
        for case in golden["cases"]:
            with self.subTest(case["network"]):
                run_dir = self.train(self.job_of(case), 1, 1)
                iterations, tests = metrics(run_dir)
                values = [line["loss"] for line in iterations]
                self.assertEqual(len(values), len(case["losses"]))
                difference, iteration = worst_difference(values, case["losses"])
                test_difference = abs(tests[-1]["test_loss"] - case["test"]["loss"]) / case["test"]["loss"]
                print(f"{case['network']} against PyTorch: {difference:.2e} relative at worst (iteration {iteration}), "
                      f"test {test_difference:.2e}")
                self.assertLess(case["losses"][-1], 0.9 * case["losses"][0], "it must learn something")
                self.assertLessEqual(difference, 1e-3)
                self.assertLessEqual(test_difference, 1e-3)
                # Of 100 images, those whose best two scores are equal up to rounding may go either way.
                self.assertAlmostEqual(tests[-1]["test_accuracy"], case["test"]["accuracy"], delta=0.02)


if __name__ == "__main__":
    unittest.main(verbosity=2)
