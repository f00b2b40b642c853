#!/usr/bin/env python3
"""What checkpoints cost the training: one job with and without them, in turns, on this machine.

A fully connected network of about 100 million parameters under the parameter server, one worker and one server
(momentum: 8 bytes per parameter go to the disk). Prints iteration times and their ratio within a round.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "shaped"))
import networks  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED_ITERATIONS = 3  # page faults and clocks


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--width", type=int, default=9600, help="of both hidden layers")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--every", type=int, default=10, help="checkpoint.every_iterations")
    parser.add_argument("--iterations", type=int, default=43)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout-s", type=float, default=600, help="of one job")
    parser.add_argument("--directory", type=pathlib.Path, help="on the disk to use; default: beside the binaries")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def job(arguments, every):
    base = networks.job("tiny", "ps", arguments.batch_size, arguments.iterations, 2048)
    return {**base, "name": f"every-{every}", "model": networks.mlp(arguments.width),
            "checkpoint": {"every_iterations": every, "keep": 1}}


def seconds_per_iteration(arguments, every, folder):
    """Mean of one run, without its first iterations; one worker, so a batch per iteration."""
    path = folder / "job.json"
    path.write_text(json.dumps(job(arguments, every)))
    run = folder / "run"
    done = subprocess.run([arguments.binaries / "poseidon", "local", path, "--workers", "1", "--servers", "1", "--run-dir", run],
                          capture_output=True, text=True, timeout=arguments.timeout_s)
    if done.returncode != 0:
        sys.exit(f"poseidon local: exit status {done.returncode}\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in next(run.rglob("metrics.jsonl")).read_text().splitlines()]
    rates = [line["images_per_s"] for line in lines if "images_per_s" in line][SKIPPED_ITERATIONS:]
    shutil.rmtree(run)
    return statistics.mean(arguments.batch_size / rate for rate in rates)


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(dir=arguments.directory or arguments.binaries.parent) as name:
        folder = pathlib.Path(name)
        rounds = []
        for i in range(arguments.rounds):
            order = [0, arguments.every] if i % 2 == 0 else [arguments.every, 0]
            times = {every: seconds_per_iteration(arguments, every, folder) for every in order}
            rounds.append({"without_s": times[0], "with_s": times[arguments.every]})
            print(f"round {i + 1}: {times[0]:.3f} s/iteration without, {times[arguments.every]:.3f} with", flush=True)
    ratios = [r["with_s"] / r["without_s"] for r in rounds]
    print(f"with / without: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "median_ratio": statistics.median(ratios)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
