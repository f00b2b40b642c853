"""The measurement before a job (sync.cost "time"), in real processes. Nodes on other addresses of the loopback are other
machines to the planner, so that there is a network to measure."""

import hashlib
import json
import shutil
import signal
import sys
import unittest

from cluster import BIN, ROOT, Cluster, OnHosts, ProcessTest, digits_job, wait_for

sys.path.append(str(ROOT / "bench" / "common"))
import hosts  # noqa: E402


def job(iterations=60, **sync):
    result = digits_job(iterations=iterations, batch_size=16, test_every_iterations=0)
    result["sync"] = sync
    return result


MBIT = 100
SMALL = {"name": "small", "input": [1, 28, 28], "layers": [
    {"name": "fc", "type": "fully_connected", "outputs": 10}, {"name": "loss", "type": "softmax_cross_entropy"}]}


def clear_cut():
    """Its layer goes by PS however noisy the measurement is: factors of 512 samples are fifty times the gradient."""
    return {**job(iterations=10), "batch_size": 512, "model": SMALL}


def schemes_of(plan):
    return {layer["name"]: layer["scheme"] for layer in plan["layers"]}


class Calibration(ProcessTest):
    def cluster(self, workers=2):
        """Every node on a machine of its own, as far as its address tells."""
        cluster = Cluster(self)
        self.server = self.start("server", BIN / "poseidon-server", "--coordinator", cluster.address, "--listen",
                                 "127.0.0.2:0", "--data-dir", self.folder / "server-data")
        for index in range(workers):
            cluster.add_worker("--listen", f"127.0.0.{3 + index}:0")
        return cluster

    def train(self, cluster, name, submitted):
        run_dir = self.folder / name
        result = cluster.submit(submitted, "--workers", 2, "--servers", 1, "--wait", run_dir=run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return run_dir, json.loads((run_dir / "plan.json").read_text())

    def test_a_job_is_planned_with_what_was_measured_and_repeats_itself(self):
        cluster = self.cluster()
        first, plan = self.train(cluster, "first", job())
        calibration = plan["calibration"]
        self.assertTrue(calibration["measured"])
        self.assertEqual([layer["name"] for layer in calibration["layers"]], [layer["name"] for layer in plan["layers"]])
        for layer in calibration["layers"]:
            self.assertGreater(layer["forward_seconds"], 0)
            self.assertGreater(layer["backward_seconds"], 0)
        self.assertEqual((len(calibration["workers"]), len(calibration["servers"])), (2, 1))
        for nic in calibration["workers"] + calibration["servers"]:
            self.assertGreater(nic["send_bytes_per_s"], 1e6)
            self.assertGreater(nic["receive_bytes_per_s"], 1e6)
        self.assertGreater(calibration["device_ops_per_s"], 1e6)
        self.assertGreater(calibration["server_sum_bytes_per_s"], 1e6)
        self.assertGreater(calibration["latency_seconds"], 0)
        self.assertGreater(plan["predicted"]["iteration_seconds"], 0)

        # What was measured must not be in the result, but for the schemes, which have rounding of their own: with the same
        # ones by name nothing is left to measure for.
        schemes = {layer["name"]: layer["scheme"] for layer in plan["layers"]}
        second, again = self.train(cluster, "second", job(scheme=schemes))
        self.assertNotIn("calibration", again)
        self.assertEqual({layer["name"]: layer["scheme"] for layer in again["layers"]}, schemes)
        self.assertEqual(*((run / "model.safetensors").read_bytes() for run in (first, second)))
        pinned, repeated = self.train(cluster, "pinned", job(plan=str(first / "plan.json")))
        self.assertNotIn("calibration", repeated)
        self.assertEqual({layer["name"]: layer["scheme"] for layer in repeated["layers"]}, schemes)
        self.assertEqual(*((run / "model.safetensors").read_bytes() for run in (first, pinned)))
        self.assertEqual(repeated["window_bytes"], plan["window_bytes"])

        # How much is under way changes when things happen, and no bit of the result.
        edited = self.folder / "edited.json"
        edited.write_text(json.dumps({**plan, "window_bytes": 65536}))
        narrow, repeated = self.train(cluster, "narrow", job(plan=str(edited)))
        self.assertEqual(repeated["window_bytes"], 65536)
        self.assertEqual(*((run / "model.safetensors").read_bytes() for run in (first, narrow)))
        edited.write_text(json.dumps({**plan, "window_bytes": 1}))
        refused = cluster.submit(job(plan=str(edited)), "--workers", 2, "--servers", 1, "--wait", run_dir=self.folder / "refused")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("edited.json: window_bytes: expected 0 (not known) or at least 65536", refused.stdout + refused.stderr)

    def test_the_next_run_of_a_job_has_the_schemes_of_the_last(self):
        cluster = self.cluster()
        first, plan = self.train(cluster, "first", clear_cut())
        (kept,) = wait_for("the plan to be kept", lambda: list((self.folder / "state" / "plans").glob("*.json")))
        second, again = self.train(cluster, "second", clear_cut())
        self.assertEqual(schemes_of(again), schemes_of(plan))
        self.assertEqual(*((run / "model.safetensors").read_bytes() for run in (first, second)))
        said = "with the schemes of the plan of digits-1, the last run of this job on such machines"
        self.assertIn(said, cluster.status()["plan_basis"])
        self.assertIn(said, cluster.coordinator.log())

        # A file that has changed is told of, and is in no job's way.
        wait_for("the second run to be kept", lambda: '"digits-2"' in kept.read_text())
        kept.write_text(kept.read_text().replace('"digits-2"', '"digits-7"'))
        result = cluster.submit(clear_cut(), "--workers", 2, "--servers", 1, "--wait", run_dir=self.folder / "third")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"\nplan         measured in .* s before this job\n")
        self.assertRegex(cluster.coordinator.log(), r"the plans of earlier runs are not used: .*/plans/\w+\.json: its checksum")

    def test_status_holds_measured_times_against_predicted_ones(self):
        cluster = self.cluster()
        self.assertEqual(cluster.submit(job(iterations=1_000_000), "--workers", 2, "--servers", 1).returncode, 0)
        status = wait_for("measured times", lambda: self.with_times(cluster.status()))
        self.assertIn("measured", status["plan_basis"])
        self.assertGreater(status["predicted_iteration_seconds"], 0)
        for layer in status["layers"]:
            for kind in ("predicted", "measured"):
                self.assertGreater(layer[kind]["forward_seconds"], 0)
                self.assertGreater(layer[kind]["backward_seconds"], 0)
            self.assertGreater(layer["measured"]["sync_seconds"], 0)
            self.assertTrue(layer["reason"])

    @staticmethod
    def with_times(status):
        known = status["layers"] and all(layer["measured"] for layer in status["layers"])
        return status if known and status["measured_iteration_seconds"] else None

    def test_a_plan_that_differs_from_the_last_runs_says_how_to_pin_that_one(self):
        """What is kept is changed to what would make the iteration far longer."""
        cluster = self.cluster()
        _, plan = self.train(cluster, "first", clear_cut())
        self.assertEqual(schemes_of(plan)["fc"], "ps")
        (kept,) = wait_for("the plan to be kept", lambda: list((self.folder / "state" / "plans").glob("*.json")))
        lines = [line for line in kept.read_text().splitlines() if "checksum" not in line]
        kept.write_text("\n".join(lines).replace('"fc": "ps"', '"fc": "sfb"'))
        run_dir = self.folder / "second"
        result = cluster.submit(clear_cut(), "--workers", 2, "--servers", 1, "--wait", run_dir=run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(schemes_of(json.loads((run_dir / "plan.json").read_text()))["fc"], "ps")
        for text in (result.stdout, cluster.status()["plan_basis"], cluster.coordinator.log()):
            self.assertIn("differs from the plan of digits-1, the last run of this job on such machines "
                          "(fc by ps, was sfb)", text)
            self.assertIn('to pin that one: "sync": {"scheme":"sfb"}', text)

    def test_a_cluster_on_one_machine_measures_nothing_and_says_why(self):
        cluster = Cluster(self).add(workers=2, servers=1)
        _, plan = self.train(cluster, "run", job(iterations=5))
        self.assertNotIn("calibration", plan)
        self.assertIn("share one machine", cluster.coordinator.log())

    def test_a_node_frozen_while_it_measures_is_named(self):
        cluster = self.cluster()
        wait_for("both workers", lambda: len(cluster.status()["workers"]) == 2)
        cluster.workers[1].signal(signal.SIGSTOP)
        self.assertEqual(cluster.submit(job(), "--workers", 2, "--servers", 1).returncode, 0)
        status = cluster.wait_for_state("recovering")
        self.assertIn(f"process {cluster.workers[1].pid}", status["message"])


@unittest.skipIf(hosts.why_not(), f"SKIPPED: no namespaces here: {hosts.why_not()}")
class OnThreeMachines(ProcessTest):
    """A server and two workers, each on a machine of its own. The network is what the job waits for: on one machine's few
    cores computing is measured too roughly to decide anything."""

    def setUp(self):
        super().setUp()
        hosts.remove_stale()
        self.network = hosts.NamespaceHosts(3, MBIT)
        try:
            self.network.__enter__()
        except hosts.HostsError as error:
            self.skipTest(str(error))
        self.addCleanup(self.network.__exit__)

    def cluster(self):
        place = OnThree(self.network)
        cluster = Cluster(self, lease_ms=3000, place=place)
        cluster.add_server()
        for index in range(2):
            cluster.add_worker("--listen", f"{place.address(f'worker-{index}')}:0")
        return cluster

    def end(self, cluster):
        for process in [*cluster.workers, *(server for server, _ in cluster.servers), cluster.coordinator]:
            process.signal(signal.SIGTERM)
            process.wait()
        for folder in ("state", "server-0"):
            shutil.rmtree(self.folder / folder)

    def test_the_same_job_three_times_is_one_model(self):
        cluster = self.cluster()
        models = []
        for index in range(4):
            if index == 3:  # a cluster that knows nothing of the runs before
                self.end(cluster)
                cluster = self.cluster()
            run_dir = self.folder / f"run-{index}"
            result = cluster.submit(job(), "--workers", 2, "--servers", 1, "--wait", run_dir=run_dir)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            plan = json.loads((run_dir / "plan.json").read_text())
            self.assertTrue(plan["calibration"]["measured"])
            models.append(hashlib.sha256((run_dir / "model.safetensors").read_bytes()).hexdigest())
        self.assertEqual(len(set(models)), 1, cluster.coordinator.log())


class OnThree(OnHosts):
    """The coordinator beside the server."""

    def __init__(self, network):
        super().__init__(network, servers=1)
        self.first = {"coordinator": 0, "server": 0, "worker": 1}


if __name__ == "__main__":
    unittest.main(verbosity=2)
