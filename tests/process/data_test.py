"""Image folders and packed records with real processes: the same samples, whoever reads them."""

import base64
import json
import random
import shutil
import struct
import unittest
import zlib

from cluster import ROOT, Cluster, ProcessTest, losses, poseidon, wait_for

CLASSES = ("cats", "dogs", "eels")
PER_CLASS = 14


def png(width, height, pixel):
    """A PNG of the standard library's making."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in pixel(x, y)) for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_images(folder):
    """Three kinds of stripes in images of many sizes, and JPEGs of the golden set among them."""
    source = random.Random(1)
    golden = json.loads((ROOT / "tests" / "golden" / "images" / "images.json").read_text())["decode"]
    jpegs = [base64.b64decode(image["file"]) for image in golden if image["name"].startswith("jpeg")]
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(PER_CLASS):
            width, height = source.randint(20, 50), source.randint(20, 50)
            phase, noise = source.randint(0, 5), source.randint(1, 40)
            stripes = (lambda x, y: x, lambda x, y: y, lambda x, y: x + y)[label]
            def pixel(x, y):
                value = 200 if (stripes(x, y) + phase) // 3 % 2 else 50
                return tuple(value + (x * 7 + y * 13 + c * 5) % noise for c in range(3))
            (folder / name / f"{i:03d}.png").write_bytes(png(width, height, pixel))
        (folder / name / "photo.jpg").write_bytes(jpegs[label])


def job(train, test=None, batch_size=6, iterations=20):
    network = {"name": "stripes", "input": [3, 16, 16],
               "layers": [{"name": "conv", "type": "convolution", "outputs": 8, "kernel": 5, "pad": 2},
                          {"name": "relu", "type": "relu"},
                          {"name": "pool", "type": "pooling", "pool": "average", "kernel": 4},
                          {"name": "fc", "type": "fully_connected", "outputs": len(CLASSES)},
                          {"name": "loss", "type": "softmax_cross_entropy"}]}
    data = {"train": train, "seed": 3,
            "transform": {"random_resized_crop": {"size": [16, 16], "scale": [0.3, 1.0]}, "resize_shorter": 18,
                          "mirror": True, "color_jitter": {"brightness": 0.2, "contrast": 0.2, "hue": 0.05},
                          "mean": [120, 120, 120], "std": 60}}
    if test:
        data["test"] = test
    return {"name": "stripes", "model": network, "data": data, "batch_size": batch_size, "iterations": iterations,
            "optimizer": {"learning_rate": 0.05, "momentum": 0.9}, "sync": {"scheme": "ps"}}


def folder_of(path):
    return {"format": "image_folder", "path": str(path)}


def records_of(path):
    return {"format": "records", "path": str(path)}


class Images(ProcessTest):
    def setUp(self):
        super().setUp()
        self.images = self.folder / "images"
        make_images(self.images)

    def pack(self, name, *options, status=0):
        packed = self.folder / name
        result = poseidon("data", "pack", self.images, "--to", packed, *options)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        return packed, result

    def model(self, run_dir):
        return (run_dir / "model.safetensors").read_bytes()

    def test_a_folder_and_its_records_train_the_same_model(self):
        packed, result = self.pack("packed", "--shards", "3")
        self.assertIn("45 samples", result.stdout)
        self.assertIn("3 shards; 0 left out", result.stdout)
        plain = self.train(job(folder_of(self.images), folder_of(self.images)), 2, 1)
        records = self.train(job(records_of(packed), records_of(packed)), 2, 1)
        self.assertEqual(self.model(plain), self.model(records))
        self.assertEqual(losses(plain), losses(records))
        self.assertLess(sum(losses(plain)[-5:]), sum(losses(plain)[:5]))
        again, _ = self.pack("again", "--shard-bytes", "10kB")
        self.assertEqual(losses(self.train(job(records_of(again)), 2, 1)), losses(plain))

    def test_the_number_of_workers_does_not_change_the_samples(self):
        one = losses(self.train(job(folder_of(self.images), batch_size=12, iterations=4), 1, 1))
        two = losses(self.train(job(folder_of(self.images), batch_size=6, iterations=4), 2, 1))
        # The first loss is a mean of the same numbers; later ones differ by how gradients round.
        for a, b in zip(one, two):
            self.assertAlmostEqual(a, b, delta=1e-4 * abs(a))

    def test_an_unreadable_image_is_left_out_named_and_counted(self):
        clean = self.train(job(folder_of(self.images), iterations=10), 1, 1)
        target = self.images / "dogs" / "003.png"
        target.write_bytes(target.read_bytes()[:100])
        spoiled = job(folder_of(self.images), iterations=10)
        spoiled["data"]["max_corrupt_share"] = 0.03
        first, second = self.train(spoiled, 1, 1), self.train(spoiled, 1, 1)
        self.assertEqual(self.model(first), self.model(second))
        self.assertNotEqual(self.model(first), self.model(clean))
        log = (first / "logs" / "worker-0.log").read_text()
        self.assertEqual(log.count("left out: "), 1, log)
        self.assertIn(f"left out: {target}: not a good PNG: the file is truncated", log)

        result = poseidon("data", "check", self.images)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"cannot be read: {target}: not a good PNG", result.stdout)
        self.assertIn("1 of 45 samples cannot be read", result.stderr)
        _, result = self.pack("packed")
        self.assertIn("44 samples", result.stdout)
        self.assertIn("1 left out", result.stdout)
        _, result = self.pack("packed", status=2)
        self.assertIn("already exists", result.stderr)

        spoiled["data"]["max_corrupt_share"] = 0
        result, _ = self.local(spoiled, 1, 1)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("more than 0 of 45 samples", result.stdout + result.stderr)
        self.assertIn("003.png", result.stdout + result.stderr)

    def test_a_worker_whose_disk_fails_ends_and_the_job_goes_on(self):
        description = job(folder_of(self.images), iterations=1500)
        undisturbed = self.model(self.train(description, 2, 1))
        cluster = Cluster(self).add(workers=2, servers=1)
        run_dir = self.folder / "run"
        submitted = cluster.submit(description, "--workers", 2, "--servers", 1, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        cluster.wait_for_iteration(50)
        # By renaming: an image that is missing or half written for a moment is another thing, a sample to be left out.
        image = self.images / "dogs" / "005.png"
        kept, broken = self.folder / "kept.png", self.folder / "broken.png"
        shutil.copy(image, kept)
        broken.symlink_to("/proc/self/mem")  # whose first byte cannot be read: an I/O error
        broken.replace(image)
        dead = wait_for("a worker to end", lambda: next((w for w in cluster.workers if not w.running()), None))
        kept.replace(image)
        self.assertEqual(dead.wait(), 1, dead.log())
        self.assertRegex(dead.log(), "samples cannot be read on this machine any more.*dogs/005.png.*Input/output error")
        self.assertRegex(cluster.coordinator.log(), "is gone: it left .*samples cannot be read on this machine any more")

        def is_over():
            for index, worker in enumerate(cluster.workers):  # the other one may have met it, too
                if not worker.running():
                    cluster.restart_worker(index)
            return cluster.status() if cluster.status()["state"] in ("done", "failed") else None

        status = wait_for("the job to end", is_over, 90)
        self.assertEqual(status["state"], "done", status["message"])
        self.assertEqual(self.model(run_dir), undisturbed)

    def test_wrong_calls_and_wrong_jobs_are_told_apart(self):
        for arguments, words in ((("data", "check", "/nowhere"), "no such file or folder"),
                                 (("data", "pack", self.images), "--to"),
                                 (("data", "pack", self.images, "--to", "x", "--format", "folder"), "no such format"),
                                 (("data",), "subcommand")):
            result = poseidon(*arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn(words, result.stdout + result.stderr)
        result, _ = self.local(job(folder_of("/nowhere")), 1, 1)
        self.assertEqual(result.returncode, 2)
        self.assertIn("data.train.path: no such folder: /nowhere", result.stderr)
        other = self.folder / "other"
        (other / "cats").mkdir(parents=True)
        (other / "cats" / "x.png").write_bytes(png(20, 20, lambda x, y: (x, y, 0)))
        result, _ = self.local(job(folder_of(self.images), folder_of(other)), 1, 1)
        self.assertEqual(result.returncode, 2)
        self.assertIn('label 1 is "dogs" in data.train', result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
