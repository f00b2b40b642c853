#!/usr/bin/env python3
"""What a trace costs while it is taken: CPU and time per iteration of a local cluster, with and without, taking turns.

    bench/metrics/trace_cost.py [--rounds 6] [--iterations 400] [--workers 2] [--servers 2] [--job deploy/jobs/digits.json]

One cluster trains all the while; a round is so many iterations without a trace and as many with one. CPU time is that of
its five processes. What collecting costs afterwards is not in it: training is over by then as far as the trace goes.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EDGE = 20  # iterations at both ends of a window that are not measured
TIMEOUT_S = 120


def wait_for(what, predicate):
    end = time.monotonic() + TIMEOUT_S
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise SystemExit(f"waited {TIMEOUT_S} s in vain for {what}")
        time.sleep(0.005)


class Cluster:
    def __init__(self, options, folder):
        job = json.loads(options.job.read_text())
        # Without end, on however many workers: only the time counts, and a loss that becomes NaN would end it.
        job.update(iterations=1_000_000_000, test_every_iterations=0, checkpoint={"every_iterations": 0},
                   optimizer={"type": "sgd", "learning_rate": 0.001})
        for part in job["data"].values():
            for key in ("images", "labels"):
                if isinstance(part, dict) and key in part:
                    part[key] = str((options.job.parent / part[key]).resolve())
        (folder / "job.json").write_text(json.dumps(job))
        self.program = options.build / "bin" / "poseidon"
        self.run_dir = folder / "run"
        self.local = subprocess.Popen(
            [self.program, "local", folder / "job.json", "--workers", str(options.workers), "--servers", str(options.servers),
             "--run-dir", self.run_dir], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        address = self.run_dir / "cluster" / "coordinator.address"
        wait_for("the cluster", lambda: address.exists() and address.read_text().strip())
        self.address = address.read_text().strip()
        self.metrics = self.run_dir / "metrics.jsonl"
        wait_for("its first iterations", lambda: self.metrics.exists() and self.iterations() > 100)

    def iterations(self):
        with open(self.metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().split(b"\n")
        return json.loads(lines[-2])["iteration"] + 1 if len(lines) > 2 else 0

    def cpu_seconds(self):
        ticks = 0
        for child in pathlib.Path(f"/proc/{self.local.pid}/task/{self.local.pid}/children").read_text().split():
            fields = pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def measure(self, first, last):
        """(CPU, wall) per iteration, in ms."""
        wait_for(f"iteration {first}", lambda: self.iterations() >= first)
        begin = self.iterations(), self.cpu_seconds(), time.monotonic()
        wait_for(f"iteration {last}", lambda: self.iterations() >= last)
        end = self.iterations(), self.cpu_seconds(), time.monotonic()
        return tuple(1e3 * (end[i] - begin[i]) / (end[0] - begin[0]) for i in (1, 2))

    def measure_traced(self, iterations, folder):
        log = self.run_dir / "logs" / "coordinator.log"
        before = log.read_text().count("a trace of iterations")
        trace = subprocess.Popen([self.program, "trace", "--coordinator", self.address, "--iterations", str(iterations), "--to",
                                  folder / "trace.json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        found = wait_for("the trace", lambda: re.findall(r"a trace of iterations (\d+) to (\d+)", log.read_text())[before:])
        first, last = map(int, found[0])
        figures = self.measure(first + EDGE, last - EDGE)
        said = trace.communicate()[0]
        if trace.returncode != 0 or "note:" in said:
            raise SystemExit(said)
        return figures, int(re.search(r"(\d+) events", said).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--job", type=pathlib.Path, default=ROOT / "deploy" / "jobs" / "digits.json")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poseidon-trace-cost-") as name:
        folder = pathlib.Path(name)
        cluster = Cluster(options, folder)
        without, traced, events = [], [], 0
        try:
            for _ in range(options.rounds):
                now = cluster.iterations()
                without.append(cluster.measure(now + EDGE, now + options.iterations - EDGE))
                figures, events = cluster.measure_traced(options.iterations, folder)
                traced.append(figures)
                print(f"per iteration: {without[-1][0]:.3f} ms of CPU, {without[-1][1]:.3f} ms without; "
                      f"{traced[-1][0]:.3f} ms, {traced[-1][1]:.3f} ms with a trace of {events} events", flush=True)
        finally:
            cluster.local.send_signal(signal.SIGTERM)
            cluster.local.wait()
        for index, what in enumerate(("CPU", "time")):
            off, on = (statistics.median(figure[index] for figure in all_of) for all_of in (without, traced))
            print(f"median {what} per iteration: {off:.3f} ms without, {on:.3f} ms with ({100 * (on / off - 1):+.2f} %), "
                  f"{events / options.iterations:.0f} events each")


if __name__ == "__main__":
    main()
