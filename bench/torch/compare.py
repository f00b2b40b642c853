#!/usr/bin/env -S python3 -B
"""PyTorch scripts with Poseidon and with DDP in turns, on hosts with shaped cards: see bench/README.md. As root.

    bench/torch/compare.py --python VENV/bin/python                          4 workers, 1 Gbit/s
    bench/torch/compare.py --python VENV/bin/python --networks deep --workers 1   what hooks cost: alone beside Poseidon

Exit status: 0 measured, 1 a run failed, 77 such hosts cannot be made here (which ctest calls skipped).
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(ROOT / "bench" / "common")]

import hosts  # noqa: E402
import machine  # noqa: E402
import torch_gloo  # noqa: E402
from cluster import Cluster, Layout  # noqa: E402
from processes import ProcessError, Processes  # noqa: E402

BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
ENGINES = ["alone", "ddp", "ddp-bf16", "ddp-powersgd", "poseidon", "poseidon-bf16"]
NETWORKS = ["mlp", "conv", "gpt", "deep"]
TIMEOUT_S = 300


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="one with torch, default %(default)s")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS[:3])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["ddp", "poseidon"])
    parser.add_argument("--workers", type=int, default=4, help="as many servers are with them; default %(default)s")
    parser.add_argument("--mbit", type=float, default=1000, help="of every card, each way; default %(default)s; 0: not shaped")
    parser.add_argument("--batch-size", type=int, default=16, help="per worker; default %(default)s")
    parser.add_argument("--iterations", type=int, default=10, help="measured, of each run; default %(default)s")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="the result, default build/bench-torch/TIME/result.json")
    return parser.parse_args()


def rank_command(arguments, engine, network):
    return [arguments.python, "-B", FOLDER / "rank.py", "--engine", engine, "--network", network, "--batch-size", arguments.batch_size,
            "--warm-up", arguments.warm_up, "--iterations", arguments.iterations]


def run_peers(arguments, engine, network, folder):
    """DDP: a process per host, no servers. Alone: the first of them, without the others."""
    folder.mkdir(parents=True)
    workers = 1 if engine == "alone" else arguments.workers
    with hosts.NamespaceHosts(workers, arguments.mbit or None) as there, Processes(folder, TIMEOUT_S) as processes:
        ranks = [processes.start(f"rank-{rank}", there.command(rank, rank_command(arguments, engine, network)),
                                 {"MASTER_ADDR": there.address(0), "MASTER_PORT": str(torch_gloo.PORT), "RANK": str(rank),
                                  "WORLD_SIZE": str(workers), "PYTHONPATH": str(ROOT / "python"),
                                  **torch_gloo.environment(there.interface, tuned=True)})
                 for rank in range(workers)]
        said = [rank.expect("seconds") for rank in ranks]
    return {"seconds": max(one["seconds"] for one in said), "cpu_seconds": sum(one["cpu_seconds"] for one in said), "bytes": said[0]["bytes"]}


def iterations_of(run_dir):
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def run_poseidon(arguments, engine, network, folder):
    run_dir = folder / "run" / "bench"
    outs = [folder / f"rank-{rank}.json" for rank in range(arguments.workers)]
    worker = ["/usr/bin/env", lambda rank: f"RANK={rank}", f"WORLD_SIZE={arguments.workers}", f"POSEIDON_SERVERS={arguments.workers}",
              f"POSEIDON_RUN_DIR={run_dir}", f"PYTHONPATH={ROOT / 'python'}", f"POSEIDON_CLIENT_LIBRARY={BUILD / 'bin' / 'libposeidon_client.so'}", "OMP_NUM_THREADS=1",
              *rank_command(arguments, engine, network), "--out", lambda rank: outs[rank]]
    layout = Layout(arguments.workers, arguments.workers, True, arguments.mbit or None)
    with Cluster(layout, BUILD / "bin", folder, TIMEOUT_S, worker) as cluster:
        before = None
        while not all(out.exists() and out.read_text() for out in outs):
            cluster.check_not_failed()
            if before is None and iterations_of(run_dir) >= arguments.warm_up:
                before = cluster.cpu_seconds("server")
            time.sleep(0.01)
        servers = (cluster.cpu_seconds("server") - before) / arguments.iterations
    said = [json.loads(out.read_text()) for out in outs]
    return {"seconds": max(one["seconds"] for one in said), "cpu_seconds": servers + sum(one["cpu_seconds"] for one in said),
            "bytes": said[0]["bytes"]}


def measure(arguments, network, folder):
    rounds = {engine: [] for engine in arguments.engines}
    for turn in range(arguments.rounds):
        shift = turn % len(arguments.engines)
        for engine in arguments.engines[shift:] + arguments.engines[:shift]:
            run = run_poseidon if engine.startswith("poseidon") else run_peers
            one = run(arguments, engine, network, folder / f"{network}-{engine}-{turn}")
            rounds[engine].append(one)
            print(f"{network}, round {turn + 1}: {engine} {one['seconds']:.4f} s, CPU {one['cpu_seconds']:.4f} s", flush=True)
    return rounds


def ratios(rounds, key):
    """Medians of the ratios, of the same round, to the first engine."""
    first, *others = rounds
    return {f"{engine} / {first}": statistics.median(one[key] / base[key] for one, base in zip(rounds[engine], rounds[first]))
            for engine in others}


def main():
    arguments = parse_arguments()
    machine.clean_up_on_signals()
    if reason := torch_gloo.why_not(arguments.python):
        print(f"skipped: {reason}")
        sys.exit(hosts.SKIPPED)
    hosts.exit_unless_possible(arguments.mbit or None)
    folder, head = machine.begin_run("bench-torch")
    head["arguments"] = machine.as_json(arguments)
    done = []
    for network in arguments.networks:
        rounds = measure(arguments, network, folder)
        print(f"\n{network}: {rounds[arguments.engines[0]][0]['bytes'] / 1e6:.1f} MB, {arguments.workers} workers, {arguments.mbit:g} Mbit/s")
        for engine, ones in rounds.items():
            print(f"  {engine:14} {statistics.median(one['seconds'] for one in ones):.4f} s per iteration, "
                  f"CPU {statistics.median(one['cpu_seconds'] for one in ones):.4f} s of all processes")
        for key in ("seconds", "cpu_seconds"):
            for name, value in ratios(rounds, key).items():
                print(f"  {key}: {name} {value:.3f}")
        done.append({"network": network, "rounds": rounds, "ratios": {key: ratios(rounds, key) for key in ("seconds", "cpu_seconds")}})
        machine.write_result(arguments.json or folder / "result.json", {**head, "networks": done})
    for leftover in folder.iterdir():  # a failed run keeps it
        if leftover.is_dir():
            shutil.rmtree(leftover)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("compare.py: interrupted; the hosts are removed")
    except (hosts.HostsError, ProcessError) as error:
        sys.exit(f"compare.py: {error}")
