"""Layers that go from worker to worker (SFB), in real processes: the same losses as by PS, the same bytes again, and
who dies is named.

    sfb_test.py          a small grid, for every test run
    sfb_test.py --grid   all of it: MLP (2048 wide) and LeNet; ps, sfb, auto, each twice; 1 to 4 workers; 200 iterations
"""

import itertools
import json
import re
import signal
import sys
import unittest
import urllib.request

from cluster import LEASE_MS, Cluster, ProcessTest, digits_job, losses, metrics, wait_for

# Relative. Schemes round differently, and what then happens is the arithmetic's doing: max pooling and ReLU jump, a
# large step magnifies. So these jobs go slowly (tests/golden/trajectory/README.md has the measurements).
TOLERANCE = 1e-4
NOTICE_S = LEASE_MS / 1000 + 12


def mlp(width):
    def fully_connected(name, outputs):
        return {"name": name, "type": "fully_connected", "outputs": outputs, "init": {"weight": {"type": "he"}}}

    return {"name": "mlp", "input": [1, 28, 28], "layers": [
        fully_connected("fc1", width), {"name": "relu1", "type": "relu"},
        fully_connected("fc2", width), {"name": "relu2", "type": "relu"},
        fully_connected("fc3", 10), {"name": "loss", "type": "softmax_cross_entropy"}]}


def slow_job(model, scheme, iterations=200, batch_size=16, learning_rate=0.0002, **changes):
    job = digits_job(model=model, batch_size=batch_size, iterations=iterations, test_every_iterations=0,
                     optimizer={"type": "sgd", "learning_rate": learning_rate, "momentum": 0.9, "weight_decay": 0.0005},
                     **changes)
    job["data"]["transform"] = {"resize": [28, 28], "scale": 0.00392156862745098}
    job["sync"] = {"scheme": scheme, "cost": "bytes", "chunk_bytes": 65536}
    return job


class Agreement(ProcessTest):
    def schemes_agree(self, name, model, workers, **sizes):
        """ps, sfb and auto on so many workers, each twice."""
        curves, models = {}, {}
        for scheme, turn in itertools.product(("ps", "sfb", "auto"), (1, 2)):
            run_dir = self.train(slow_job(model, scheme, **sizes), workers, 2)
            curves.setdefault(scheme, []).append(losses(run_dir))
            models.setdefault(scheme, []).append((run_dir / "model.safetensors").read_bytes())
            plan = json.loads((run_dir / "plan.json").read_text())
            chosen = {layer["name"]: layer["scheme"] for layer in plan["layers"]}
            if turn == 1 and scheme == "sfb":
                self.assertIn("sfb", chosen.values())
            if scheme == "ps":
                self.assertEqual(set(chosen.values()), {"ps"})
        for scheme, (first, second) in models.items():
            self.assertEqual(curves[scheme][0], curves[scheme][1], f"{name}, {scheme}: twice, other losses")
            self.assertEqual(first, second, f"{name}, {scheme}: twice, another model")
        by_ps = curves["ps"][0]
        self.assertLess(sum(by_ps[-5:]), sum(by_ps[:5]), "it learns")
        for scheme in ("sfb", "auto"):
            worst = max(abs(a - b) / abs(b) for a, b in zip(curves[scheme][0], by_ps))
            print(f"{name}, {workers} workers, {len(by_ps)} iterations: {scheme} against ps {worst:.2e} relative at worst")
            self.assertEqual(len(curves[scheme][0]), len(by_ps))
            self.assertLessEqual(worst, TOLERANCE)

    def test_an_mlp(self):
        for workers in (2, 3):
            with self.subTest(workers=workers):
                self.schemes_agree("MLP 96", mlp(96), workers, iterations=60, learning_rate=0.002)

    def test_lenet(self):
        self.schemes_agree("LeNet", "lenet", 2, iterations=40, learning_rate=0.0005)

    def test_one_worker_has_nothing_to_send(self):
        self.schemes_agree("MLP 32", mlp(32), 1, iterations=20, learning_rate=0.002)


class Grid(Agreement):
    """Only with --grid."""

    def test_an_mlp(self):
        for workers in (1, 2, 3, 4):
            with self.subTest(workers=workers):
                self.schemes_agree("MLP 2048", mlp(2048), workers)

    def test_lenet(self):
        for workers in (1, 2, 3, 4):
            with self.subTest(workers=workers):
                self.schemes_agree("LeNet", "lenet", workers, batch_size=32)


