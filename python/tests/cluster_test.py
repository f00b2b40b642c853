"""Scripts of trajectory_test.py on a real cluster: coordinator, two servers and two scripts, by the client library.

    POSEIDON_BUILD=build/release python3 -B python/tests/cluster_test.py
"""

import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import support
from support import torch

if torch:
    import trajectory_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build/release")).resolve() / "bin"
LIBRARY = PROGRAMS / "libposeidon_client.so"
WORKERS = 2
DEADLINE_S = 240


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@unittest.skipUnless(torch, "torch is not installed")
@unittest.skipUnless(LIBRARY.exists(), f"{LIBRARY} is not built")
class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.coordinator = f"127.0.0.1:{free_port()}"
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        self.start("coordinator", PROGRAMS / "poseidon-coordinator", "--listen", self.coordinator, "--state-dir", self.folder / "state",
                   "--run-root", self.folder)
        for i in range(2):
            self.start(f"server{i}", PROGRAMS / "poseidon-server", "--coordinator", self.coordinator, "--listen", "127.0.0.1:0",
                       "--data-dir", self.folder / f"data{i}")

    def start(self, name, *command, **environment):
        log = self.enterContext(open(self.logs / name, "w"))
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment)

        def stop():
            process.terminate()
            process.wait()
        self.addCleanup(stop)
        return process

    def train(self, name, step):
        """The parameters of each worker, and those of the file that worker 0 saved."""
        workers = [self.start(f"worker{rank}", sys.executable, "-B", pathlib.Path(__file__).with_name("cluster_script.py"), name, self.folder, step,
                              POSEIDON_COORDINATOR=self.coordinator, POSEIDON_CLIENT_LIBRARY=str(LIBRARY), RANK=str(rank),
                              WORLD_SIZE=str(WORKERS), POSEIDON_SERVERS="2", POSEIDON_JOB=name, POSEIDON_RUN_DIR=str(self.run_dir(name, step))) for rank in range(WORKERS)]
        for worker in workers:
            if worker.wait(DEADLINE_S) != 0:
                self.fail("\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self.logs.iterdir())))
        return [json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(WORKERS)]

    def run_dir(self, name, step):
        return self.folder / f"{name}-{step}"

    def file(self, path):
        """The shapes and the values of the tensors of a safetensors file."""
        content = path.read_bytes()
        length, = struct.unpack("<Q", content[:8])
        tensors = json.loads(content[8:8 + length])
        tensors.pop("__metadata__", None)
        return {name: torch.frombuffer(bytearray(content[8 + length + begin:8 + length + end]), dtype=torch.float32).view(about["shape"])
                for name, about in tensors.items() if about["dtype"] == "F32" for begin, end in [about["data_offsets"]]}

    def check(self, name, step):
        script = getattr(trajectory_test, name)()
        first, second = self.train(name, step)
        reference = trajectory_test.whole_batch(script, WORKERS if name == "Residual" else 1)
        saved, stored = self.file(self.folder / "saved.safetensors"), self.file(self.run_dir(name, step) / "model.safetensors")
        for tensor, value in reference:
            self.assertEqual(first[tensor], second[tensor], tensor)
            trained = torch.tensor(first[tensor])
            self.assertLess(((trained - value).norm() / value.norm()).item(), trajectory_test.RELATIVE, tensor)
            self.assertTrue(torch.equal(saved[tensor], trained), tensor)
            self.assertTrue(torch.equal(stored[tensor], trained), tensor)

    def test_servers_step(self):
        for name in ("Mlp", "Residual", "Gpt", "Accumulating", "SparseEmbedding"):
            with self.subTest(name):
                self.check(name, "server")

    def test_workers_step(self):
        for name, step in (("Residual", "layer"), ("Gpt", "worker")):
            with self.subTest(name, step=step):
                self.check(name, step)


if __name__ == "__main__":
    support.main()
