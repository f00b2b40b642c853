#!/usr/bin/env python3
"""What synchronisation through a server on the same machine costs a worker on a GPU, and how much of it is hidden.

    bench/gpu.sh sync [--sync-networks resnet152:64] [--sync-precision tf32] [--iterations 60]

Two ways of training in turns: `alone`, forward and backward with parameters that stay on the device
(poseidon-bench-engine), and a whole job by `poseidon local` with one worker and one server (--sync-servers). Images are random, in
memory-sized files, so that reading them is cheap; what waiting for them costs is shown apart.

    cost      by how much longer an iteration lasts in the job than alone, waiting for images left out
    stalled   share of an iteration in which the worker stands still for parameters
    hidden    share of the time in which gradients or parameters are under way that the worker computes meanwhile,
              by a trace of some iterations

The first two are of the same iterations: between two looks at the worker's metrics, when it is warm and before the trace.
"""

import argparse
import datetime
import json
import math
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from common import PRECISIONS, BenchError, Contender, about, add_options, machine, ours, pairs, parse

SAMPLES = 512
START_TIMEOUT_S = 120
JOB_TIMEOUT_S = 400
FIRST_MEASURED = 10  # iterations before it warm up
TRACED = 10
COMPUTING = ("forward", "backward", "rebuild")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--sync-networks", type=pairs, default=pairs("resnet152:64"), help="default resnet152:64")
    parser.add_argument("--sync-precision", choices=PRECISIONS, default="fp32", help="default %(default)s")
    parser.add_argument("--sync-wire-dtype", choices=("fp32", "bf16", "fp16"), default="fp32",
                        help="what gradients and parameters travel as, default %(default)s")
    parser.add_argument("--sync-servers", type=int, default=1, help="servers, which share the parameters, default %(default)s")
    parser.add_argument("--iterations", type=int, default=60, help="of a job, default %(default)s")
    parser.add_argument("--sync-rounds", type=int, default=2, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=4, help="CPU threads of the engine alone, default %(default)s")
    arguments = parse(parser)
    if arguments.iterations < 3 * FIRST_MEASURED:
        parser.error(f"--iterations must be {3 * FIRST_MEASURED} or more: the first {FIRST_MEASURED} warm up")
    return arguments


def write_images(folder):
    """CIFAR-10's form: a label and 3 x 32 x 32 bytes each."""
    source = random.Random(1)
    path = folder / "random.bin"
    path.write_bytes(b"".join(bytes([source.randrange(10)]) + source.randbytes(3072) for _ in range(SAMPLES)))
    return path


