"""`poseidon trace` on a live cluster: every node and stage, one time, nothing twice on a row, and training does not notice."""

import collections
import re
import signal
import unittest

from cluster import Cluster, ProcessTest, Slowed, digits_job, wait_for, wait_for_line
from traces import STAGES, Trace

WORKERS, SERVERS = 2, 2
CLOCK_US = 1000  # on one machine


def job(iterations=1_000_000):
    """The fully connected layers by SFB, the others by PS; checkpoints and tests often."""
    return digits_job(iterations=iterations, test_every_iterations=25, sync={"scheme": "sfb"},
                      checkpoint={"every_iterations": 20, "keep": 2})


class TraceTest(ProcessTest):
    def take(self, cluster, *arguments, name="trace.json"):
        path = self.folder / name
        taken = cluster.poseidon("trace", "--to", path, *arguments)
        self.assertEqual(taken.returncode, 0, taken.stdout + taken.stderr)
        return Trace(path), taken.stdout

    def begin(self, the_job):
        cluster = Cluster(self, lease_ms=3000).add(workers=WORKERS, servers=SERVERS)
        submitted = cluster.submit(the_job, "--workers", WORKERS, "--servers", SERVERS, run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        wait_for_line(self.folder / "run", 20)
        return cluster

    def begin_long(self, cluster, name="long.json"):
        """A trace that takes longer than the test, or the job."""
        begun = cluster.coordinator.log().count("a trace of iterations")
        long = self.start("long", *cluster.place.command("coordinator", [
            cluster.coordinator.popen.args[0].replace("poseidon-coordinator", "poseidon"), "trace", "--coordinator",
            cluster.address, "--to", self.folder / name, "--iterations", 1000, "--timeout-s", 600]))
        wait_for("the trace to have begun", lambda: cluster.coordinator.log().count("a trace of iterations") > begun)
        return long


class LiveTrace(TraceTest):
    def test_everything(self):
        cluster = self.begin(job())
        trace, said = self.take(cluster, "--iterations", 60)
        self.assertEqual(trace.about["notes"], [], said)
        self.every_node_and_every_stage(trace)
        self.clocks_are_one(trace)
        self.assertEqual(trace.overlaps(), [])
        self.effects_follow_causes(trace)
        self.arrows_have_two_ends(trace)
        self.a_second_trace_at_the_same_time_is_refused(cluster)
        self.a_coordinator_that_is_silent_is_named(cluster)
        self.who_is_gone_is_named(cluster)

    def every_node_and_every_stage(self, trace):
        names = sorted(re.sub(r" \(.*", "", name) for name in trace.processes.values())
        self.assertEqual(names, ["server 0", "server 1", "worker 0", "worker 1"])
        for name in trace.processes.values():
            self.assertRegex(name, r"^\w+ \d \(127\.0\.0\.1:\d+\)$")
        seen = {(trace.processes[e["pid"]].split()[0], e["cat"]) for e in trace.spans + trace.begins}
        both = {"queue", "send"}
        of_servers = both | {"sum", "step", "checkpoint", "write"}
        of_gpus = {"upload", "download", "upload_factors"}  # cuda_test.py has those; a CPU copies nothing
        self.assertLess(of_gpus, set(STAGES.values()))
        of_workers = set(STAGES.values()) - of_servers - of_gpus | both
        self.assertEqual({stage for role, stage in seen if role == "server"}, of_servers)
        self.assertEqual({stage for role, stage in seen if role == "worker"}, of_workers)
        first, count = trace.about["first_iteration"], trace.about["iterations"]
        self.assertEqual(count, 60)
        window = set(range(first, first + count))
        for rank in range(WORKERS):
            for stage in ("forward", "backward", "copy", "send"):
                events = [e for e in trace.of("worker", stage) if trace.rank(e) == rank]
                self.assertEqual({e["args"]["iteration"] for e in events}, window, f"{stage} of worker {rank}")
        layers = {e["args"]["layer"] for e in trace.of("worker", "backward")}
        self.assertEqual(layers, {"conv1", "conv2", "ip1", "ip2"})
        self.assertLessEqual(set(trace.rows.values()), {
            "compute", "test", "receive", "aggregate", "disk", "send to server 0", "send to server 1", "send to worker 0",
            "send to worker 1"})
        # Each gradient is in a sum or a step once, each set of parameters is sent and put in place once.
        for stages, role in ((("sum", "step"), "server"), (("send",), "worker"), (("send",), "server"), (("copy",), "worker")):
            chunks = collections.Counter(
                (trace.rank(e), e["args"]["iteration"], e["args"]["chunk"], e["args"]["peer"])
                for stage in stages for e in trace.of(role, stage) if "chunk" in e["args"])
            self.assertTrue(chunks)
            self.assertEqual({key: n for key, n in chunks.items() if n > 1}, {}, f"{stages} of {role}s")

    def clocks_are_one(self, trace):
        self.assertEqual(len(trace.about["clocks"]), WORKERS + SERVERS)
        for clock in trace.about["clocks"]:
            print(f"{clock['node']}: {clock['offset_us']:.1f} us, at most {clock['error_us']:.1f} off, {clock['echoes']} echoes")
            self.assertGreaterEqual(clock["echoes"], 8)
            self.assertLess(clock["error_us"], CLOCK_US)
            # One machine has one monotonic clock: what it says of its error is true.
            self.assertLessEqual(abs(clock["offset_us"]), clock["error_us"])

    def effects_follow_causes(self, trace):
        off = 2 * max(clock["error_us"] for clock in trace.about["clocks"])

        def chunks(role, *stages):
            """(iteration, chunk, worker) -> event."""
            found = {}
            for stage in stages:
                for event in trace.of(role, stage):
                    args = event["args"]
                    if "chunk" in args:
                        worker = trace.rank(event) if role == "worker" else args["peer"]
                        found[args["iteration"], args["chunk"], worker] = event
            return found

        pushed, summed = chunks("worker", "send"), chunks("server", "sum", "step")
        returned, placed = chunks("server", "send"), chunks("worker", "copy")
        self.assertEqual(set(pushed), set(summed))
        self.assertEqual(set(summed), set(returned))
        self.assertEqual(set(returned), set(placed))
        for key in pushed:
            self.assertLessEqual(pushed[key]["ts"], summed[key]["ts"] + off, key)
            self.assertLessEqual(summed[key]["ts"] + summed[key]["dur"], returned[key]["ts"] + off, key)
            self.assertLessEqual(returned[key]["ts"], placed[key]["ts"] + off, key)
        # A layer's forward is not before its parameters are in place. (What comes before the first layer counts with it.)
        forwards = {(trace.rank(e), e["args"]["iteration"], e["args"]["layer"]): e
                    for e in sorted(trace.of("worker", "forward"), key=lambda e: e["ts"])}
        for event in forwards.values():
            last = [e["ts"] + e["dur"] for e in trace.of("worker", "copy") if "chunk" in e["args"]
                    and trace.rank(e) == trace.rank(event) and e["args"]["layer"] == event["args"]["layer"]
                    and e["args"]["iteration"] == event["args"]["iteration"] - 1]
            if last:
                self.assertGreaterEqual(event["ts"], max(last))

    def arrows_have_two_ends(self, trace):
        begins, ends = ([e["id"] for e in trace.events if e["ph"] == kind] for kind in "sf")
        self.assertEqual(len(set(begins)), len(begins))
        self.assertEqual(sorted(begins), sorted(ends))

    def a_second_trace_at_the_same_time_is_refused(self, cluster):
        long = self.begin_long(cluster)
        second = cluster.poseidon("trace", "--to", self.folder / "second.json")
        self.assertEqual(second.returncode, 1)
        self.assertIn("another trace is being taken", second.stderr)
        self.assertFalse((self.folder / "second.json").exists())
        long.signal(signal.SIGKILL)  # an operator who goes leaves the way free
        long.wait()
        wait_for("the way to be free", lambda: cluster.poseidon(
            "trace", "--to", self.folder / "third.json", "--iterations", 1).returncode == 0)

    def who_is_gone_is_named(self, cluster):
        """A worker that dies while its events are recorded: the job recovers or waits, the trace has the others'."""
        cluster.workers[1].signal(signal.SIGSTOP)
        trace, said = self.take(cluster, "--iterations", 5, "--timeout-s", 1, name="stopped.json")
        cluster.workers[1].signal(signal.SIGCONT)
        stopped = next(re.search(r"worker (\d) is ready", cluster.workers[1].log()).group(1) for _ in "1")
        self.assertTrue(any(re.match(rf"worker {stopped} \(.*did not answer within 3 s|worker {stopped} \(.*is gone", note)
                            for note in trace.about["notes"]), trace.about["notes"])
        self.assertIn("note: ", said)
        self.assertEqual(len(trace.processes), WORKERS + SERVERS - 1)


    def a_coordinator_that_is_silent_is_named(self, cluster):
        long = self.begin_long(cluster)
        cluster.coordinator.signal(signal.SIGSTOP)
        self.assertEqual(long.wait(60), 1)  # not for the 600 seconds that it may take
        self.assertRegex(long.log(), rf"the coordinator at {cluster.address} does not answer")
        self.assertNotIn("TLS", long.log())
        self.assertFalse((self.folder / "long.json").exists())
        cluster.coordinator.signal(signal.SIGCONT)
        wait_for("the job to be traced again", lambda: cluster.poseidon(
            "trace", "--to", self.folder / "again.json", "--iterations", 1).returncode == 0)


class Undisturbed(TraceTest):
    def test_the_model_is_the_same_and_a_job_that_ends_gives_what_there_is(self):
        iterations = 400
        cluster = self.begin(job(iterations))
        trace, _ = self.take(cluster, "--iterations", 30)
        self.assertEqual(trace.about["notes"], [])
        with Slowed(cluster.workers[0]):  # a fast machine would be done in the time of a command
            long = self.begin_long(cluster, "last.json")
        self.assertEqual(long.wait(120), 0, long.log())
        last, said = Trace(self.folder / "last.json"), long.log()
        self.assertEqual(last.about["first_iteration"] + last.about["iterations"], iterations)
        self.assertEqual(last.about["notes"], [], said)
        window = {e["args"]["iteration"] for e in last.of("worker", "backward")}
        self.assertEqual(max(window), iterations - 1)
        cluster.wait_for_state("done")
        reference = self.train(job(iterations), WORKERS, SERVERS)
        self.assertEqual((self.folder / "run" / "model.safetensors").read_bytes(),
                         (reference / "model.safetensors").read_bytes())
        idle = cluster.poseidon("trace", "--to", self.folder / "idle.json")
        self.assertEqual(idle.returncode, 1)
        self.assertIn("only a training job can be traced", idle.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
