"""sync.wire_dtype with real processes: what must be equal is, whoever carried the bytes, and the model is exact."""

import array
import json
import re
import signal
import struct
import unittest

from cluster import ROOT, Cluster, ProcessTest, digits_job, losses, metrics

# Largest relative error of rounding once (docs/run.md).
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
PARAMETER_LAYERS = 4  # of LeNet
ITERATIONS = 20


def small_job(wire_dtype, **changes):
    """LeNet with average pooling at a small learning rate: tests/golden/trajectory/README.md says why."""
    network = json.loads((ROOT / "models" / "lenet.json").read_text())
    for layer in network["layers"]:
        if layer["type"] == "pooling":
            layer["pool"] = "average"
    job = digits_job(**{"model": network, "iterations": ITERATIONS, "test_every_iterations": 0, **changes})
    job["optimizer"]["learning_rate"] = 0.01
    # Factors travel in float32, and whether a layer goes by them may depend on the number of servers.
    job["sync"] = {"scheme": "ps", "wire_dtype": wire_dtype, "chunk_bytes": 65536}
    return job


def read_model(run_dir):
    """(bytes, header, all values)."""
    data = (run_dir / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    values = array.array("f")
    values.frombytes(data[8 + size :])
    return data, header, values


def lost_by_bf16(values):
    """How many of the values bf16 cannot hold."""
    return sum(bits & 0xFFFF != 0 for bits in struct.unpack(f"<{len(values)}I", values.tobytes()))


def lost_by_fp16(values):
    kept = struct.unpack(f"<{len(values)}e", struct.pack(f"<{len(values)}e", *values))
    return sum(a != b for a, b in zip(values, kept))


class SixteenBits(ProcessTest):
    def over_sockets(self, job):
        ours = Cluster(self).add(workers=0, servers=1)
        for _ in range(2):
            ours.add_worker("--no-shared-memory")
        run_dir = self.folder / "sockets"
        result = ours.submit(job, "--workers", 2, "--wait", run_dir=run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for process in self.processes:
            process.signal(signal.SIGTERM)
            self.assertEqual(process.wait(10), 0, process.log())
        self.assertRegex(ours.servers[0][0].log(), r"sent 0 MB of tensors through shared memory")
        self.processes.clear()
        return run_dir

    def check(self, wire_dtype, lost):
        reference = self.train(small_job("fp32"), 2, 1)
        job = small_job(wire_dtype)
        first = self.train(job, 2, 1)
        data, header, values = read_model(first)
        for what, other in (("again", self.train(job, 2, 1)), ("three servers", self.train(job, 2, 3)),
                            ("sockets", self.over_sockets(job))):
            with self.subTest(what):
                self.assertEqual(losses(other), losses(first))
                self.assertEqual(read_model(other)[0], data)
        server_log = (first / "logs" / "server-0.log").read_text()
        self.assertGreater(int(re.search(r"sent (\d+) MB of tensors through shared memory", server_log).group(1)), 0)
        self.check_model(header, values, lost)
        self.check_plan(first, reference, wire_dtype)
        self.check_losses(losses(first), losses(reference), wire_dtype)
        self.check_that_the_last_test_is_of_the_file(first)

    def check_model(self, header, values, lost):
        self.assertEqual({entry["dtype"] for entry in header.values()}, {"F32"})
        self.assertGreater(lost(values), len(values) // 2, "the servers' float32, not what went over the wire")

    def check_plan(self, run_dir, reference, wire_dtype):
        plan, full = (json.loads((folder / "plan.json").read_text()) for folder in (run_dir, reference))
        self.assertEqual((plan["wire_dtype"], full["wire_dtype"]), (wire_dtype, "fp32"))
        self.assertEqual(plan["iteration_bytes"] * 2, full["iteration_bytes"])
        self.assertEqual(plan["chunks"], full["chunks"])

    def check_losses(self, ours, reference, wire_dtype):
        """A parameter layer whose weights are off by at most u relative changes what follows it by at most u
        relative (the layers are linear, pooling and ReLU pass differences on without magnifying them), so the
        logits by D u with D parameter layers; a gradient, a product of these factors, likewise by D u, and by
        another u on the wire. To first order the loss is off by at most (2 D + 1) u of its size at the start."""
        tolerance = (2 * PARAMETER_LAYERS + 1) * UNIT[wire_dtype] * reference[0]
        difference, iteration = max((abs(a - b), i) for i, (a, b) in enumerate(zip(ours, reference)))
        print(f"{wire_dtype}: loss off by {difference:.1e} at worst (iteration {iteration}), bound {tolerance:.1e}")
        self.assertNotEqual(ours, reference, "it did travel in 16 bits")
        self.assertLess(ours[-1], ours[0] - 0.2)
        self.assertLess(difference, tolerance)

    def check_that_the_last_test_is_of_the_file(self, run_dir):
        """A job that starts from the file, and learns nothing, tests the same parameters."""
        job = small_job("fp32", iterations=1, init={"weights": str(run_dir / "model.safetensors")})
        job["optimizer"]["learning_rate"] = 0.0
        again = self.train(job, 2, 1)
        self.assertEqual(metrics(again)[1][-1]["test_loss"], metrics(run_dir)[1][-1]["test_loss"])

    def test_bf16(self):
        self.check("bf16", lost_by_bf16)

    def test_fp16(self):
        self.check("fp16", lost_by_fp16)


    def test_beside_layers_that_go_by_sfb(self):
        job = small_job("bf16")
        job["sync"]["scheme"] = {"ip1": "sfb", "ip2": "ps"}
        first, again = self.train(job, 2, 1), self.train(job, 2, 1)
        self.assertEqual(read_model(again)[0], read_model(first)[0])
        _, header, values = read_model(first)
        self.check_model(header, values, lost_by_bf16)
        self.check_losses(losses(first), losses(self.train(small_job("fp32"), 2, 1)), "bf16")
        self.check_that_the_last_test_is_of_the_file(first)


class Overflow(ProcessTest):
    def test_parameters_beyond_fp16_stop_the_run_with_layer_and_remedy(self):
        job = small_job("fp16")
        job["optimizer"]["learning_rate"] = 1e9
        result, run_dir = self.local(job, 2, 1, timeout_s=60)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(result.stderr, "the parameters after iteration 0 of layer (conv1|conv2|ip1|ip2) ")
        for word in ("fp16", "65504", 'sync.wire_dtype to "bf16"'):
            self.assertIn(word, result.stderr)
        self.assertFalse((run_dir / "model.safetensors").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
