"""poseidon-bench-engine works, and compare.py where PyTorch is. No time is judged."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(FOLDER.parent / "common"))
import compare  # noqa: E402

BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", FOLDER.parents[1] / "build" / "release"))
ENGINE = BUILD / "bin" / "poseidon-bench-engine"
PYTHON = "/usr/bin/python3"


def run(*command, stdin=""):
    return subprocess.run(list(map(str, command)), input=stdin, capture_output=True, text=True, timeout=240, check=False)


class EngineTest(unittest.TestCase):
    def test_prints_figures_and_layers(self):
        done = run(ENGINE, "--network", "lenet", "--batch", 2, "--iterations", 2, "--layers")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("conv2", done.stdout)
        self.assertIn("images_per_s", done.stdout)

    def test_refuses_an_unknown_network_and_a_bad_turn(self):
        done = run(ENGINE, "--network", "lenett")
        self.assertEqual(done.returncode, 1)
        self.assertIn("lenet", done.stderr)
        done = run(ENGINE, "--network", "lenet", "--turns", stdin="many\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("got 'many'", done.stderr)

    def test_answers_turns_with_figures_alone(self):
        # Where no GPU can be opened the log says so: not between the figures.
        done = run(ENGINE, "--network", "lenet", "--batch", 2, "--device", "auto", "--turns", stdin="1\n1\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("computing on", done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(answers), 3)  # about itself, and two turns
        self.assertTrue(all("images_per_s" in answer for answer in answers[1:]), answers)

    def test_names_who_answers_what_is_no_json(self):
        with tempfile.TemporaryDirectory(prefix="poseidon-bench-") as folder:
            with self.assertRaisesRegex(compare.BenchError, "one answered what is no JSON: .2026-11-27. a warning"):
                compare.Contender("one", ["/bin/echo", "[2026-11-27] a warning"], None, pathlib.Path(folder) / "one.log")

    def test_compares_with_pytorch(self):
        if run(PYTHON, "-c", "import torch").returncode != 0:
            self.skipTest(f"{PYTHON} has no torch")
        with tempfile.TemporaryDirectory(prefix="poseidon-bench-") as folder:
            done = run(sys.executable, "-B", FOLDER / "compare.py", "--networks", "cifar10_quick:2", "--threads", 1, "--rounds",
                       1, "--turn-s", 0.01, "--build", BUILD, "--python", PYTHON, "--log-dir", folder, "--json",
                       pathlib.Path(folder) / "out.json")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("channels-last", done.stdout)


if __name__ == "__main__":
    unittest.main()
