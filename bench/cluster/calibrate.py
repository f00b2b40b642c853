#!/usr/bin/env -S python3 -B
"""Is the emulation true? Two questions, each with a limit: see bench/cluster/README.md. As root.

    bench/cluster/calibrate.py [--rounds 3]

 slow motion   the same cluster with a factor f and with 2 f: real seconds within 5 %
 real          a network that this machine's CPU really trains on shaped hosts, against the same job on an emulated device
               that takes the times that the real workers measured before the job: within 10 %

Exit status: 0 both hold, 1 one does not or a run failed, 77 such hosts cannot be made here.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(ROOT / "bench" / "common"), str(ROOT / "bench" / "shaped")]

import hosts  # noqa: E402
import machine  # noqa: E402
import measure_job  # noqa: E402
import networks  # noqa: E402
import run as grid  # noqa: E402
from cluster import Layout  # noqa: E402
from processes import ProcessError  # noqa: E402

SLOW_MOTION_LIMIT = 0.05
REAL_LIMIT = 0.10
PLACES = ["--networks", "vgg19,googlenet", "--nodes", "4", "--gbit", "10", "--devices", "modern-10x", "--variants", "poseidon",
          "--rounds", "1"]
REAL = [("conv", 2), ("fc", 2), ("conv", 4)]  # network of bench/shaped, workers
MBIT = 200
BATCH_SIZE = 64
CHUNK_KIB = 256
ITERATIONS = 20


def slow_motion(arguments, folder):
    """Ratios of real seconds per iteration, 2 f to f, of each place and round."""
    sys.argv[1:] = [*PLACES, "--iterations", "4", "--bin", str(arguments.bin)]
    options = grid.parse_arguments()
    measurer = grid.Measurer(options, folder)
    lines = []
    for place in grid.places(options):
        plan = measurer.plan(place, ["poseidon"])
        slow = grid.first_slow(place.nodes * plan["iteration_bytes"] / 2, place.nodes, plan["predicted"]["iteration_seconds"],
                               grid.cpu_s_per_gb(plan["chunk_bytes"]))
        for turn in range(arguments.rounds):
            order = [slow, 2 * slow] if turn % 2 == 0 else [2 * slow, slow]
            seconds = {}
            for factor in order:
                seconds[factor] = measurer.run(place, "poseidon", factor)
            lines.append({"place": place.name(), "f": slow, "busy": [seconds[slow].busy, seconds[2 * slow].busy],
                          "seconds": [seconds[slow].median_s, seconds[2 * slow].median_s],
                          "ratio": seconds[2 * slow].median_s / seconds[slow].median_s})
    return lines


def profile_of(network, calibration):
    """What the real workers measured, as a profile."""
    layers = [{"name": layer["name"], "forward_s": layer["forward_seconds"], "backward_s": layer["backward_seconds"]}
              for layer in calibration["layers"]]
    return {"network": network, "device": "this machine's core", "batch_size": BATCH_SIZE,
            # The measured product has the optimizer's step in it: no more is charged for that.
            "device_flops": calibration["device_ops_per_s"], "device_bytes_per_s": 1e18, "layers": layers}


def real(arguments, folder):
    """A real job and its emulation, in turns."""
    lines = []
    for network, workers in REAL:
        layout = Layout(workers, workers, True, MBIT, "cubic")
        for turn in range(arguments.rounds):
            here = folder / f"real-{network}-{workers}-{turn}"
            count = measure_job.WARM_UP + ITERATIONS + 1
            job = networks.job(network, "auto", BATCH_SIZE, count, CHUNK_KIB)
            truly = measure_job.run(layout, arguments.bin, job, ITERATIONS, here / "real")
            if truly.calibration is None:
                raise ProcessError(f"the coordinator measured nothing before the job: {here}/real/run/plan.json says why")
            profile = here / "profile.json"
            profile.write_text(json.dumps(profile_of(network, truly.calibration)))
            job = networks.job(network, "auto", BATCH_SIZE, count, CHUNK_KIB, plan=here / "real" / "run" / "plan.json")
            emulated = measure_job.run(layout, arguments.bin, job, ITERATIONS, here / "emulated",
                                       ["poseidon-bench-worker", "--profile", profile, "--threads", "1"])
            lines.append({"place": f"{network}, {workers} workers", "compute_s": truly.predicted["compute_seconds"],
                          "seconds": [truly.mean_s, emulated.mean_s], "ratio": emulated.mean_s / truly.mean_s})
            print(f"{lines[-1]['place']}: real {truly.mean_s:.4f} s, emulated {emulated.mean_s:.4f} s; computing "
                  f"{truly.predicted['compute_seconds']:.4f} s", flush=True)
            shutil.rmtree(here)
    return lines


def judge(what, lines, limit):
    """Medians over the rounds of each place; whether all are within the limit."""
    good = True
    print(f"\n{what}: within {limit:.0%}")
    for place in dict.fromkeys(line["place"] for line in lines):
        ratio = statistics.median(line["ratio"] for line in lines if line["place"] == place)
        holds = abs(ratio - 1) <= limit
        good &= holds
        print(f"  {place}: {ratio:.3f} {'' if holds else '  NOT within'}")
    return good


def main():
    parser = argparse.ArgumentParser(description="Compares the emulation with itself and with a real cluster.")
    parser.add_argument("--rounds", type=grid.number(1, 100), default=3, help="default %(default)s")
    parser.add_argument("--bin", type=pathlib.Path, default=grid.BUILD / "bin", help="the programs, default %(default)s")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "bench" / "results" / "calibration.json")
    arguments = parser.parse_args()
    machine.clean_up_on_signals()
    hosts.exit_unless_possible()
    folder, head = machine.begin_run("cluster", "calibrate-%Y%m%d-%H%M%S")
    really = real(arguments, folder)
    slowed = slow_motion(arguments, folder)
    good = [judge("2 f to f", slowed, SLOW_MOTION_LIMIT), judge("emulated to real", really, REAL_LIMIT)]
    machine.write_result(arguments.json, {**head, "slow_motion": slowed, "real": really})
    shutil.rmtree(folder)
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("calibrate.py: interrupted; the hosts are removed")
    except (hosts.HostsError, ProcessError) as error:
        sys.exit(f"calibrate.py: {error}")
