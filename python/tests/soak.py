"""Random faults against a PyTorch script, each run compared in bytes with the undisturbed one.

    POSEIDON_BUILD=build/release python3 -B python/tests/soak.py --trials N --seed S       (a Python with torch)

The script is examples/torch/gpt.py on 2 workers, with 2 servers. What strikes, what is printed and all other options are those
of tests/process/soak.py; nothing is drained here, and no stranger comes.
"""

import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/process"))

import soak
from cluster import BIN, Cluster

BATCH = 8
SCRIPT = [ROOT / "examples/torch/gpt.py", "--epochs", 1, "--pieces", soak.ITERATIONS * soak.WORKERS * BATCH, "--batch-size", BATCH,
          "--length", 32, "--width", 32, "--depth", 2, "--checkpoint-every", soak.EVERY]


class ScriptCluster(Cluster):
    """Its workers are scripts, which declare the job: it begins when they do."""

    def submit(self, _job, *_arguments, run_dir=None):
        self.run_dir = run_dir
        for rank in range(soak.WORKERS):
            self.workers.append(self.script(rank))
        return types.SimpleNamespace(returncode=0, stderr="")

    def restart_worker(self, index, *_arguments):
        self.workers[index] = self.script(index)

    def script(self, rank):
        environment = {"POSEIDON_COORDINATOR": self.address, "POSEIDON_SERVERS": soak.SERVERS, "POSEIDON_RUN_DIR": self.run_dir,
                       "POSEIDON_CLIENT_LIBRARY": BIN / "libposeidon_client.so", "PYTHONPATH": ROOT / "python",
                       "OMP_NUM_THREADS": 1, "RANK": rank, "WORLD_SIZE": soak.WORKERS}
        return self.test.start(f"worker-{rank}-{len(self.test.processes)}", "env", *(f"{key}={value}" for key, value in environment.items()),
                               sys.executable, "-B", *SCRIPT)


class ScriptTrial(soak.Trial):
    def cluster(self, _connection):
        self.extra = []
        cluster = self.script_cluster = ScriptCluster(self, keeps_job=True)
        for _ in range(soak.SERVERS):
            cluster.add_server()
        return cluster

    def train(self, job, _workers, _servers):
        calm = ScriptTrial()
        calm.setUp()
        self.addCleanup(calm.doCleanups)
        cluster = calm.cluster("memory")
        cluster.submit(job, run_dir=calm.folder / "run")
        calm.finish(cluster)
        return calm.folder / "run"

    def disturb(self, *arguments):
        result = super().disturb(*arguments)
        self.finish(self.script_cluster)
        return result

    def finish(self, cluster):
        """All scripts end well."""
        for script in cluster.workers:
            self.assertEqual(script.wait(180), 0, script.log())


def main():
    options = soak.parse(["--variants", "ps", "--connections", "memory", "--drained", "0", "--hijacked", "0", *sys.argv[1:]])
    failed, struck = soak.soak(options, ScriptTrial)
    return 0 if struck and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
