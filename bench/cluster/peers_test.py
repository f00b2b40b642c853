"""Two ranks of DDP on an emulated device, real processes on loopback, right sums. No time is judged from above."""

import os
import pathlib
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "common")]

import device_profile  # noqa: E402
import peers  # noqa: E402
import torch_gloo  # noqa: E402
from hosts import LoopbackHosts  # noqa: E402
from processes import ProcessError  # noqa: E402

PYTHON = os.environ.get("POSEIDON_BENCH_PYTHON", torch_gloo.default_python())
WHY_NO_TORCH = torch_gloo.why_not(PYTHON)

PROFILE = device_profile.parse({
    "network": "small", "batch_size": 1, "device": "none", "device_flops": 1e12, "device_bytes_per_s": 1e12, "layers": [
        {"name": "conv", "type": "convolution", "forward_s": 0.001, "backward_s": 0.002, "tensors": [[16, 3, 3, 3], [16]]},
        {"name": "fc", "type": "fully_connected", "forward_s": 0.001, "backward_s": 0.001, "tensors": [[500, 600], [500]]}]})


@unittest.skipIf(WHY_NO_TORCH, WHY_NO_TORCH)
class DdpTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="poseidon-bench-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_peer(self, name, **options):
        return peers.run(name, LoopbackHosts(2), PROFILE, 4, 2, 3, self.folder, python=PYTHON, **{"timeout_s": 120, **options})

    def test_every_variant_synchronises(self):
        # Every rank checks every iteration's values; a wrong one ends it with an error.
        for name in peers.DDP:
            with self.subTest(name):
                result = self.run_peer(name)
                self.assertEqual(len(result.seconds), 2)
                # Ends of iterations are the device's or later, so together they cannot be shorter than its work but
                # for how late the first one was.
                self.assertGreater(sum(result.seconds), PROFILE.compute_s)
                self.assertGreater(result.cpu_seconds, 0)
                self.assertEqual(len(result.sent_bytes), 2)

    def test_a_rank_that_fails_is_named_with_its_words(self):
        with self.assertRaisesRegex(ProcessError, "ddp rank [01]: .*\n(.*\n)*.*slow-motion"):
            peers.run("ddp", LoopbackHosts(2), PROFILE, "fast", 2, 3, self.folder, python=PYTHON, timeout_s=120)


class ArgumentsTest(unittest.TestCase):
    def test_horovod_needs_an_interpreter_of_its_own(self):
        self.assertIn("--horovod-python", peers.why_not("horovod"))
        self.assertIn("No such file", peers.why_not("horovod", horovod_python="/nowhere/python"))

    def test_peers_are_known_by_name(self):
        self.assertIn("'ring' is none of ddp,", peers.why_not("ring"))

    def test_too_short_a_warm_up_is_refused(self):
        with self.assertRaisesRegex(ValueError, "warm_up is 2"):
            peers.run("ddp", LoopbackHosts(2), PROFILE, 1, 2, 2, pathlib.Path("unused"))


if __name__ == "__main__":
    unittest.main()
