"""Adam, LARS, clipping, multipliers, dropout and accumulation with real processes, against PyTorch; the same bits however run."""

import json
import sys
import unittest

import cluster
from cluster import ROOT, ProcessTest, digits_job, losses

FOLDER = ROOT / "tests" / "golden" / "trajectory"
sys.path.insert(0, str(FOLDER))
import lenet_weights  # noqa: E402


def model(run_dir):
    return (run_dir / "model.safetensors").read_bytes()


class AgainstPyTorch(ProcessTest):
    def job(self, case, iterations, **changes):
        weights = self.folder / "weights.safetensors"
        if not weights.exists():
            lenet_weights.write(weights)
        job = cluster.absolute_paths(json.loads((FOLDER / "job.json").read_text()), FOLDER)
        network = json.loads((ROOT / "models" / "lenet.json").read_text())
        for layer in network["layers"]:
            if layer["type"] == "pooling":
                layer["pool"] = "average"  # README.md beside the golden values says why
        if "dropout" in case:
            behind = [layer["name"] for layer in network["layers"]].index("relu1") + 1
            network["layers"].insert(behind, {"name": "drop", "type": "dropout", "ratio": case["dropout"]})
        job["init"]["weights"] = str(weights)
        job.update(model=network, iterations=iterations, optimizer=case["optimizer"])
        job.update(changes)
        return job

    def test_trajectories(self):
        golden = json.loads((FOLDER / "solver.json").read_text())
        iterations = golden["iterations"]
        mixed = {"scheme": {"ip1": "sfb", "ip2": "ps"}, "chunk_bytes": 65536}
        for case in golden["cases"]:
            with self.subTest(case["name"]):
                # By servers alone in one piece; and factors beside servers, two workers, four parts each.
                one = losses(self.train(self.job(case, iterations, sync={"scheme": "ps"}), 1, 1))
                two = losses(self.train(self.job(case, iterations, sync=mixed, batch_size=64, micro_batches=4), 2, 2))
                for what, values in (("1 worker", one), ("2 workers, SFB, 4 parts", two)):
                    self.assertEqual(len(values), iterations)
                    worst = max(abs(a - b) / abs(b) for a, b in zip(values, case["losses"]))
                    print(f"{case['name']}, {what}: {worst:.2e} relative at worst")
                    self.assertLessEqual(worst, 1e-3)
                self.assertLess(case["losses"][-1], 0.7 * case["losses"][0], "something was learnt")


class Reproducibility(ProcessTest):
    OPTIMIZERS = {
        "clipping": {"type": "sgd", "learning_rate": 0.05, "momentum": 0.9, "clip_norm": 0.5},
        "LARS": {"type": "lars", "learning_rate": 0.5, "momentum": 0.9, "trust_coefficient": 0.01},
    }

    def test_neither_another_run_nor_other_servers_change_a_bit(self):
        for name, optimizer in self.OPTIMIZERS.items():
            for wire in ("fp32", "bf16"):
                with self.subTest(f"{name}, {wire}"):
                    sync = {"scheme": {"ip1": "sfb", "ip2": "ps"}, "chunk_bytes": 16384, "wire_dtype": wire}
                    job = digits_job(iterations=12, test_every_iterations=0, optimizer=optimizer, sync=sync,
                                     micro_batches=2)
                    first = model(self.train(job, 2, 1))
                    self.assertEqual(first, model(self.train(job, 2, 1)))
                    self.assertEqual(first, model(self.train(job, 2, 3)))
                    loose = dict(job, optimizer={**optimizer, "learning_rate": 0.06})
                    self.assertNotEqual(first, model(self.train(loose, 2, 1)), "the comparison can fail")


class Refusals(ProcessTest):
    def refusal(self, **changes):
        optimizer = {"type": "sgd", "learning_rate": 0.05, **changes}
        result, _ = self.local(digits_job(optimizer=optimizer), 1, 1)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        return result.stderr

    def test_a_rule_that_matches_nothing_names_the_nearest(self):
        message = self.refusal(layers=[{"match": "conv1.wieght", "learning_rate_multiplier": 0}])
        self.assertIn("optimizer.layers[0].match", message)
        self.assertIn('did you mean "conv1.weight"?', message)

    def test_a_norm_that_is_not_finite_is_said_loudly(self):
        job = digits_job(iterations=20, optimizer={"type": "sgd", "learning_rate": 1e30, "clip_norm": 1e30},
                         sync={"scheme": "ps"})
        result, _ = self.local(job, 1, 1)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("finite number", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
