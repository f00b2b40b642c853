"""bench/gpu.sh in its smallest form, on the CPU: that it runs, writes its figures and fails when it cannot. No time is judged."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
PYTHON = "/usr/bin/python3"


class GpuBench(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory(prefix="poseidon-bench-")
        self.addCleanup(held.cleanup)
        self.out = pathlib.Path(held.name)

    def bench(self, *arguments, out=None):
        environment = {**os.environ, "OUT": str(out or "")}
        place = [] if out else ["--out", self.out]
        return subprocess.run([ROOT / "bench/gpu.sh", *arguments, "--device", "cpu", "--threads", "1", "--programs", BUILD / "bin",
                               *place], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
                              check=False)

    def test_compares_with_pytorch_where_it_is(self):
        done = self.bench("compare", "--networks", "cifar10_quick", "--batches", "2", "--precisions", "fp32,bf16",
                          "--no-compile", "--rounds", "2", "--turn-s", "0.01", "--python", PYTHON)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = json.loads((self.out / "compare.json").read_text())
        ours = [row for row in result["rows"] if row["variant"] == "poseidon"]
        self.assertEqual([(row["network"], row["batch"], row["precision"], len(row["rounds"])) for row in ours][:1],
                         [("cifar10_quick", 2, "fp32", 2)])
        self.assertGreater(ours[0]["images_per_s"], 0)
        if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"{PYTHON} has no torch: ours alone was tried")
        self.assertEqual({row["variant"] for row in result["rows"] if row["precision"] == "fp32"},
                         {"poseidon", "torch", "torch channels-last"})

    def test_says_what_is_left_when_its_time_is_up_and_goes_on_there(self):
        options = ("compare", "--networks", "cifar10_quick", "--batches", "2,3", "--precisions", "fp32", "--python", "/bin/false",
                   "--rounds", "1", "--turn-s", "0.01")
        done = self.bench(*options, "--budget-s", "0.01")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("not measured within", done.stdout)
        self.assertNotIn("cifar10_quick:2:fp32", done.stdout)
        self.assertIn("cifar10_quick:3:fp32", done.stdout)
        first = json.loads((self.out / "compare.json").read_text())
        self.assertEqual(first["left"], ["cifar10_quick:3:fp32"])
        done = self.bench(*options, "--skip-done", self.out / "compare.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        both = json.loads((self.out / "compare.json").read_text())
        self.assertEqual([row["batch"] for row in both["rows"]], [2, 3])
        self.assertEqual((both["rows"][:1], both["left"], len(both["calls"])), (first["rows"], [], 2))
        done = self.bench(*options, "--skip-done", self.out / "nothing.json")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "--skip-done .*nothing.json: .*No such file")

    def test_both_share_a_budget_and_write_where_it_is_wanted(self):
        done = self.bench("--budget-s", "200", "--networks", "cifar10_quick", "--batches", "2", "--precisions", "fp32", "--rounds", "1",
                          "--turn-s", "0.01", "--python", "/bin/false", "--sync-networks", "cifar10_quick:2", "--iterations", "600",
                          "--sync-rounds", "1", out=self.out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads((self.out / "bench-gpu/compare.json").read_text())["left"], [])
        self.assertIn("cifar10_quick:2", json.loads((self.out / "bench-gpu/sync.json").read_text())["networks"])
        done = self.bench("--budget-s", "5")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--budget-s 5: must be 60 s or more", done.stderr)

    def test_fails_by_name(self):
        done = self.bench("compare", "--networks", "nonesuch", "--batches", "2", "--precisions", "fp32")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nonesuch", done.stderr)

    def test_measures_what_synchronisation_costs(self):
        done = self.bench("sync", "--sync-networks", "cifar10_quick:2", "--iterations", "600", "--sync-rounds", "1", "--sync-wire-dtype", "bf16")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [one] = json.loads((self.out / "sync.json").read_text())["networks"]["cifar10_quick:2"]
        self.assertGreater(one["alone_s"], 0)
        self.assertGreater(one["stages_s"]["forward"], 0)
        self.assertGreater(one["iterations"], 10)
        self.assertTrue(0 <= one["stalled"] < 1, one)
        self.assertLess(sum(one["stages_s"][stage] for stage in ("input", "forward", "backward", "stall")), 1.05 * one["job_s"])
        self.assertTrue(0 < one["hidden"] <= 1, one)


if __name__ == "__main__":
    unittest.main()