class Transports(ProcessTest):
    def train_on(self, name, flags, threads):
        """The model of a cluster with these workers."""
        ours = Cluster(self).add(workers=0, servers=1)
        for count in threads:
            ours.add_worker(*flags, threads=count)
        run_dir = self.folder / name
        result = ours.submit(slow_job(mlp(48), "sfb", iterations=60), "--workers", len(threads), "--wait", run_dir=run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for process in self.processes:
            process.signal(signal.SIGTERM)
            self.assertEqual(process.wait(10), 0, process.log())
        for worker in ours.workers:
            sent = int(re.search(r"sent (\d+) MB of tensors through shared memory", worker.log()).group(1))
            self.assertEqual(sent > 0, not flags, "chosen by itself, and not against one's will")
        self.processes.clear()
        return (run_dir / "model.safetensors").read_bytes()

    def test_shared_memory_and_sockets_give_the_same_bytes(self):
        self.assertEqual(self.train_on("shared", [], [1, 1, 1]), self.train_on("sockets", ["--no-shared-memory"], [1, 1, 1]))

    def test_workers_with_other_numbers_of_threads_stay_equal(self):
        self.train_on("threads", [], [1, 2, 3])  # they compare digests, and fail when they differ

    def test_tests_and_files_are_as_ever(self):
        job = digits_job(iterations=200, test_every_iterations=100)
        job["sync"] = {"scheme": "sfb"}
        iterations, tests = metrics(self.train(job, 2, 1))
        self.assertEqual(len(iterations), 200)
        self.assertEqual([line["iteration"] for line in tests], [100, 200])
        self.assertGreater(tests[-1]["test_accuracy"], 0.8)


class Looking(ProcessTest):
    def test_status_and_metrics_show_the_scheme_and_its_bytes(self):
        cluster = Cluster(self).add(workers=0, servers=1)
        for _ in range(2):
            cluster.add_worker("--metrics-listen", "127.0.0.1:0")
        job = slow_job(mlp(48), "sfb", iterations=1_000_000)
        self.assertEqual(cluster.submit(job, "--workers", 2).returncode, 0)
        status = wait_for("bytes in the status", lambda: self.with_bytes(cluster.status()))
        self.assertEqual([layer["scheme"] for layer in status["layers"]], ["sfb"] * 3)
        for worker in status["workers"]:
            self.assertRegex(worker["address"], r"^127\.0\.0\.1:\d+$")
        with urllib.request.urlopen(f"http://{status['workers'][0]['metrics_address']}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for direction in ("sent", "received"):
            line = next(line for line in text.splitlines()
                        if line.startswith(f'poseidon_layer_{direction}_bytes_total{{layer="fc1"'))
            self.assertIn('scheme="sfb"', line)
            self.assertGreater(float(line.split()[-1]), 0)

    @staticmethod
    def with_bytes(status):
        layers = status["layers"]
        return status if layers and all(layer["received_bytes_per_s"] for layer in layers) else None


class Losses(ProcessTest):
    def lose(self, number):
        cluster = Cluster(self).add(workers=3, servers=1)
        job = {**slow_job(mlp(48), "sfb", iterations=1_000_000), "membership": {"replace_timeout_ms": 2000}}
        self.assertEqual(cluster.submit(job, "--workers", 3).returncode, 0)
        cluster.wait_for_iteration(2)
        victim = cluster.workers[1]
        victim.signal(number)
        status = cluster.wait_for_state("recovering", timeout_s=NOTICE_S)
        self.assertIn(f"process {victim.pid}", status["message"])
        cluster.wait_for_state("running", timeout_s=NOTICE_S)
        cluster.wait_for_iteration(status["iteration"] + 3)
        self.assertEqual([w["rank"] for w in cluster.status()["workers"] if w["state"] == "running"], [0, 1])

    def test_a_killed_worker_is_named_and_the_rest_go_on(self):
        self.lose(signal.SIGKILL)

    def test_a_frozen_worker_is_named_and_the_rest_go_on(self):
        self.lose(signal.SIGSTOP)


if __name__ == "__main__":
    if "--grid" in sys.argv:
        sys.argv.remove("--grid")
        unittest.main(verbosity=2, defaultTest="Grid")
    else:
        unittest.main(verbosity=2, defaultTest=["Agreement", "Transports", "Looking", "Losses"])
