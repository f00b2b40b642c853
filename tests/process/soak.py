"""Random faults against training clusters, each run compared in bytes with the undisturbed one.

    tests/process/soak.sh --minutes N --seed S      until the time is over
    tests/process/soak.sh --trials N --seed S       so many runs
    tests/process/soak.sh --trial-seed T            that trial alone, with the same --faults, --kinds and --frozen

One trial: a cluster of 2 workers and 2 servers trains; at a random moment one or several faults strike: SIGKILL (the
process is started again at once), or SIGSTOP for up to twice the lease and then SIGCONT. The run must finish by
itself, with each metrics line once and with the bytes of the undisturbed run. A trial whose faults all came when the run
was over says nothing and does not count. Prints one line per trial and a summary; exit status 1 when a trial failed,
with the command that repeats it: the same faults at the same iterations, as far as time allows.
"""

import argparse
import random
import re
import shlex
import signal
import statistics
import sys
import time

from cluster import NORMALISED, Cluster, ProcessTest, digits_job, metrics, wait_for

ITERATIONS = 150
EVERY = 20
WORKERS, SERVERS = 2, 2
KINDS = ("worker", "server", "coordinator")
FROZEN = 0.2       # of the workers and servers struck; the others are killed
MOST_MISSED = 20   # trials in a row whose faults came too late


# What trains: by either scheme, and a network with running statistics.
VARIANTS = {"ps": {"sync": {"scheme": "ps"}}, "sfb": {"sync": {"scheme": "sfb"}},
            "statistics": {"sync": {"scheme": "ps"}, "model": NORMALISED, "batch_size": 512}}


def job(variant):
    return digits_job(iterations=ITERATIONS, test_every_iterations=50,
                      checkpoint={"every_iterations": EVERY, "keep": 2}, **VARIANTS[variant])


class Trial(ProcessTest):
    """Not collected as a test: driven by soak() below."""

    references = {}

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

    def disturb(self, rng, kinds, faults, frozen, struck, log):
        variant = rng.choice(list(VARIANTS))
        expected = self.reference(variant)
        cluster = Cluster(self).add(workers=WORKERS, servers=SERVERS)
        run_dir = self.folder / "run"
        submitted = cluster.submit(job(variant), "--workers", WORKERS, "--servers", SERVERS, run_dir=run_dir)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        times = []
        for _ in range(faults):
            times.append(self.strike(rng, kinds, frozen, cluster, run_dir, variant, struck, log))
        status = cluster.wait_for_state("done", "failed", timeout_s=120)
        self.assertEqual(status["state"], "done", status["message"])
        model, losses, tests = self.results(run_dir)
        self.assertEqual(losses, expected[1])
        self.assertEqual(tests, expected[2])
        self.assertEqual(model, expected[0])
        return [t for t in times if t is not None], [made for _, made in cluster.recoveries() if made]

    def strike(self, rng, kinds, frozen, cluster, run_dir, variant, struck, log):
        """One fault at a random moment; seconds from it to the next new iteration, or None at the end of the run."""
        self.wait_for_moment(rng, run_dir / "metrics.jsonl")
        kind = rng.choice(kinds)
        freeze = kind != "coordinator" and rng.random() < frozen
        if cluster.status()["state"] == "done":
            return None
        begin = time.monotonic()
        struck.append((kind, "frozen" if freeze else "killed"))
        if kind == "coordinator":
            log.append("coordinator killed")
            cluster.coordinator.signal(signal.SIGKILL)
            cluster.coordinator.wait()  # its directory is its own until it is gone
            cluster.restart_coordinator()
        else:
            group = cluster.workers if kind == "worker" else [process for process, _ in cluster.servers]
            index = rng.randrange(len(group))
            victim = group[index]
            log.append(f"{victim.name} {'frozen' if freeze else 'killed'} ({variant})")
            victim.signal(signal.SIGSTOP if freeze else signal.SIGKILL)
            if freeze:
                time.sleep(rng.uniform(0.0, 3.0))
                victim.signal(signal.SIGCONT)
            elif kind == "worker":
                cluster.workers.remove(victim)
                cluster.add_worker()
            else:
                victim.wait()
                cluster.restart_server(index)
        path = run_dir / "metrics.jsonl"
        before = self.furthest(path)
        wait_for("a new iteration or the end", lambda: self.furthest(path) > before or
                 cluster.status()["state"] in ("done", "failed"), 60)
        return time.monotonic() - begin

    def wait_for_moment(self, rng, path):
        """Of the preparations, for one in six; else any iteration but the last few, and any moment of it."""
        if rng.random() < 1 / 6:
            time.sleep(rng.uniform(0.0, 0.5))
            return
        target = rng.randrange(ITERATIONS - EVERY // 2)
        wait_for(f"iteration {target}", lambda: self.furthest(path) >= target, 120)
        time.sleep(rng.uniform(0.0, 0.02))

    @staticmethod
    def furthest(path):
        found = re.findall(r'"iteration":(\d+),"loss"', path.read_text()) if path.exists() else []
        return max(map(int, found), default=-1)


def soak(minutes=0.0, trials=0, faults=1, seed=1, kinds=KINDS, frozen=FROZEN, trial_seed=None):
    """(seeds of the trials that did not end like the undisturbed run, [(kind, "killed" or "frozen")] of what struck)."""
    rng = random.Random(seed)
    end = time.monotonic() + minutes * 60
    if trial_seed is not None:
        trials = 1
    failed, struck, done, missed, missed_in_a_row, recoveries, replayed = [], [], 0, 0, 0, [], []
    while (done < trials) if trials else (time.monotonic() < end):
        seed = rng.getrandbits(32) if trial_seed is None else trial_seed
        log, faults_of_trial = [], []
        trial = Trial()
        trial.setUp()
        try:
            times, back = trial.disturb(random.Random(seed), kinds, faults, frozen, faults_of_trial, log)
            recoveries += times
            replayed += back
            how = "ok" if faults_of_trial else "does not count, it was over before anything struck"
            print(f"trial {done} seed {seed}: {how} ({'; '.join(log)}; {', '.join(f'{t:.2f} s' for t in times)})", flush=True)
        except Exception as error:  # the next trials still count
            failed.append(seed)
            print(f"trial {done} seed {seed}: FAILED ({'; '.join(log)}): {error}\n"
                  f"again: {repeating(seed, faults, kinds, frozen)}", flush=True)
            for process in trial.processes:
                print(f"---- {process.name}\n{process.log()[-2500:]}", flush=True)
        finally:
            trial.doCleanups()
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
    print(f"{done - len(failed)} of {done} trials ended like the undisturbed run" +
          (f"; failed seeds: {failed}" if failed else "") +
          (f"; {missed} more were over before anything struck" if missed else ""))
    return failed, struck


def repeating(seed, faults, kinds, frozen):
    """The command that runs the trial of this seed alone."""
    return shlex.join(map(str, ["tests/process/soak.sh", "--trial-seed", seed, "--faults", faults, "--frozen", frozen, "--kinds",
                                *kinds]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--trials", type=int, default=0, help="instead of minutes")
    parser.add_argument("--faults", type=int, default=1, help="in one run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial-seed", type=int, help="instead of minutes: the trial that was printed with it")
    parser.add_argument("--frozen", type=float, default=FROZEN,
                        help="share of the workers and servers struck that are frozen instead of killed, default %(default)s")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    failed, struck = soak(**vars(parser.parse_args()))
    if not struck:
        print("nothing struck: no trial counts")
    return 0 if struck and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
