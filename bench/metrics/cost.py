#!/usr/bin/env python3
"""What metrics cost: CPU time of a whole local cluster with every daemon scraped once a second, against none served.

    bench/metrics/cost.py [--rounds 5] [--workers 2] [--servers 2] [--iterations 1200] [--job deploy/jobs/digits.json]

Both take turns, so that whatever else the machine does meets both. CPU time is user and system of all processes of the
cluster, from its start to its end (getrusage); the scraper is not in it. On a machine with other work that difference is
mostly noise; what the threads that serve scrapes used themselves (schedstat) is not. They are known by their name.
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
SERVING = "MHD-"  # how libmicrohttpd names its threads


def serving_ns(process):
    """thread -> ns on a CPU, of the threads that serve HTTP in the process's children."""
    used = {}
    for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split():
        for thread in pathlib.Path(f"/proc/{child}/task").iterdir():
            if (thread / "comm").read_text().startswith(SERVING):
                used[str(thread)] = int((thread / "schedstat").read_text().split()[0])
    return used


class Scraper:
    """Reads all targets of a run once a second until it is stopped, as Prometheus does: compressed."""

    def __init__(self, targets, process):
        self.targets, self.process, self.scrapes, self.bytes, self.used = targets, process, 0, 0, {}
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
                    request = urllib.request.Request(f"http://{group['targets'][0]}/metrics", headers={"Accept-Encoding": "gzip"})
                    with urllib.request.urlopen(request, timeout=5) as page:
                        self.bytes += len(page.read())
                        self.scrapes += 1
                except OSError:
                    pass  # it comes or goes
            try:
                self.used.update(serving_ns(self.process))
            except OSError:
                pass  # likewise

    def serving_seconds(self):
        return sum(self.used.values()) * 1e-9

    def stop(self):
        self.stopping.set()
        self.thread.join()


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(job, options, metrics):
    """(CPU seconds, wall seconds, the Scraper or None)."""
    with tempfile.TemporaryDirectory(prefix="poseidon-cost-") as folder:
        run_dir = pathlib.Path(folder) / "run"
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        command = [str(options.build / "bin" / "poseidon"), "local", str(path), "--workers", str(options.workers), "--servers",
                   str(options.servers), "--run-dir", str(run_dir), *(["--metrics"] if metrics else [])]
        before, began = cpu_seconds(), time.monotonic()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as cluster:
            targets = run_dir / "cluster" / "coordinator" / "prometheus-targets.json"
            scraper = Scraper(targets, cluster.pid) if metrics else None
            output = cluster.communicate()[0]
        wall = time.monotonic() - began
        if scraper:
            scraper.stop()
        if cluster.returncode != 0:
            raise SystemExit(output)
        return cpu_seconds() - before, wall, scraper


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
    figures, shares = {False: [], True: []}, []
    for turn in range(options.rounds):
        for metrics in (turn % 2 == 0, turn % 2 == 1):
            cpu, wall, scraper = run(job, options, metrics)
            figures[metrics].append(cpu)
            scraped = ""
            if scraper:
                if not scraper.scrapes:
                    raise SystemExit(f"cost.py: nothing was scraped in {wall:.1f} s: give more --iterations")
                if not scraper.used:
                    raise SystemExit(f"cost.py: no thread {SERVING}* in any daemon that was scraped: have those that serve scrapes "
                                     "another name now?")
                shares.append(100 * scraper.serving_seconds() / cpu)
                scraped = (f", {scraper.scrapes} scrapes of {scraper.bytes / scraper.scrapes / 1024:.1f} KiB, "
                           f"{1e3 * scraper.serving_seconds() / scraper.scrapes:.2f} ms each, {shares[-1]:.2f} % of the CPU")
            print(f"{'with' if metrics else 'without'} metrics: {cpu:.2f} s of CPU, {wall:.2f} s{scraped}", flush=True)
    without, with_metrics = statistics.median(figures[False]), statistics.median(figures[True])
    print(f"median CPU: {without:.2f} s without, {with_metrics:.2f} s with ({100 * (with_metrics / without - 1):+.2f} %), "
          f"{os.cpu_count()} cores; serving scrapes took {statistics.median(shares):.2f} % of it")


if __name__ == "__main__":
    main()
