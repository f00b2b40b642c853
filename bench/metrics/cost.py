#!/usr/bin/env python3
"""What metrics cost: CPU time of a whole local cluster with every daemon scraped once a second, against none served.

    bench/metrics/cost.py [--rounds 5] [--workers 2] [--servers 2] [--iterations 1200] [--job deploy/jobs/digits.json]

Both take turns, so that whatever else the machine does meets both. CPU time is user and system of all processes of the
cluster, from its start to its end (getrusage); the scraper is not in it.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
INTERVAL_S = 1.0


class Scraper:
    """Reads all targets of a run once a second until it is stopped."""

    def __init__(self, targets):
        self.targets, self.scrapes, self.bytes = targets, 0, 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.stopping.wait(INTERVAL_S):
            try:
                groups = json.loads(self.targets.read_text())
            except (OSError, ValueError):
                continue
            for group in groups:
                try:
                    with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=5) as page:
                        self.bytes += len(page.read())
                        self.scrapes += 1
                except OSError:
                    pass  # it comes or goes

    def stop(self):
        self.stopping.set()
        self.thread.join()


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(job, options, metrics):
    """(CPU seconds, wall seconds, scrapes, bytes of them)."""
    with tempfile.TemporaryDirectory(prefix="poseidon-cost-") as folder:
        run_dir = pathlib.Path(folder) / "run"
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        command = [str(options.build / "bin" / "poseidon"), "local", str(path), "--workers", str(options.workers), "--servers",
                   str(options.servers), "--run-dir", str(run_dir), *(["--metrics"] if metrics else [])]
        before, began = cpu_seconds(), time.monotonic()
        scraper = Scraper(run_dir / "cluster" / "coordinator" / "prometheus-targets.json") if metrics else None
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        wall = time.monotonic() - began
        if scraper:
            scraper.stop()
        if result.returncode != 0:
            raise SystemExit(result.stdout + result.stderr)
        return cpu_seconds() - before, wall, scraper.scrapes if scraper else 0, scraper.bytes if scraper else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=1200)
    parser.add_argument("--job", type=pathlib.Path, default=ROOT / "deploy" / "jobs" / "digits.json")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    job = json.loads(options.job.read_text())
    job["iterations"] = options.iterations
    for part in job["data"].values():
        for key in ("images", "labels"):
            if isinstance(part, dict) and key in part:
                part[key] = str((options.job.parent / part[key]).resolve())
    figures = {False: [], True: []}
    for turn in range(options.rounds):
        for metrics in (turn % 2 == 0, turn % 2 == 1):
            cpu, wall, scrapes, size = run(job, options, metrics)
            figures[metrics].append(cpu)
            scraped = f", {scrapes} scrapes of {size / max(scrapes, 1) / 1024:.0f} KiB" if metrics else ""
            print(f"{'with' if metrics else 'without'} metrics: {cpu:.2f} s of CPU, {wall:.2f} s{scraped}", flush=True)
    without, with_metrics = statistics.median(figures[False]), statistics.median(figures[True])
    print(f"median CPU: {without:.2f} s without, {with_metrics:.2f} s with ({100 * (with_metrics / without - 1):+.2f} %), "
          f"{os.cpu_count()} cores")


if __name__ == "__main__":
    main()