def make_job(network, batch, description, arguments, folder):
    shape = description["input_shape"]
    job = {"name": f"sync-{network}", "model": network, "init": {"seed": 1},
           "data": {"train": {"format": "cifar10", "files": [str(write_images(folder))]}, "shuffle": False,
                    "transform": {"resize": shape[1:], "mean": [127.5], "std": [127.5]}},
           "batch_size": batch, "iterations": arguments.iterations,
           "optimizer": {"type": "sgd", "learning_rate": 1e-6, "momentum": 0.9}, "sync": {"scheme": "ps", "wire_dtype": arguments.sync_wire_dtype}}
    if arguments.sync_precision != "fp32":
        job["precision"] = arguments.sync_precision
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def union(intervals):
    """Disjoint intervals that cover the same."""
    result = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def overlap(a, b):
    return sum(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


def hidden_share(trace):
    """Of the time in which anything is under way the share in which the worker computes, by a file of `poseidon trace`. What
    was sent in the last iteration arrives in the next, of which the trace has nothing: it is left out."""
    events = json.loads(trace.read_text())["traceEvents"]
    workers = {e["pid"] for e in events if e.get("ph") == "M" and e["name"] == "process_name" and e["args"]["name"].startswith("worker")}
    open_events, stages = {}, []
    for event in events:
        if event.get("pid") not in workers or event.get("ph") not in ("X", "b", "e"):
            continue
        if event["ph"] == "X":
            stages.append((event["cat"], event["ts"], event["ts"] + event.get("dur", 0), event.get("args", {})))
        elif event["ph"] == "b":
            open_events[event["cat"], event["id"]] = event
        elif (event["cat"], event["id"]) in open_events:
            begun = open_events.pop((event["cat"], event["id"]))
            stages.append((event["cat"], begun["ts"], event["ts"], begun.get("args", {})))
    last = max((arguments["iteration"] for stage, _, _, arguments in stages if stage in COMPUTING), default=0)
    under_way, computing = {}, []
    for stage, begin, end, arguments in stages:
        if stage in COMPUTING:
            computing.append([begin, end])
        elif stage in ("queue", "send", "copy") and arguments["iteration"] < last:
            key = arguments["iteration"], arguments.get("layer")
            first, until = under_way.get(key, (begin, end))
            under_way[key] = min(first, begin), max(until, end)
    spans = union(under_way.values())
    length = sum(end - begin for begin, end in spans)
    if length == 0:
        raise BenchError(f"{trace} shows nothing under way in more than one iteration")
    return overlap(spans, union(computing)) / length


def wait_for(what, process, condition, timeout_s):
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        if process.poll() is not None:
            raise BenchError(f"poseidon local ended while we waited for {what}")
        if time.monotonic() > end:
            raise BenchError(f"no {what} within {timeout_s} s")
        time.sleep(0.05)
    return found


def lines_of(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def status_of(address, arguments):
    text = machine.first_line(*ours("poseidon", "status", "--json", "--coordinator", address, programs=arguments.programs))
    return json.loads(text) if text.startswith("{") else {}


def take_trace(address, trace, is_over, arguments):
    """The hidden share by a trace of the job; NaN where the job was over before one could be taken."""
    done = subprocess.run(ours("poseidon", "trace", "--coordinator", address, "--iterations", TRACED, "--to", trace,
                               programs=arguments.programs), capture_output=True, text=True, timeout=180, check=False)
    if done.returncode == 0:
        return hidden_share(trace)
    if not is_over():
        raise BenchError(f"poseidon trace failed: {done.stderr.strip()}")
    print("the job was over before a trace of it: 'hidden' is not known (more --iterations)", flush=True)
    return math.nan


def run_job(job, folder, arguments):
    """Figures of one job: what per_iteration() says of the warm worker, and its hidden share."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    log = open(folder / "local.log", "w", encoding="utf-8")
    process = subprocess.Popen(ours("poseidon", "local", job, "--workers", 1, "--servers", arguments.sync_servers, "--device", arguments.device, "--metrics",
                                    "--run-dir", run_dir, programs=arguments.programs),
                               stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        address_file = run_dir / "cluster" / "coordinator.address"
        address = wait_for("address", process, lambda: address_file.exists() and address_file.read_text().strip(), START_TIMEOUT_S)

        def done():
            return len(lines_of(run_dir / "metrics.jsonl"))

        wait_for(f"iteration {FIRST_MEASURED}", process, lambda: done() >= FIRST_MEASURED, START_TIMEOUT_S)
        warm = page_of(run_dir, "worker")
        # The trace needs the other half: it begins a few iterations after it is asked for.
        half = (FIRST_MEASURED + arguments.iterations) // 2
        wait_for(f"iteration {half}", process, lambda: done() >= half, JOB_TIMEOUT_S)
        figures = per_iteration(warm, page_of(run_dir, "worker"))
        hidden = take_trace(address, folder / "trace.json", lambda: done() >= arguments.iterations, arguments)
        process.wait(JOB_TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        raise BenchError(f"no end: {late}") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        log.close()
    if process.returncode != 0:
        raise BenchError("poseidon local failed:\n" + (folder / "local.log").read_text()[-2000:])
    return {"hidden": hidden, **figures}


def page_of(run_dir, daemon):
    """The metrics of the first daemon of this kind, as text."""
    targets = json.loads((run_dir / "cluster" / "coordinator" / "prometheus-targets.json").read_text())
    address = next((target["targets"][0] for target in targets if target["labels"]["daemon"] == daemon), None)
    if address is None:
        raise BenchError(f"the coordinator names no {daemon} to ask for its metrics")
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            return page.read().decode()
    except OSError as error:
        raise BenchError(f"the metrics of the {daemon} at {address} (is the job over? then more --iterations): {error}") from None


def totals(page):
    """(iterations, seconds of all of them, stage -> seconds) since the worker began, by its metrics page."""
    def value(name):
        found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
        if found is None:
            raise BenchError(f"the worker's metrics have no {name}")
        return float(found[1])

    stages = re.findall(r'^poseidon_stage_seconds_sum{stage="(\w+)"} (\S+)$', page, re.MULTILINE)
    return (value("poseidon_iteration_seconds_count"), value("poseidon_iteration_seconds_sum"),
            {stage: float(seconds) for stage, seconds in stages})


def per_iteration(first, last):
    """Of the iterations between two looks at the worker's metrics: how many, and seconds of one and of its stages."""
    (count, seconds, stages), (later_count, later_seconds, later_stages) = totals(first), totals(last)
    iterations = later_count - count
    if iterations <= 0:
        raise BenchError("no iteration between two looks at the worker's metrics: more --iterations")
    return {"iterations": int(iterations), "job_s": (later_seconds - seconds) / iterations,
            "stages_s": {stage: (value - stages.get(stage, 0.0)) / iterations for stage, value in later_stages.items()}}


def measure(network, batch, arguments, folder):
    engine = ours("poseidon-bench-engine", "--network", network, programs=arguments.programs)
    line = machine.first_line(*engine, "--describe")
    if not line:
        raise BenchError(f"{' '.join(engine)} --describe failed")
    job = make_job(network, batch, json.loads(line), arguments, folder)
    command = [*engine, "--batch", str(batch), "--threads", str(arguments.threads), "--device", arguments.device, "--precision",
               arguments.sync_precision, "--turns"]
    alone = Contender("alone", command, None, folder / "alone.log")
    rounds, slowest = [], 0.0
    try:
        alone.turn(FIRST_MEASURED)
        for _ in range(arguments.sync_rounds):
            started = time.monotonic()
            if rounds and started + slowest > arguments.end:
                print(f"{network}:{batch}: {len(rounds)} of {arguments.sync_rounds} rounds within {arguments.budget_s:.0f} s", flush=True)
                break
            one = alone.turn(arguments.iterations - FIRST_MEASURED)
            figures = run_job(job, folder, arguments)
            alone_s, job_s = batch / one["images_per_s"], figures["job_s"]
            waiting_s = figures["stages_s"].get("input", 0.0)
            rounds.append({"alone_s": alone_s, "input_s": waiting_s, "cost": (job_s - waiting_s) / alone_s - 1,
                           "stalled": figures["stages_s"].get("stall", 0.0) / job_s, **figures})
            slowest = max(slowest, time.monotonic() - started)
    finally:
        alone.end()
    return rounds


def main():
    arguments = parse_arguments()
    machine.clean_up_on_signals()
    arguments.end = time.monotonic() + arguments.budget_s
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {"date": datetime.date.today().isoformat(), "machine": about(arguments.device), "device": arguments.device,
                "command": sys.argv, "precision": arguments.sync_precision, "wire_dtype": arguments.sync_wire_dtype,
                "servers": arguments.sync_servers, "networks": {}}
    print(f"{'network':14}{'batch':>6}{'alone ms':>10}{'job ms':>10}{'input ms':>10}{'cost':>8}{'stalled':>9}{'hidden':>8}", flush=True)
    for network, batch in arguments.sync_networks:
        with tempfile.TemporaryDirectory(prefix="poseidon-bench-") as folder:
            rounds = measure(network, batch, arguments, pathlib.Path(folder))
        document["networks"][f"{network}:{batch}"] = rounds
        middle = {key: statistics.median(r[key] for r in rounds) for key in ("alone_s", "job_s", "input_s", "cost", "stalled", "hidden")}
        print(f"{network:14}{batch:6}{middle['alone_s'] * 1e3:10.2f}{middle['job_s'] * 1e3:10.2f}{middle['input_s'] * 1e3:10.2f}"
              f"{middle['cost']:8.1%}{middle['stalled']:9.1%}{middle['hidden']:8.1%}", flush=True)
        (arguments.out / "sync.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"sync.py: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit("sync.py: stopped; sync.json has the networks that were measured until then")
