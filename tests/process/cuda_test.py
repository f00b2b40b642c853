"""Workers that compute on GPUs, which are two emulated ones (tests/twins/emulated_gpu): the losses of CPU workers by
both schemes, the same bytes again, also after one of them was killed, on a GPU each, and in machines of two; and a
trace of them."""

import collections
import json
import math
import signal
import unittest

from cluster import NORMALISED, PLUGIN, Cluster, ProcessTest, digits_job, losses, wait_for, worker_with_gpu
from traces import Trace

TOLERANCE = 1e-4  # relative; slow jobs (sfb_test.py says why)


def job(model, iterations, **changes):
    result = digits_job(model=model, batch_size=4, iterations=iterations, test_every_iterations=0,
                        optimizer={"type": "sgd", "learning_rate": 0.0002, "momentum": 0.9, "weight_decay": 0.0005},
                        **changes)
    result["data"]["transform"] = {"resize": [28, 28], "scale": 0.00392156862745098}
    return result


@unittest.skipUnless(PLUGIN.exists(), "this build has no emulated GPU: there were no headers of CUDA and cuDNN")
class OnTheEmulatedGpu(ProcessTest):
    def setUp(self):
        super().setUp()
        self.worker = worker_with_gpu(self.folder)

    def add_worker(self, cluster, device, *arguments):
        worker = cluster.add_worker("--device", device, *arguments, program=self.worker)
        wait_for("a worker to join", lambda: "joined" in worker.log() or not worker.running())
        return worker

    def begin(self, job_json, devices, name, addresses=("127.0.0.1", "127.0.0.1")):
        """A worker for each address, which is a machine's. `devices`: of each, or one for all."""
        cluster = Cluster(self)
        cluster.add(workers=0, servers=1)
        for number, address in enumerate(addresses):
            device = devices if isinstance(devices, str) else devices[number]
            self.add_worker(cluster, device, "--listen", f"{address}:0")
        run_dir = self.folder / name
        submitted = cluster.submit(job_json, "--workers", len(addresses), "--servers", 1, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        return cluster, run_dir

    def finish(self, cluster, run_dir):
        status = cluster.wait_for_state("done", "failed", timeout_s=120)
        self.assertEqual(status["state"], "done", status.get("message"))
        for process in self.processes:
            process.destroy()
        return losses(run_dir), (run_dir / "model.safetensors").read_bytes(), status

    def train(self, job_json, devices, name, **how):
        return self.finish(*self.begin(job_json, devices, name, **how))

    def test_as_on_cpus_by_both_schemes(self):
        for scheme in ("ps", "sfb"):
            with self.subTest(scheme):
                sync = {"scheme": scheme, "cost": "bytes", "chunk_bytes": 65536}
                lenet = job("lenet", 5, sync=sync)
                wanted, _, _ = self.train(lenet, "cpu", f"{scheme}-cpu")
                got, model, status = self.train(lenet, "cuda:0", scheme)
                for worker in status["workers"]:
                    self.assertEqual(worker["device"], "cuda:0 (emulated GPU)")
                plan = json.loads((self.folder / scheme / "plan.json").read_text())
                self.assertIn(scheme, [layer["scheme"] for layer in plan["layers"]])
                for i, (ours, cpus) in enumerate(zip(got, wanted, strict=True)):
                    self.assertLess(abs(ours - cpus), TOLERANCE * cpus, f"iteration {i}: {got}, on CPUs {wanted}")
                _, again, _ = self.train(lenet, "cuda:0", f"{scheme}-again")
                self.assertEqual(again, model)

    def test_a_gpu_for_each_worker(self):
        lenet = job("lenet", 5, sync={"scheme": {"ip1": "sfb"}, "cost": "bytes", "chunk_bytes": 65536})
        _, wanted, _ = self.train(lenet, "cuda:0", "together")
        _, got, status = self.train(lenet, ("cuda:0", "cuda:1"), "apart")
        self.assertEqual([worker["device"] for worker in status["workers"]],
                         ["cuda:0 (emulated GPU)", "cuda:1 (emulated GPU)"])
        self.assertEqual(got, wanted)

    def test_a_gpu_that_is_not_there_is_refused_by_name(self):
        worker = self.add_worker(Cluster(self), "cuda:2")
        self.assertEqual(worker.wait(), 2, worker.log())
        self.assertIn("--device cuda:2: this machine has CUDA devices 0 to 1", worker.log())

    def test_the_gpus_of_a_machine_are_summed_before_they_go(self):
        sync = {"scheme": "ps", "cost": "bytes", "chunk_bytes": 65536}
        devices, machines = ("cuda:0", "cuda:1") * 2, ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2")
        lenet = job("lenet", 5, sync=sync)
        got, model, _ = self.train(lenet, devices, "groups", addresses=machines)
        self.assertEqual(json.loads((self.folder / "groups/plan.json").read_text())["local_groups"], [[0, 1], [2, 3]])
        _, again, _ = self.train(lenet, devices, "again", addresses=machines)
        self.assertEqual(again, model)
        on_cpus, _, _ = self.train(lenet, "cpu", "cpu", addresses=machines)
        lenet["sync"]["local_aggregation"] = "off"
        alone, plain, _ = self.train(lenet, devices, "alone", addresses=machines)
        self.assertEqual(json.loads((self.folder / "alone/plan.json").read_text())["local_groups"], [])
        self.assertNotEqual(model, plain, "other last bits: it was summed in another order")
        for ours, cpus, without in zip(got, on_cpus, alone, strict=True):
            self.assertLess(abs(ours - cpus), TOLERANCE * cpus, f"{got}, on CPUs {on_cpus}")
            self.assertLess(abs(ours - without), TOLERANCE * without, f"{got}, without groups {alone}")

    def test_every_precision(self):
        wanted, plain_model, _ = self.train(job(NORMALISED, 4), "cuda:0", "fp32")
        for precision, tolerance in (("tf32", 0.002), ("bf16", 0.02), ("fp16", 0.002)):
            with self.subTest(precision):
                got, model, _ = self.train(job(NORMALISED, 4, precision=precision), "cuda:0", precision)
                self.assertNotEqual(model, plain_model, "nothing was rounded")
                for ours, plain in zip(got, wanted, strict=True):
                    self.assertTrue(math.isclose(ours, plain, rel_tol=tolerance), f"{got}, in fp32 {wanted}")

    def test_a_trace_shows_every_copy_beside_what_is_computed(self):
        parameters = {"conv1": 520, "conv2": 25050, "ip1": 400500, "ip2": 5010}
        factors = 4 * (500 + 800)  # ip1's, of a batch of 4
        lenet = job("lenet", 1_000_000, sync={"scheme": {"ip1": "sfb", "ip2": "ps"}, "cost": "bytes", "chunk_bytes": 65536})
        cluster, _ = self.begin(lenet, "cuda:0", "traced")
        cluster.wait_for_iteration(3)
        path, iterations = self.folder / "trace.json", 20
        taken = cluster.poseidon("trace", "--to", path, "--iterations", iterations)
        self.assertEqual(taken.returncode, 0, taken.stdout + taken.stderr)
        trace = Trace(path)
        self.assertEqual(trace.about["notes"], [])
        self.assertEqual(trace.overlaps(), [])
        first = trace.about["first_iteration"]
        for rank in range(2):
            def spans(stage, name=None):
                return [e for e in trace.of("worker", stage) if trace.rank(e) == rank
                        and name in (None, e["args"].get("layer"))]

            rows = {trace.rows[e["pid"], e["tid"]]: {o["cat"] for o in trace.spans if (o["pid"], o["tid"]) == (e["pid"], e["tid"])}
                    for e in trace.spans if trace.processes[e["pid"]].startswith(f"worker {rank} ")}
            self.assertEqual(rows["compute"], {"forward", "backward"})
            self.assertEqual(rows["to the GPU"], {"upload"})
            self.assertEqual(rows["factors to the GPU"], {"upload_factors"})
            self.assertEqual(rows["from the GPU"], {"download"})
            for name, count in parameters.items():
                for stage, sizes in (("upload", [] if name == "ip1" else [count * 4]),
                                     ("upload_factors", [factors * 4 * 2] if name == "ip1" else []),
                                     ("download", [4 * 500 * 4, 4 * 800 * 4] if name == "ip1" else [count * 4])):
                    found = collections.defaultdict(list)
                    for event in spans(stage, name):
                        found[event["args"]["iteration"]].append(event["args"]["bytes"])
                    self.assertEqual(found, {i: sizes for i in range(first, first + iterations)} if sizes else {}, (stage, name))
            # The batch: labels and images, which are somewhere in the iteration or the one before.
            batch = collections.Counter(e["args"]["bytes"] for e in spans("upload") if "layer" not in e["args"])
            self.assertEqual(set(batch), {4 * 4, 4 * 28 * 28 * 4})
            self.assertEqual(batch[4 * 4], iterations)
            ends = collections.defaultdict(float)
            for event in spans("download"):
                key = event["args"]["iteration"], event["args"]["layer"]
                ends[key] = max(ends[key], event["ts"] + event["dur"])
            for event in spans("backward"):
                self.assertLess(event["ts"], ends[event["args"]["iteration"], event["args"]["layer"]])
            queued = [e for e in spans("queue") if e["args"]["iteration"] < first + iterations]
            self.assertTrue(queued)
            for event in queued:
                self.assertGreaterEqual(event["ts"], ends[event["args"]["iteration"], event["args"]["layer"]] - 0.01, event)
            # A gradient comes down, and the layers below are computed meanwhile.
            self.assertTrue(any(max(a["ts"], b["ts"]) < min(a["ts"] + a["dur"], b["ts"] + b["dur"])
                                for a in spans("download") for b in spans("backward")))

    def test_a_large_layer_goes_up_in_parts(self):
        wide = {"name": "wide", "input": [1, 28, 28], "layers": [
            {"name": "wide", "type": "fully_connected", "outputs": 10240},
            {"name": "relu", "type": "relu"},
            {"name": "scores", "type": "fully_connected", "outputs": 10},
            {"name": "loss", "type": "softmax_cross_entropy"}]}
        sync = {"scheme": "ps", "cost": "bytes", "chunk_bytes": 1048576}
        wanted, _, _ = self.train(job(wide, 4, sync=sync), "cpu", "wide-cpu")
        got, _, _ = self.train(job(wide, 4, sync=sync), "cuda:0", "wide")
        for ours, cpus in zip(got, wanted, strict=True):
            self.assertLess(abs(ours - cpus), TOLERANCE * cpus, f"{got}, on CPUs {wanted}")
        cluster, _ = self.begin(job(wide, 1_000_000, sync=sync), "cuda:0", "wide-traced")
        cluster.wait_for_iteration(2)
        path, iterations = self.folder / "wide.json", 5
        taken = cluster.poseidon("trace", "--to", path, "--iterations", iterations)
        self.assertEqual(taken.returncode, 0, taken.stdout + taken.stderr)
        trace = Trace(path)
        self.assertEqual(trace.overlaps(), [])
        first = trace.about["first_iteration"]
        parts = collections.defaultdict(list)
        for event in trace.of("worker", "upload"):
            if event["args"].get("layer") == "wide":
                parts[trace.rank(event), event["args"]["iteration"]].append(event["args"]["bytes"])
        self.assertEqual(set(parts), {(r, i) for r in range(2) for i in range(first, first + iterations)})
        for where, sizes in parts.items():
            self.assertEqual(sum(sizes), 4 * 10240 * (28 * 28 + 1), where)
            self.assertTrue(all(size >= 8 << 20 for size in sizes[:-1]), f"{where}: {sizes}")
        # Chunks come one after the other: now and then there is time for a part.
        self.assertTrue(any(len(sizes) > 1 for sizes in parts.values()), parts)

    def test_the_same_bytes_after_a_worker_was_killed(self):
        long = job(NORMALISED, 60, checkpoint={"every_iterations": 10, "keep": 2})
        _, wanted, _ = self.train(long, "cuda:0", "undisturbed")
        cluster, run_dir = self.begin(long, "cuda:0", "disturbed")
        cluster.wait_for_iteration(5)
        cluster.workers[1].signal(signal.SIGKILL)
        self.add_worker(cluster, "cuda:0")
        _, got, status = self.finish(cluster, run_dir)
        self.assertGreater(status["epoch"], 1)
        self.assertEqual(got, wanted)


if __name__ == "__main__":
    unittest.main()
