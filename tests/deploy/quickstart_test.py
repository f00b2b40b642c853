"""The README's first command, as it stands: installs, builds, trains. Its run directory goes when the test does."""

import json
import re
import shutil
import subprocess
import unittest

from machine import BUILD, ROOT

# What the digits reach within the job's 1200 iterations; 0.98 and more, whatever the seed.
GOOD_ACCURACY = 0.97


@unittest.skipUnless(BUILD == ROOT / "build/release", "the quickstart builds and runs the release preset")
class Quickstart(unittest.TestCase):
    def test_trains_the_digits(self):
        done = subprocess.run([ROOT / "deploy/quickstart.sh"], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=800, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])
        found = re.search(r"; run directory (\S+)", done.stdout)
        self.assertIsNotNone(found, done.stdout[-4000:])
        run = ROOT / found[1]
        self.addCleanup(shutil.rmtree, run)
        self.assertGreater((run / "model.safetensors").stat().st_size, 1_000_000)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(sum("loss" in line for line in lines), 1200)
        self.assertGreater(lines[-1]["test_accuracy"], GOOD_ACCURACY, lines[-1])
        # It ends with where the model and its metrics are.
        self.assertEqual([line.split()[-1] for line in done.stdout.splitlines()[-2:]],
                         [str(run / "model.safetensors"), str(run / "metrics.jsonl")])


if __name__ == "__main__":
    unittest.main()
