"""All workers train on the same data, and a run goes on with those that it began with: others are found out before the
first iteration, by name, and after a restore they are told."""

import gzip
import json
import shutil
import struct
import subprocess
import unittest

from cluster import Cluster, Here, ProcessTest, digits_job, idx_bytes, wait_for, write_gzip


class OtherDataAt(Here):
    """One worker sees another folder in the place of the data's, as on a machine of its own."""

    def __init__(self, who, folder, instead):
        self.who, self.folder, self.instead = who, folder, instead

    def command(self, name, arguments):
        if name != self.who:
            return arguments
        return ["unshare", "--mount", "bash", "-euc", 'mount --bind "$1" "$2"; shift 2; exec "$@"', "bash", self.instead, self.folder,
                *arguments]


def can_mount():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


class Data(ProcessTest):
    def copy_of_the_digits(self, name):
        """A folder with the digits' training files, and a job that trains on them."""
        job = digits_job(iterations=1_000_000, test_every_iterations=0, batch_size=32, sync={"scheme": "ps", "cost": "bytes"},
                         checkpoint={"every_iterations": 20})
        folder = self.folder / name
        folder.mkdir()
        for key, path in list(job["data"]["train"].items()):
            if key in ("images", "labels"):
                shutil.copy(path, folder)
                job["data"]["train"][key] = str(folder / path.rsplit("/", 1)[1])
        return folder, job

    def change(self, folder, job, samples=None, label=None):
        """Leaves `samples` of them, or changes the first one's label."""
        for key in ("images", "labels"):
            path = folder / job["data"]["train"][key].rsplit("/", 1)[1]
            data = gzip.open(path).read()
            dimensions = struct.unpack_from(f">{data[3]}I", data, 4)
            payload = bytearray(data[4 + 4 * len(dimensions):])
            count = samples or dimensions[0]
            if label is not None and key == "labels":
                payload[0] = label
            write_gzip(path, idx_bytes([count, *dimensions[1:]], bytes(payload[:count * len(payload) // dimensions[0]])))

    def submit(self, job, **options):
        return self.cluster.submit(job, "--workers", 2, "--servers", 1, run_dir=self.folder / "run", **options)

    @unittest.skipUnless(can_mount(), "SKIPPED: no folder can be mounted here")
    def test_a_worker_with_other_data_is_named_before_anything_is_trained(self):
        folder, job = self.copy_of_the_digits("data")
        other, _ = self.copy_of_the_digits("other")
        self.change(other, job, samples=900)
        self.cluster = Cluster(self, place=OtherDataAt("worker-1", folder, other)).add(workers=2, servers=1)
        submitted = self.submit(job)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        failed = self.cluster.wait_for_state("failed")
        self.assertRegex(failed["message"], r"worker \d \(.*\) failed: its data are not those of worker \d \(.*\): "
                                            r"(900 training samples here, \d+ there|\d+ training samples here, 900 there)")
        self.assertIn("the same files at the same path", failed["message"])
        self.assertEqual(failed["iteration"], 0)

    @unittest.skipUnless(can_mount(), "SKIPPED: no folder can be mounted here")
    def test_a_newcomer_with_other_data_is_left_out_and_the_job_goes_on(self):
        folder, job = self.copy_of_the_digits("data")
        other, _ = self.copy_of_the_digits("other")
        self.change(other, job, label=9)
        job.update(batch_size=24, membership={"min_workers": 2, "max_workers": 3, "batch": "global"})
        self.cluster = Cluster(self, place=OtherDataAt("worker-2", folder, other)).add(workers=2, servers=1)
        submitted = self.cluster.submit(job, "--servers", 1, run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.cluster.wait_for_iteration(20)
        self.cluster.add_worker()
        wait_for("the newcomer to be left out", lambda: "cannot take part: its data are not those of worker" in
                 self.cluster.coordinator.log(), 60)
        self.assertRegex(self.cluster.coordinator.log(), r"other training samples \(\d+, as many as there\)")
        iteration = self.cluster.status()["iteration"]
        status = wait_for("training without it", lambda: (s := self.cluster.status())["iteration"] > iteration + 20 and s, 60)
        self.assertEqual(len([node for node in status["workers"] if node["rank"] >= 0]), 2)

    def test_data_that_have_changed_since_a_checkpoint_are_told(self):
        folder, job = self.copy_of_the_digits("data")
        self.cluster = Cluster(self).add(workers=2, servers=1)
        self.assertEqual(self.submit(job).returncode, 0)
        wait_for("a checkpoint", lambda: "is committed" in self.cluster.coordinator.log(), 60)
        manifests = sorted((self.folder / "state").rglob("checkpoints/*/*.json"))
        self.assertTrue(manifests)
        self.assertIn("digest", json.loads(manifests[-1].read_text())["data"]["train"])
        self.cluster.coordinator.signal(15)
        self.cluster.coordinator.wait(60)
        self.change(folder, job, samples=1000)
        self.cluster.restart_coordinator()
        self.assertEqual(len(wait_for("the nodes", lambda: len(s := [*self.cluster.status()["workers"],
                                                                     *self.cluster.status()["servers"]]) == 3 and s)), 3)
        restored = self.cluster.poseidon("checkpoint", "restore")
        self.assertEqual(restored.returncode, 0, restored.stdout + restored.stderr)
        wait_for("training to go on", lambda: self.cluster.status()["state"] == "running", 60)
        log = self.cluster.coordinator.log()
        self.assertEqual(log.count("are not those that checkpoint"), 1, log)
        self.assertRegex(log, r"error .*was trained on: 1000 training samples here, \d+ there; training goes on with what there is")


if __name__ == "__main__":
    unittest.main(verbosity=2)
