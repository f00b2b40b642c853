"""Programs of others in a cluster of real processes: what libposeidon_client.so trains, and what it does when nodes die."""

import json
import math
import signal
import struct
import sys
import time
import unittest

from cluster import BIN, ROOT, Cluster, ProcessTest, metrics, wait_for

import client_program

LIBRARY = BIN / "libposeidon_client.so"
INPUTS, RATE = 5, 0.05


def linear_job(steps=20, **changes):
    job = {"name": "linear", "iterations": steps, "batch_size": client_program.SAMPLES,
           "model": {"name": "client_program.py",
                     "declared": [{"name": "fc", "type": "linear",
                                   "tensors": [{"name": "weight", "shape": [1, INPUTS]}]},
                                  {"name": "bias", "type": "plain", "tensors": [{"shape": [1]}]}],
                     "state": [{"name": "seen", "shape": [1]}]},
           "optimizer": {"learning_rate": RATE}}
    job.update(changes)
    return job


def expected(steps, workers, rates=None):
    """(weight, bias) after `steps` steps of gradient descent as client_program.py does it, in double precision."""
    weight, bias = [0.25 * (i + 1) for i in range(INPUTS)], 0.0
    for step in range(steps):
        sums, bias_sum, count = [0.0] * INPUTS, 0.0, workers * client_program.SAMPLES
        for rank in range(workers):
            for x, y in client_program.samples(step, rank, INPUTS):
                error = sum(w * v for w, v in zip(weight, x)) + bias - y
                sums = [s + 2 * error * v / count for s, v in zip(sums, x)]
                bias_sum += 2 * error / count
        rate, scale = (client_program.rate_at(step, RATE) if rates else RATE), 1.0
        if client_program.clips_at(step, rates):
            norm = math.hypot(bias_sum, *sums)
            scale = min(1.0, client_program.CLIP / (norm + 1e-6))
        weight = [w - rate * scale * s for w, s in zip(weight, sums)]
        bias -= (2 if rates else 1) * rate * scale * bias_sum
    return weight, bias


