"""poseidon-bench-node works: 2 workers, 2 servers, real processes on loopback, right sums. No time is judged."""

import os
import pathlib
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "common")]

import networks  # noqa: E402
import poseidon_variant  # noqa: E402
from hosts import LoopbackHosts  # noqa: E402
from measurement import Job  # noqa: E402
from processes import ProcessError  # noqa: E402

BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", FOLDER.parents[1] / "build" / "release"))


class NodeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="poseidon-bench-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.sizes = self.folder / "sizes.txt"

    def run_node(self, sizes_text):
        self.sizes.write_text(sizes_text)
        return poseidon_variant.run(Job(hosts=LoopbackHosts(2), sizes=self.sizes, iterations=3, folder=self.folder,
                                        timeout_s=60, node=BUILD / "bin" / "poseidon-bench-node"))

    def test_two_workers_and_two_servers_synchronise(self):
        # The worker itself checks every iteration's sums; a wrong one ends it with an error.
        result = self.run_node(networks.sizes_text("tiny"))
        self.assertEqual(len(result.seconds), 3)
        self.assertGreater(result.cpu_seconds, 0)

    def test_a_bad_sizes_file_is_named(self):
        with self.assertRaisesRegex(ProcessError, "layer conv: '-3' is no number of elements"):
            self.run_node("conv 12 -3\n")


if __name__ == "__main__":
    unittest.main()
