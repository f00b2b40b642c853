"""Every network that is shipped trains: three iterations in a cluster of two workers and one server."""

import array
import json
import math
import random
import struct
import unittest

from cluster import ProcessTest, poseidon

# VGG19-22K, with batch 1: two workers and a server take 7.4 GiB in all.
NEEDED_GIB = {"vgg19_22k": 10}
# Two samples per worker where one would leave a batch normalisation one value per channel.
BATCH_SIZE = {"inception_v3_aux": 2}
LOSS_WEIGHTS = {"googlenet_aux": 1.6, "inception_v3_aux": 1.4}


LARGE = 20_000_000  # parameters


def read_header(file):
    (size,) = struct.unpack("<Q", file.read(8))
    return json.loads(file.read(size))


def read_tensors(path):
    """Name -> (shape, values) of a safetensors file of float32."""
    with open(path, "rb") as file:
        header = read_header(file)
        data = file.read()
    return {name: (entry["shape"], array.array("f", data[slice(*entry["data_offsets"])]))
            for name, entry in header.items()}


def raw_tensors_one_by_one(path):
    """(name, shape, bytes) of a safetensors file, which may be large."""
    with open(path, "rb") as file:
        header = read_header(file)
        begin = file.tell()
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            file.seek(begin + first)
            yield name, entry["shape"], file.read(last - first)


def raw_tensors(path):
    return {name: values for name, _, values in raw_tensors_one_by_one(path)}


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, (shape, values) in tensors.items():
        size = len(values) * values.itemsize
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for _, v in tensors.values()))


def is_statistic(tensor):
    return tensor.rsplit(".", 1)[-1].startswith("running_")


def available_gib():
    with open("/proc/meminfo", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("MemAvailable:")]
    return int(line.split()[1]) / 2**20


class Networks(ProcessTest):
    def assert_trained(self, run_dir, network, job):
        """Each trainable tensor is another one than it began as. For a large network its initial values are not computed:
        what begins with one value for all (biases, factors of normalisations) must not have that any more."""
        initial = None
        if network["parameters"] < LARGE:
            still = {**job, "iterations": 1, "optimizer": {"type": "sgd", "learning_rate": 0}}
            initial = raw_tensors(self.train(still, 2, 1) / "model.safetensors")
        looked_at = 0
        for name, shape, values in raw_tensors_one_by_one(run_dir / "model.safetensors"):
            if is_statistic(name) or (initial is None and len(shape) > 1):
                continue
            looked_at += 1
            if initial is not None:
                self.assertNotEqual(values, initial[name], f"{name} was not trained")
            else:
                self.assertNotEqual(values, values[:4] * (len(values) // 4), f"{name} was not trained")
        self.assertGreater(looked_at, 7)

    def cifar_file(self):
        """Records of CIFAR-10's form: label, then 3 x 32 x 32 bytes."""
        path = self.folder / "data.bin"
        if not path.exists():
            source = random.Random(1)
            path.write_bytes(b"".join(bytes([i % 10]) + source.randbytes(3072) for i in range(16)))
        return str(path)

    def job(self, model, input_shape, batch_size=1, **changes):
        return {"name": "network", "model": model,
                "data": {"train": {"format": "cifar10", "files": [self.cifar_file()]},
                         "transform": {"resize": input_shape[1:], "mean": [128], "scale": 0.01}},
                "batch_size": batch_size, "iterations": 3,
                "optimizer": {"type": "sgd", "learning_rate": 0.0001, "momentum": 0.9}} | changes

    def test_all_train(self):
        listed = json.loads(poseidon("models", "--json").stdout)
        tested = [n for n in listed if n["input_shape"][0] == 3]
        self.assertGreaterEqual(len(tested), 11)
        for network in tested:
            name = network["name"]
            with self.subTest(name):
                needed_gib = NEEDED_GIB.get(name, 0)
                if needed_gib > 0 and available_gib() < needed_gib:
                    self.skipTest(f"{name} wants {needed_gib} GiB of free memory, there are {available_gib():.1f}")
                job = self.job(name, network["input_shape"], BATCH_SIZE.get(name, 1))
                run_dir = self.train(job, 2, 1)
                lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual([line["iteration"] for line in lines], [0, 1, 2])
                # Untrained, it knows nothing: about ln(classes) per unit of loss weight, and never twice that.
                knows_nothing = math.log(network["classes"]) * LOSS_WEIGHTS.get(name, 1)
                self.assertLess(abs(lines[0]["loss"] - knows_nothing), 0.75 * knows_nothing)
                self.assertTrue(all(math.isfinite(line["loss"]) for line in lines), lines)
                with open(run_dir / "model.safetensors", "rb") as file:
                    tensors = read_header(file)
                parameters = sum(math.prod(entry["shape"]) for tensor, entry in tensors.items()
                                 if not is_statistic(tensor))
                self.assertEqual(parameters, network["parameters"])
                self.assert_trained(run_dir, network, job)

    def test_a_trained_model_is_where_the_next_run_begins(self):
        """With its running statistics: one iteration later they are 0.9 of what they were and 0.1 of the batch's, so
        two runs that differ in nothing but the statistics they began with differ by 0.9 of these."""
        small = {"network": "resnet18", "with": {"classes": 10}, "input": [3, 32, 32]}
        job = self.job(small, [3, 32, 32], batch_size=4, iterations=5)
        trained = read_tensors(self.train(job, 1, 1) / "model.safetensors")
        ends = {}
        for name, kept in {"all": trained,
                           "parameters": {n: t for n, t in trained.items() if not is_statistic(n)}}.items():
            weights = self.folder / f"{name}.safetensors"
            write_tensors(weights, kept)
            next_job = dict(job, iterations=1, init={"weights": str(weights)})
            result, run_dir = self.local(next_job, 1, 1)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"{len(kept)} of the network's {len(trained)} tensors loaded", result.stdout)
            ends[name] = read_tensors(run_dir / "model.safetensors")
        statistics = [name for name in trained if is_statistic(name)]
        self.assertEqual(len(statistics), 40)
        for name in statistics:
            initial = 1.0 if name.endswith("running_var") else 0.0
            for old, one, other in zip(trained[name][1], ends["all"][name][1], ends["parameters"][name][1]):
                # Four roundings of float32, of values of this size.
                tolerance = 4 * 2**-24 * (abs(one) + abs(other) + 1)
                self.assertLessEqual(abs(one - other - 0.9 * (old - initial)), tolerance, name)

    def test_weights_that_do_not_fit_are_refused_by_name(self):
        small = {"network": "resnet18", "with": {"classes": 10}, "input": [3, 32, 32]}
        job = self.job(small, [3, 32, 32], iterations=1, batch_size=2)
        first = self.train(job, 1, 1)
        other = dict(job, model={"network": "resnet18", "input": [3, 32, 32]},
                     init={"weights": str(first / "model.safetensors")})
        result, _ = self.local(other, 1, 1)
        self.assertEqual(result.returncode, 2)
        self.assertIn("tensor fc.weight has shape 10x512, the network wants 1000x512", result.stderr)
        job = dict(job, init={"weights": str(first / "model.safetensors"), "rename": {"fcc": "fc"}})
        result, _ = self.local(job, 1, 1)
        self.assertEqual(result.returncode, 2)
        self.assertIn('rename: the file has no tensors of a layer "fcc" (did you mean "fc"?)', result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