class Programs(ProcessTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(LIBRARY.exists(), LIBRARY)
        self.programs = []

    def program(self, cluster, job, *arguments, **options):
        """One worker of the job; it writes to program-N.log."""
        options = {"coordinator": cluster.address, "workers": 2, "servers": len(cluster.servers), "log": "info",
                   "server_timeout_s": 3, "join_timeout_s": 60, "wait_timeout_s": 90, **options}
        process = self.start(f"program-{len(self.programs)}", sys.executable, "-B", ROOT / "tests/process/client_program.py",
                             LIBRARY, self.write_job(job), json.dumps(options), "--steps", job.get("iterations", 20), *arguments)
        self.programs.append(process)
        return process

    def said(self, process):
        return [json.loads(line) for line in process.log().splitlines() if line.startswith("{")]

    def wait_for_step(self, process, step):
        wait_for(f"step {step} of {process.name}", lambda: any(line.get("step", -1) >= step for line in self.said(process)))

    def finish(self, *processes):
        """What each has said last; all have ended well with the same parameters."""
        for process in processes:
            self.assertEqual(process.wait(120), 0, process.log())
        ends = [self.said(process)[-1] for process in processes]
        for end in ends:
            self.assertIn("finished", end)
            self.assertEqual(end["parameters"], ends[0]["parameters"])
        return ends

    def train(self, cluster, job):
        """The parameters of two programs' undisturbed run, and its epoch."""
        end = self.finish(*[self.program(cluster, job) for _ in range(2)])[0]
        cluster.wait_for_state("done")
        return end["parameters"], cluster.status()["epoch"]

    def values(self, parameters):
        return struct.unpack(f"<{INPUTS + 1}f", bytes.fromhex(parameters))


class Training(Programs):
    def test_two_programs_train_what_arithmetic_says_twice_the_same(self):
        cluster = Cluster(self).add(0, 2)
        run_dir = self.folder / "run"
        programs = [self.program(cluster, linear_job(20), "--wait", wait, run_dir=str(run_dir)) for wait in ("each", "all")]
        end = self.finish(*programs)[0]
        weight, bias = expected(20, 2)
        for value, right in zip(self.values(end["parameters"]), [*weight, bias]):
            self.assertAlmostEqual(value, right, delta=1e-5 * max(1, abs(right)))
        joined = [self.said(program)[0] for program in programs]
        self.assertEqual(sorted(line["rank"] for line in joined), [0, 1])
        for line in joined:
            self.assertEqual((line["joined"], line["workers"]), (0, 2))
        self.assertEqual(cluster.status()["state"], "done")
        self.assertEqual(len(metrics(run_dir)[0]), 20)
        model = (run_dir / "model.safetensors").read_bytes()
        header = json.loads(model[8:8 + struct.unpack("<Q", model[:8])[0]])
        self.assertEqual(set(header) - {"__metadata__"}, {"fc.weight", "bias", "seen"})
        self.assertEqual(self.train(cluster, linear_job(20))[0], end["parameters"])

    def test_programs_step_what_servers_only_sum(self):
        cluster = Cluster(self).add(0, 2)
        run_dir = self.folder / "run"
        job = linear_job(12, optimizer={"type": "sum"})
        programs = [self.program(cluster, job, "--pace", "0.05", run_dir=str(run_dir)) for _ in range(2)]
        self.wait_for_step(programs[0], 3)
        refused = cluster.poseidon("checkpoint", "save")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("a checkpoint would not have these", refused.stderr)
        end = self.finish(*programs)[0]
        weight, bias = expected(12, 2)
        for value, right in zip(self.values(end["parameters"]), [*weight, bias]):
            self.assertAlmostEqual(value, right, delta=1e-5 * max(1, abs(right)))
        model = (run_dir / "model.safetensors").read_bytes()
        header = json.loads(model[8:8 + struct.unpack("<Q", model[:8])[0]])
        self.assertEqual(header["fc.weight"]["shape"], [1, INPUTS])
        begin = len(model) - max(tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
        first, last = (begin + offset for offset in header["fc.weight"]["data_offsets"])
        self.assertEqual(model[first:last].hex(), end["parameters"][:8 * INPUTS])

    def test_programs_say_the_rates_and_clip(self):
        cluster = Cluster(self).add(0, 2)
        for rates in ("ahead", "clip", "mixed"):
            run_dir = self.folder / rates
            end = self.finish(*[self.program(cluster, rates_job(12), "--rates", rates, run_dir=str(run_dir)) for _ in range(2)])[0]
            weight, bias = expected(12, 2, rates)
            for value, right in zip(self.values(end["parameters"]), [*weight, bias]):
                self.assertAlmostEqual(value, right, delta=1e-5 * max(1, abs(right)), msg=rates)
            self.assertEqual([line["learning_rate"] for line in metrics(run_dir)[0]], [None] * 12)
        self.assertNotEqual(expected(12, 2, "ahead"), expected(12, 2, "clip"), "the test clips")

    def test_rates_that_a_job_lacks_or_has_of_its_own_are_refused(self):
        cluster = Cluster(self).add(0, 1)
        lacks = self.program(cluster, rates_job(3), workers=1)
        self.assertEqual(lacks.wait(60), 3, lacks.log())
        self.assertIn("iteration 0 has no rates: call poseidon_rates first", lacks.log())
        self.assertEqual(cluster.poseidon("stop").returncode, 0)
        cluster.wait_for_state("stopped")
        own = self.program(cluster, linear_job(3), "--rates", "ahead", workers=1)
        self.assertEqual(own.wait(60), 3, own.log())
        self.assertIn('write \\"rates\\": \\"program\\" into its', own.log())

    def test_worker_0_s_parameters_and_state_are_the_first_ones(self):
        cluster = Cluster(self).add(0, 1)
        programs = [self.program(cluster, linear_job(3)) for _ in range(2)]
        ends = self.finish(*programs)
        for end in ends:
            self.assertEqual(end["seen"], 3 * client_program.SAMPLES)

    def test_sixteen_bit_wires_end_with_exact_parameters(self):
        self.train(Cluster(self).add(0, 2), linear_job(10, sync={"wire_dtype": "bf16"}))


def rates_job(steps, **changes):
    return linear_job(steps, optimizer={"learning_rate": RATE, "rates": "program"}, **changes)


def endless_job():
    """Its programs know when they end."""
    job = linear_job()
    del job["iterations"]
    return job


class Declaring(Programs):
    def test_a_program_has_the_rank_that_it_asks_for_and_ends_the_job(self):
        cluster = Cluster(self).add(0, 1)
        programs = [self.program(cluster, endless_job(), "--pace", "0.05", rank=rank) for rank in (1, 0)]
        self.wait_for_step(programs[0], 3)
        self.assertEqual(cluster.status()["iterations"], 0)
        self.finish(*programs)
        self.assertEqual([self.said(program)[0]["rank"] for program in programs], [1, 0])
        status = cluster.status()
        self.assertEqual((status["state"], status["iteration"], status["iterations"]), ("done", 20, 20))

    def test_another_program_is_refused_with_the_first_difference(self):
        cluster = Cluster(self).add(0, 1)
        job = endless_job()
        first = self.program(cluster, job)
        wait_for("the job", lambda: cluster.status()["state"] == "waiting")
        job["model"]["declared"][1]["tensors"][0]["shape"] = [2]
        other = self.program(cluster, job)
        self.assertEqual(other.wait(60), 3, other.log())
        error = self.said(other)[-1]["error"]
        self.assertIn("poseidon_join: 2: ", error)
        self.assertIn("model: layer 1, bias: ", error)
        beyond = self.program(cluster, endless_job(), rank=2)
        self.assertEqual(beyond.wait(60), 3, beyond.log())
        self.assertIn("rank 2 of 2 workers", self.said(beyond)[-1]["error"])
        second = self.program(cluster, endless_job())
        self.finish(first, second)

    def test_programs_that_end_apart_fail_the_job_by_name(self):
        cluster = Cluster(self).add(0, 1)
        programs = [self.program(cluster, endless_job(), "--steps", steps) for steps in ("8", "20")]
        for program in programs:
            self.assertEqual(program.wait(60), 3, program.log())
            self.assertIn("all programs of a job must end after as many", self.said(program)[-1]["error"])
        self.assertEqual(cluster.status()["state"], "failed")


class Losses(Programs):
    def test_a_worker_that_dies_is_replaced_and_nothing_changes(self):
        cluster = Cluster(self).add(0, 2)
        calm, epoch = self.train(cluster, linear_job(40))
        job = linear_job(40, membership={"min_workers": 2, "max_workers": 2})
        first, second = [self.program(cluster, job, "--pace", "0.05") for _ in range(2)]
        self.wait_for_step(second, 10)
        second.signal(signal.SIGKILL)
        second.wait()
        third = self.program(cluster, job, "--pace", "0.05")
        end = self.finish(first, third)[0]
        self.assertEqual(end["parameters"], calm)
        self.assertGreater(self.said(third)[0]["joined"], 5)
        self.assertLessEqual(len([line for line in self.said(first) if "rewound" in line]), 1)
        self.assertGreater(cluster.status()["epoch"], epoch + 1)

    def test_a_worker_that_dies_changes_nothing_where_programs_say_the_rates(self):
        cluster = Cluster(self).add(0, 2)
        calm = self.finish(*[self.program(cluster, rates_job(40), "--rates", "mixed") for _ in range(2)])[0]["parameters"]
        job = rates_job(40, membership={"min_workers": 2, "max_workers": 2})
        programs = [self.program(cluster, job, "--pace", "0.05", "--rates", "mixed", rank=rank) for rank in range(2)]
        for turn, rank in enumerate((1, 0)):  # worker 0 is the one whose rates count
            self.wait_for_step(programs[1 - rank], 10 + 12 * turn)
            programs[rank].signal(signal.SIGKILL)
            programs[rank].wait()
            programs[rank] = self.program(cluster, job, "--pace", "0.05", "--rates", "mixed", rank=rank)
        self.assertEqual(self.finish(*programs)[0]["parameters"], calm)

    def test_a_server_that_dies_takes_nothing_with_it_but_time(self):
        cluster = Cluster(self).add(0, 2)
        calm, epoch = self.train(cluster, linear_job(40))
        job = linear_job(40, checkpoint={"every_iterations": 5})
        programs = [self.program(cluster, job, "--pace", "0.05", servers=0) for _ in range(2)]
        self.wait_for_step(programs[0], 12)
        cluster.servers[0][0].signal(signal.SIGKILL)
        cluster.servers[0][0].wait()
        cluster.restart_server(0)
        end = self.finish(*programs)[0]
        self.assertEqual(end["parameters"], calm)
        self.assertGreater(cluster.status()["epoch"], epoch + 1)

    def test_without_a_checkpoint_the_job_begins_again_from_the_first_parameters(self):
        cluster = Cluster(self).add(0, 1)
        calm, _ = self.train(cluster, linear_job(30))
        programs = [self.program(cluster, linear_job(30), "--pace", "0.05") for _ in range(2)]
        self.wait_for_step(programs[0], 5)
        cluster.servers[0][0].signal(signal.SIGKILL)
        cluster.servers[0][0].wait()
        cluster.restart_server(0)
        ends = self.finish(*programs)
        self.assertEqual(ends[0]["parameters"], calm)
        for program in programs:
            rewound = [line for line in self.said(program) if "rewound" in line]
            self.assertEqual([line["rewound"] for line in rewound], [0], program.log())
            self.assertEqual(rewound[0]["seen"], 0)

    def test_a_program_that_leaves_is_missed_and_a_smaller_job_goes_on(self):
        cluster = Cluster(self).add(0, 1)
        job = linear_job(30, membership={"min_workers": 1, "max_workers": 2, "replace_timeout_ms": 1000})
        stays = self.program(cluster, job, "--pace", "0.05")
        wait_for("the first program's job", lambda: cluster.status()["state"] != "idle")
        leaves = self.program(cluster, job, "--pace", "0.05", "--destroy-at", "6")
        self.assertEqual(leaves.wait(60), 0, leaves.log())
        self.finish(stays)
        self.assertEqual([line["workers"] for line in self.said(stays) if "rewound" in line], [1])


class Endings(Programs):
    def test_an_operator_s_stop_ends_all_calls_with_its_reason(self):
        cluster = Cluster(self).add(0, 1)
        programs = [self.program(cluster, linear_job(100000)) for _ in range(2)]
        self.wait_for_step(programs[1], 3)
        stopped = cluster.poseidon("stop")
        self.assertEqual(stopped.returncode, 0, stopped.stdout + stopped.stderr)
        for program in programs:
            self.assertEqual(program.wait(60), 3, program.log())
            error = self.said(program)[-1]["error"]
            self.assertRegex(error, r"^poseidon_\w+: 4: the job has ended: ")

    def test_a_program_that_cannot_go_on_ends_the_others_with_its_reason(self):
        cluster = Cluster(self).add(0, 1)
        fails = self.program(cluster, endless_job(), "--fail-at", "6", rank=1)
        other = self.program(cluster, endless_job(), "--pace", "0.01", rank=0)
        self.assertEqual(fails.wait(60), 0, fails.log())
        began = time.monotonic()
        self.assertEqual(other.wait(60), 3, other.log())
        self.assertLess(time.monotonic() - began, 5)
        self.assertRegex(other.log(), "poseidon_[a-z_]+: 4: .*worker 1.* failed: ValueError: 7 is no colour")
        self.assertIn("ValueError: 7 is no colour", cluster.wait_for_state("failed")["message"])

    def test_a_stop_while_the_job_recovers_ends_calls_too(self):
        cluster = Cluster(self).add(0, 1)
        programs = [self.program(cluster, linear_job(100000)) for _ in range(2)]
        self.wait_for_step(programs[1], 3)
        cluster.servers[0][0].signal(signal.SIGKILL)
        for program in programs:
            wait_for("the end of the epoch", lambda: "the job recovers" in program.log())
        stopped = cluster.poseidon("stop")
        self.assertIn("has ended after", stopped.stderr)
        for program in programs:
            self.assertEqual(program.wait(60), 3, program.log())
            self.assertRegex(self.said(program)[-1]["error"], r"^poseidon_\w+: 4: the job has ended: ")

    def test_a_coordinator_that_is_not_there_is_named(self):
        cluster = Cluster(self)
        address, cluster.address = cluster.address, "127.0.0.1:1"
        program = self.program(cluster, linear_job(), join_timeout_s=1)
        self.assertEqual(program.wait(60), 3, program.log())
        self.assertIn("poseidon_join: 3: ", self.said(program)[-1]["error"])
        cluster.address = address

    def test_a_wrong_job_is_refused_by_the_coordinator_s_words(self):
        cluster = Cluster(self).add(0, 1)
        program = self.program(cluster, linear_job(), run_dir="not/absolute")
        self.assertEqual(program.wait(60), 3, program.log())
        self.assertIn("poseidon_join: 2: ", self.said(program)[-1]["error"])


class Example(Programs):
    def test_the_example_in_c_trains_on_two_workers(self):
        cluster = Cluster(self).add(0, 1)
        examples = [self.start(f"example-{i}", BIN / "poseidon-example-linear", cluster.address, "2")
                    for i in range(2)]
        for example in examples:
            self.assertEqual(example.wait(60), 0, example.log())
            self.assertRegex(example.log(), r"worker \d of 2: y = 2\.0\d* x [+] 1\.0\d*|worker \d of 2: y = 1\.9\d* x")


if __name__ == "__main__":
    unittest.main()
