"""Random faults against training clusters, each run compared in bytes with the undisturbed one.

    tests/process/soak.sh --minutes N --seed S      until the time is over
    tests/process/soak.sh --trials N --seed S       so many runs
    tests/process/soak.sh --trial-seed T            that trial alone, with the other options that were printed with it

One trial: a cluster of 2 workers and 2 servers trains one of VARIANTS over one of CONNECTIONS; at a random moment one or
several faults strike a worker, a server, the coordinator or all of them at once: SIGKILL, or SIGTERM as by a service
manager (a worker says goodbye; the process is started again at once), or SIGSTOP for up to twice the lease and then
SIGCONT. A worker or server may also be drained while a spare one takes its place, and a stranger may push gradients to a
server under the workers' ranks for a second. The next fault
waits for an iteration that the job makes after the one before, or (--hasty) comes while the job still recovers. The run
must finish by itself, with each metrics line once and with the bytes of the undisturbed run. A trial whose faults all
came when the run was over says nothing and does not count. Prints one line per trial and a summary; exit status 1 when a
trial failed, with the command that repeats it: the same faults at the same iterations, as far as time allows.
"""

import argparse
import json
import random
import re
import shlex
import signal
import statistics
import sys
import time

from cluster import (BUILD, NORMALISED, Cluster, ProcessTest, digits_job, furthest, metrics, poseidon, wait_for,
                     wait_for_line)

ITERATIONS = 150
EVERY = 20
WORKERS, SERVERS = 2, 2
KINDS = ("worker", "server", "coordinator", "all")
FROZEN = 0.2       # of those struck
ENDED = 0.15       # of the others; what is left is killed
DRAINED = 0.1      # of the workers and servers that are not frozen
HIJACKED = 0.1     # of the faults that are neither: a stranger's streams
HASTY = 0.0        # of the faults after the first
EARLY = 1 / 6      # of the faults: in the preparations
MOST_MISSED = 20   # trials in a row whose faults came too late


# What trains: by either scheme, a network with running statistics, and what else keeps state or goes another way.
VARIANTS = {
    "ps": {"sync": {"scheme": "ps"}},
    "sfb": {"sync": {"scheme": "sfb"}},
    "statistics": {"sync": {"scheme": "ps"}, "model": NORMALISED, "batch_size": 512},
    "apart": {"sync": {"scheme": "ps", "local_aggregation": "off"}},
    "half": {"sync": {"scheme": "auto", "wire_dtype": "bf16"}},
    "clipped": {"sync": {"scheme": "sfb"}, "optimizer": {"type": "adam", "learning_rate": 0.001, "clip_norm": 1.0}},
    "parts": {"sync": {"scheme": "sfb"}, "micro_batches": 2},
    "copies": {"sync": {"scheme": "ps"}, "checkpoint": {"every_iterations": EVERY, "keep": 2, "replicas": 2}},
}
# How its nodes reach each other: options of servers and workers; whether with TLS.
CONNECTIONS = {"memory": ([], False), "sockets": (["--no-shared-memory"], False), "tls": (["--no-shared-memory"], True)}


def job(variant):
    return digits_job(**{"iterations": ITERATIONS, "test_every_iterations": 50,
                         "checkpoint": {"every_iterations": EVERY, "keep": 2},
                         "membership": {"min_workers": WORKERS},  # with fewer, sums have other last bits
                         **VARIANTS[variant]})


