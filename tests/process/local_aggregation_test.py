"""Local aggregation with real processes: 127.0.0.1 and 127.0.0.2 stand for two machines with two workers and a server
each. What must be equal is, whoever dies, and the servers hear one worker of each machine."""

import json
import re
import signal
import unittest

from cluster import Cluster, Here, ProcessTest, Slowed, digits_job, losses, metrics, wait_for, wait_for_line

ITERATIONS = 80


class TwoMachines(Here):
    def address(self, name):
        return "127.0.0.2" if name == "server-1" else "127.0.0.1"


def job(**sync):
    return digits_job(iterations=ITERATIONS, test_every_iterations=0,
                      checkpoint={"every_iterations": 20, "keep": 2}, sync={"scheme": "ps", "cost": "bytes", **sync})


class LocalAggregation(ProcessTest):
    reference = None  # (model, losses) of job() undisturbed

    def begin(self, job_json, machines=(1, 2, 1, 2), proofs=lambda role: [], name="run"):
        cluster = Cluster(self, place=TwoMachines(), proofs=proofs)
        cluster.add(workers=0, servers=2)
        for machine in machines:
            self.add_worker(cluster, machine)
        run_dir = self.folder / name
        submitted = cluster.submit(job_json, "--workers", len(machines), "--servers", 2, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        return cluster, run_dir

    @staticmethod
    def add_worker(cluster, machine, *arguments):
        """Workers join one after the other."""
        worker = cluster.add_worker("--listen", f"127.0.0.{machine}:0", *arguments)
        wait_for("a worker to join", lambda: "joined" in worker.log())
        return worker

    def end(self, cluster):
        for process in self.processes:
            process.destroy()

    def finish(self, cluster, run_dir):
        status = cluster.wait_for_state("done", "failed", timeout_s=90)
        self.assertEqual(status["state"], "done", status["message"])
        self.assertEqual([line["iteration"] for line in metrics(run_dir)[0]], list(range(ITERATIONS)))
        return (run_dir / "model.safetensors").read_bytes(), losses(run_dir)

    def run_once(self, job_json, **how):
        cluster, run_dir = self.begin(job_json, **how)
        results = self.finish(cluster, run_dir)
        plan = json.loads((run_dir / "plan.json").read_text())
        self.end(cluster)
        return results, plan, cluster

    def undisturbed(self):
        if LocalAggregation.reference is None:
            LocalAggregation.reference = self.run_once(job(), name="undisturbed")[0]
        return LocalAggregation.reference

    def test_the_same_bytes_whoever_came_first_and_nearly_those_without_groups(self):
        first, plan, cluster = self.run_once(job(), name="first")
        self.assertEqual(plan["local_groups"], [[0, 1], [2, 3]])
        self.assertIn("gradients of workers 0, 1 and workers 2, 3 are summed before they go", cluster.coordinator.log())
        second, plan, _ = self.run_once(job(), machines=(2, 2, 1, 1), name="second")
        self.assertEqual(plan["local_groups"], [[0, 1], [2, 3]])
        self.assertEqual(first, second)
        alone, plan, _ = self.run_once(job(local_aggregation="off"), name="alone")
        self.assertEqual(plan["local_groups"], [])
        self.assertNotEqual(first[0], alone[0], "other last bits: it was summed in another order")
        for with_groups, without in zip(first[1][:10], alone[1][:10]):
            self.assertAlmostEqual(with_groups, without, delta=1e-3)

    def test_the_servers_hear_one_worker_of_each_machine(self):
        sent = {}
        for value in ("auto", "off"):
            cluster, run_dir = self.begin(job(local_aggregation=value), name=value)
            self.finish(cluster, run_dir)
            for worker in cluster.workers:
                worker.signal(signal.SIGTERM)
                self.assertEqual(worker.wait(), 0, worker.log())
            # All of these processes share memory: what a server gives its streams is what it counted.
            servers = []
            for server, _ in cluster.servers:
                server.signal(signal.SIGTERM)
                self.assertEqual(server.wait(), 0, server.log())
                servers.append(int(re.search(r"sent (\d+) MB of tensors", server.log())[1]))
            sent[value] = sum(servers)
            self.end(cluster)
        self.assertLess(sent["auto"], 0.6 * sent["off"], sent)

    def lose(self, rank, by, replaced_on):
        """A worker of machine 1 (ranks 0 and 1) or 2."""
        expected = self.undisturbed()
        cluster, run_dir = self.begin(job())
        wait_for_line(run_dir, 1)
        victim = next(w for w in cluster.workers if f"worker {rank} is ready" in w.log())
        wait_for_line(run_dir, 15)
        victim.signal(by)
        self.add_worker(cluster, replaced_on)
        self.assertEqual(self.finish(cluster, run_dir), expected)
        self.assertTrue(cluster.recoveries(), "it was done before the loss")
        plan = json.loads((run_dir / "plan.json").read_text())
        self.assertEqual(plan["local_groups"], [[0, 1], [2, 3]])
        machines = [address.split(":")[0][-1] for address in plan["worker_addresses"]]
        self.assertEqual(machines[rank], str(replaced_on))

    def test_a_leader_is_killed_and_replaced_on_its_machine(self):
        self.lose(2, signal.SIGKILL, replaced_on=2)

    def test_a_leader_is_killed_and_replaced_on_another_machine(self):
        self.lose(2, signal.SIGKILL, replaced_on=1)

    def test_the_first_leader_freezes(self):
        self.lose(0, signal.SIGSTOP, replaced_on=1)

    def test_a_member_is_killed(self):
        self.lose(3, signal.SIGKILL, replaced_on=1)

    def test_a_server_is_gone_for_ever(self):
        """The job goes on with the other one, to the same bytes."""
        expected = self.undisturbed()
        changed = job()
        changed["checkpoint"]["replicas"] = 2
        changed["membership"] = {"replace_timeout_ms": 500}
        cluster, run_dir = self.begin(changed)
        wait_for_line(run_dir, 15)
        with Slowed(cluster.workers[0]):
            wait_for("a checkpoint", lambda: " is committed" in cluster.coordinator.log())
            cluster.servers[1][0].signal(signal.SIGKILL)
        self.assertEqual(self.finish(cluster, run_dir), expected)
        plan = json.loads((run_dir / "plan.json").read_text())
        self.assertEqual((plan["servers"], plan["local_groups"]), (1, [[0, 1], [2, 3]]))
        self.assertTrue(cluster.recoveries(), "it was done before the loss")

    def test_the_coordinator_is_killed(self):
        expected = self.undisturbed()
        cluster, run_dir = self.begin(job())
        wait_for_line(run_dir, 15)
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()
        self.assertTrue((self.folder / "state" / "job.json").exists(), "it was done before")
        cluster.restart_coordinator()
        self.assertEqual(self.finish(cluster, run_dir), expected)

    def test_over_sockets_with_sixteen_bits_and_factors_between_all(self):
        options = {"scheme": {"ip1": "sfb"}, "wire_dtype": "bf16"}
        shared, plan, _ = self.run_once(job(**options), name="shared")
        self.assertEqual(plan["local_groups"], [[0, 1], [2, 3]])
        self.assertEqual(shared, self.run_over_sockets(job(**options)))

    def run_over_sockets(self, job_json):
        cluster = Cluster(self, place=TwoMachines())
        cluster.add(workers=0, servers=2)
        for machine in (1, 2, 1, 2):
            self.add_worker(cluster, machine, "--no-shared-memory")
        run_dir = self.folder / "sockets"
        submitted = cluster.submit(job_json, "--workers", 4, "--servers", 2, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        results = self.finish(cluster, run_dir)
        for worker in cluster.workers:
            worker.signal(signal.SIGTERM)
            self.assertEqual(worker.wait(), 0, worker.log())
            self.assertIn("sent 0 MB of tensors through shared memory", worker.log())
        return results


if __name__ == "__main__":
    unittest.main()
