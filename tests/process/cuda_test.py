"""Workers that compute on a GPU, which is an emulated one (worker/engine/cuda/emulated): the losses of CPU workers by
both schemes, the same bytes again, also after one of them was killed."""

import json
import math
import signal
import unittest

from cluster import NORMALISED, PLUGIN, Cluster, ProcessTest, digits_job, losses, wait_for, worker_with_gpu

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

    def add_worker(self, cluster, device):
        worker = cluster.add_worker("--device", device, program=self.worker)
        wait_for("a worker to join", lambda: "joined" in worker.log() or not worker.running())
        return worker

    def begin(self, job_json, device, name, workers=2):
        cluster = Cluster(self)
        cluster.add(workers=0, servers=1)
        for _ in range(workers):
            self.add_worker(cluster, device)
        run_dir = self.folder / name
        submitted = cluster.submit(job_json, "--workers", workers, "--servers", 1, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        return cluster, run_dir

    def finish(self, cluster, run_dir):
        status = cluster.wait_for_state("done", "failed", timeout_s=120)
        self.assertEqual(status["state"], "done", status.get("message"))
        for process in self.processes:
            process.destroy()
        return losses(run_dir), (run_dir / "model.safetensors").read_bytes(), status

    def train(self, job_json, device, name):
        return self.finish(*self.begin(job_json, device, name))

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

    def test_every_precision(self):
        wanted, plain_model, _ = self.train(job(NORMALISED, 4), "cuda:0", "fp32")
        for precision, tolerance in (("tf32", 0.002), ("bf16", 0.02), ("fp16", 0.002)):
            with self.subTest(precision):
                got, model, _ = self.train(job(NORMALISED, 4, precision=precision), "cuda:0", precision)
                self.assertNotEqual(model, plain_model, "nothing was rounded")
                for ours, plain in zip(got, wanted, strict=True):
                    self.assertTrue(math.isclose(ours, plain, rel_tol=tolerance), f"{got}, in fp32 {wanted}")

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