class Trial(ProcessTest):
    """Not collected as a test: driven by soak() below."""

    references = {}
    refused = 0  # of strangers' streams
    spares = 0

    def runTest(self):
        pass

    def reference(self, variant):
        if variant not in self.references:
            run_dir = self.train(job(variant), WORKERS, SERVERS)
            self.references[variant] = self.results(run_dir)
        return self.references[variant]

    def results(self, run_dir):
        iterations, tests = metrics(run_dir)
        self.assertEqual([line["iteration"] for line in iterations], list(range(ITERATIONS)))
        return ((run_dir / "model.safetensors").read_bytes(), [line["loss"] for line in iterations],
                [(line["iteration"], line["test_loss"]) for line in tests])

    def cluster(self, connection):
        self.extra, tls = CONNECTIONS[connection]
        proofs = {}
        if tls:
            certificates = self.folder / "tls"
            made = poseidon("tls", "init", "--to", certificates)
            self.assertEqual(made.returncode, 0, made.stderr)
            proofs["proofs"] = lambda role: ["--tls-dir", certificates / role]
        cluster = Cluster(self, keeps_job=True, **proofs)
        for _ in range(SERVERS):
            cluster.add_server(*self.extra)
        for _ in range(WORKERS):
            cluster.add_worker(*self.extra)
        return cluster

    def disturb(self, rng, options, struck, log):
        variant, connection = rng.choice(options.variants), rng.choice(options.connections)
        log.append(f"{variant} by {connection}")
        expected = self.reference(variant)
        cluster = self.cluster(connection)
        run_dir = self.folder / "run"
        submitted = cluster.submit(job(variant), "--workers", WORKERS, "--servers", SERVERS, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        times = []
        for fault in range(options.faults):
            hasty = fault > 0 and rng.random() < options.hasty
            last = fault + 1 == options.faults
            times.append(self.strike(rng, options, hasty, last, cluster, run_dir, struck, log))
        status = cluster.wait_for_state("done", "failed", timeout_s=180)
        self.assertEqual(status["state"], "done", status["message"])
        model, losses, tests = self.results(run_dir)
        self.assertEqual(losses, expected[1])
        self.assertEqual(tests, expected[2])
        self.assertEqual(model, expected[0])
        return [t for t in times if t is not None], [made for _, made in cluster.recoveries() if made]

    def strike(self, rng, options, hasty, last, cluster, run_dir, struck, log):
        """One fault at a random moment; seconds from it to the next new iteration, or None at the end of the run."""
        if hasty:
            time.sleep(rng.uniform(0.0, 2.0))
        else:
            self.wait_for_moment(rng, options, run_dir)
        kind = rng.choice(options.kinds)
        how = self.way(rng, options, kind)
        if cluster.status()["state"] == "done":
            return None
        begin = time.monotonic()
        before = furthest(run_dir)
        struck.append((kind, how))
        victims = [(kind, 0)] if kind == "coordinator" else [(kind, rng.randrange(WORKERS if kind == "worker" else SERVERS))]
        if kind == "all":
            victims = [("coordinator", 0), *(("server", index) for index in range(SERVERS)),
                       *(("worker", index) for index in range(WORKERS))]
            rng.shuffle(victims)
        log.append(f"{kind}{'' if len(victims) > 1 else f'-{victims[0][1]}'} {how} after {before}{' in haste' if hasty else ''}")
        self.fault(rng, how, cluster, victims, run_dir)
        if not last and options.hasty > 0:
            return None  # the next one may have come by then
        wait_for("a new iteration or the end", lambda: furthest(run_dir) > before or
                 cluster.status()["state"] in ("done", "failed"), 90)
        return time.monotonic() - begin

    @staticmethod
    def way(rng, options, kind):
        if rng.random() < options.frozen:
            return "frozen"
        if kind in ("worker", "server") and rng.random() < options.drained:
            return "drained"
        if rng.random() < options.hijacked:
            return "hijacked"
        return "ended" if rng.random() < options.ended else "killed"

    def drain(self, cluster, kind, index):
        """Another one comes and takes its place; then it is stopped."""
        self.spares += 1
        if kind == "worker":
            cluster.add_worker(*self.extra, name=f"worker-spare-{self.spares}")
            nodes, address = cluster.workers, re.search(r"listening on (\S+)", cluster.workers[index].log()).group(1)
        else:
            cluster.add_server(*self.extra, name=f"server-spare-{self.spares}")
            nodes, address = cluster.servers, cluster.servers[index][1]
        count = WORKERS if kind == "worker" else SERVERS
        wait_for("the spare one to join", lambda: len(cluster.status()[f"{kind}s"]) > count, 60)
        drained = cluster.poseidon("drain", address, "--timeout-s", 90)
        self.assertEqual(drained.returncode, 0, drained.stdout + drained.stderr)
        (nodes[index] if kind == "worker" else nodes[index][0]).signal(signal.SIGTERM)
        nodes[index] = nodes.pop()
        if kind == "server":
            cluster.server_names[index] = cluster.server_names.pop()

    def hijack(self, rng, cluster, run_dir):
        """A stranger's streams to one server. While it goes through another epoch, it refuses them otherwise."""
        status, plan = cluster.status(), json.loads((run_dir / "plan.json").read_text())
        if not plan["chunks"]:
            return
        chunk = rng.randrange(len(plan["chunks"]))
        place = plan["chunks"][chunk]
        tls = ["--tls-dir", self.folder / "tls/worker"] if (self.folder / "tls").exists() else []
        stranger = self.start(f"stranger-{rng.getrandbits(32):08x}", BUILD / "tests/poseidon-test-hijacker", "--server",
                              plan["server_addresses"][place["server"]], "--epoch", status["epoch"], "--workers", WORKERS,
                              "--chunk", chunk, "--offset", place["offset"], "--elements", place["elements"],
                              "--iteration", status["iteration"], "--seconds", 1, *tls)
        self.assertEqual(stranger.wait(60), 0, stranger.log())
        self.refused += int(re.search(r"refused (\d+)", stranger.log()).group(1))

    def fault(self, rng, how, cluster, victims, run_dir):
        if how == "drained":
            self.drain(cluster, *victims[0])
            return
        if how == "hijacked":
            self.hijack(rng, cluster, run_dir)
            return
        processes = [self.process(cluster, *victim) for victim in victims]
        for process in processes:
            process.signal({"frozen": signal.SIGSTOP, "ended": signal.SIGTERM, "killed": signal.SIGKILL}[how])
        if how == "frozen":
            time.sleep(rng.uniform(0.0, 3.0))
            for process in processes:
                process.signal(signal.SIGCONT)
            return
        for process in processes:
            process.wait(120)  # its directory and its port are its own until it is gone
        for kind, index in sorted(victims):  # the coordinator first: the others' options name it
            if kind == "coordinator":
                cluster.restart_coordinator()
            elif kind == "server":
                cluster.restart_server(index, *self.extra)
            else:
                cluster.restart_worker(index, *self.extra)

    @staticmethod
    def process(cluster, kind, index):
        if kind == "coordinator":
            return cluster.coordinator
        return cluster.workers[index] if kind == "worker" else cluster.servers[index][0]

    @staticmethod
    def wait_for_moment(rng, options, run_dir):
        """Of the preparations, or any iteration but the last few, and any moment of it."""
        if rng.random() < options.early:
            time.sleep(rng.uniform(0.0, 0.5))
            return
        wait_for_line(run_dir, rng.randrange(1, ITERATIONS - EVERY // 2), 120)
        time.sleep(rng.uniform(0.0, 0.02))


def soak(options, make_trial=Trial):
    """(seeds of the trials that did not end like the undisturbed run, [(kind, how)] of what struck); `options` as of
    parse()."""
    rng = random.Random(options.seed)
    end = time.monotonic() + options.minutes * 60
    trials = 1 if options.trial_seed is not None else options.trials
    failed, struck, done, missed, missed_in_a_row, recoveries, replayed = [], [], 0, 0, 0, [], []
    refused = 0
    while (done < trials) if trials else (time.monotonic() < end):
        seed = rng.getrandbits(32) if options.trial_seed is None else options.trial_seed
        log, faults_of_trial = [], []
        trial = make_trial()
        trial.setUp()
        try:
            times, back = trial.disturb(random.Random(seed), options, faults_of_trial, log)
            trial.assertFalse(trial.crashed(), "some have crashed, and the job went on all the same")
            recoveries += times
            replayed += back
            how = "ok" if faults_of_trial else "does not count, it was over before anything struck"
            print(f"trial {done} seed {seed}: {how} ({'; '.join(log)}; {', '.join(f'{t:.2f} s' for t in times)})", flush=True)
        except Exception as error:  # the next trials still count
            failed.append(seed)
            print(f"trial {done} seed {seed}: FAILED ({'; '.join(log)}): {error}\n"
                  f"again: {repeating(seed, options)}", flush=True)
            for process in trial.processes:
                print(f"---- {process.name}\n{process.log()[-2500:]}", flush=True)
        finally:
            trial.doCleanups()
        refused += trial.refused
        if not faults_of_trial and seed not in failed:
            missed, missed_in_a_row = missed + 1, missed_in_a_row + 1
            if missed_in_a_row == MOST_MISSED:
                raise RuntimeError(f"{MOST_MISSED} trials in a row were over before anything struck")
            continue
        struck += faults_of_trial
        missed_in_a_row = 0
        done += 1
    if recoveries:
        print(f"seconds from the fault to the next new iteration: median {statistics.median(recoveries):.2f}, "
              f"longest {max(recoveries):.2f}")
    if replayed:
        print(f"iterations made again: median {statistics.median(replayed):.0f}, most {max(replayed)}")
    if any(how == "hijacked" for _, how in struck):
        print(f"{refused} streams of strangers were refused for their proof")
    print(f"{done - len(failed)} of {done} trials ended like the undisturbed run" +
          (f"; failed seeds: {failed}" if failed else "") +
          (f"; {missed} more were over before anything struck" if missed else ""))
    return failed, struck


def repeating(seed, options):
    """The command that runs the trial of this seed alone."""
    return shlex.join(map(str, ["tests/process/soak.sh", "--trial-seed", seed, "--faults", options.faults, "--hasty",
                                options.hasty, "--frozen", options.frozen, "--ended", options.ended, "--drained",
                                options.drained, "--hijacked", options.hijacked, "--early", options.early,
                                "--variants", *options.variants, "--connections", *options.connections, "--kinds",
                                *options.kinds]))


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--trials", type=int, default=0, help="instead of minutes")
    parser.add_argument("--faults", type=int, default=1, help="in one run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial-seed", type=int, help="instead of minutes: the trial that was printed with it")
    parser.add_argument("--frozen", type=float, default=FROZEN, help="share of those struck that are frozen, default %(default)s")
    parser.add_argument("--ended", type=float, default=ENDED,
                        help="share of the others that get SIGTERM instead of SIGKILL, default %(default)s")
    parser.add_argument("--drained", type=float, default=DRAINED,
                        help="share of the workers and servers that are drained, default %(default)s")
    parser.add_argument("--hijacked", type=float, default=HIJACKED,
                        help="share of the faults that are a stranger's streams, default %(default)s")
    parser.add_argument("--hasty", type=float, default=HASTY,
                        help="share of the faults after the first that do not wait for a new iteration, default %(default)s")
    parser.add_argument("--early", type=float, default=EARLY,
                        help="share of the faults that strike while the job is prepared, default 1/6")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--connections", nargs="+", choices=CONNECTIONS, default=list(CONNECTIONS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    return parser.parse_args(arguments)


def main():
    failed, struck = soak(parse())
    if not struck:
        print("nothing struck: no trial counts")
    return 0 if struck and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
