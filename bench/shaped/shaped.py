#!/usr/bin/env -S python3 -B
"""Times an iteration under each sync.scheme on hosts with slow network cards: see bench/README.md. As root.

    bench/shaped/shaped.py           fully connected and convolutional network, 200 Mbit/s, 4 workers, 2 servers
    bench/shaped/shaped.py --tiny    does it run here? seconds

Exit status: 0 measured, 1 a job failed, 77 such hosts cannot be made here (which ctest calls skipped).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(ROOT / "bench" / "common")]

import hosts  # noqa: E402
import machine  # noqa: E402
import measure_job  # noqa: E402
import networks  # noqa: E402
from cluster import Layout  # noqa: E402
from processes import ProcessError  # noqa: E402

BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
SCHEMES = ["ps", "sfb", "auto", "planned"]


def words_of(known):
    def parse(text):
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return text.split(",")
    return parse


def number(least, most):
    def parse(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}': a whole number from {least} to {most}")
        return int(text)
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description="Seconds per iteration and bytes per host under sync.scheme ps, sfb "
                                     "and auto, on hosts whose network cards are shaped (network namespaces, tbf).")
    parser.add_argument("--networks", type=words_of(networks.NETWORKS), help="default fc,conv")
    parser.add_argument("--schemes", type=words_of(SCHEMES), default=SCHEMES[:3],
                        help="default ps,sfb,auto; planned: pins what `poseidon plan` says for this rate")
    parser.add_argument("--rounds", type=number(1, 100), help="default 3")
    parser.add_argument("--workers", type=number(1, 16), default=4, help="default %(default)s")
    parser.add_argument("--servers", type=number(1, 16), default=2, help="default %(default)s")
    parser.add_argument("--servers-with-workers", action="store_true", help="no hosts of their own for servers")
    parser.add_argument("--mbit", type=number(1, 100000), default=200, help="of every card, each way; default %(default)s")
    parser.add_argument("--batch-size", type=number(1, 65536), default=16, help="per worker; default %(default)s")
    parser.add_argument("--chunk-kib", type=number(4, 65536), default=256,
                        help="sync.chunk_bytes / 1024; default %(default)s, not a job's 2048, which this rate is too slow for")
    parser.add_argument("--congestion-control", help="TCP's on these hosts, such as cubic; default this machine's")
    parser.add_argument("--bin", type=pathlib.Path, default=BUILD / "bin", help="the programs, default %(default)s")
    parser.add_argument("--json", type=pathlib.Path, help="the result, default build/shaped/TIME/result.json")
    parser.add_argument("--tiny", action="store_true", help="quick check that it runs: a small network, 1 round")
    arguments = parser.parse_args()
    arguments.networks = arguments.networks or (["tiny"] if arguments.tiny else ["fc", "conv"])
    arguments.rounds = arguments.rounds or (1 if arguments.tiny else 3)
    return arguments


def plan_for_rate(arguments, network, folder):
    """What `poseidon plan` says for this network on these hosts; the file to pin."""
    job = folder / f"{network}.json"
    job.write_text(json.dumps(networks.job(network, "auto", arguments.batch_size, 1, arguments.chunk_kib)))
    command = [arguments.bin / "poseidon", "plan", job, "--workers", arguments.workers, "--servers", arguments.servers,
               "--bandwidth", f"{arguments.mbit}mbit", "--device-flops", "20G", "--json"]
    if not arguments.servers_with_workers:
        command.append("--separate-servers")
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)
    if done.returncode != 0:
        raise ProcessError(f"poseidon plan: {done.stderr.strip()}")
    plan = folder / f"{network}-plan.json"
    plan.write_text(done.stdout)
    return plan


class Results:
    """Measurements of one network: scheme -> one per round."""

    def __init__(self, network):
        self.network = network
        self.rounds = {}

    def add(self, scheme, measurement):
        self.rounds.setdefault(scheme, []).append(measurement)

    def median(self, scheme, of):
        return statistics.median(of(one) for one in self.rounds[scheme])

    def ratio(self, over, under):
        """Median of the ratios of the same round; of several `under` the fastest in that round counts."""
        if any(scheme not in self.rounds for scheme in (over, *under)):
            return None
        return statistics.median(
            one.mean_s / min(other.mean_s for other in others)
            for one, *others in zip(self.rounds[over], *(self.rounds[scheme] for scheme in under)))

    def ratios(self):
        known = {"auto / ps": ("auto", ["ps"]), "auto / better of ps and sfb": ("auto", ["ps", "sfb"]),
                 "planned / better of ps and sfb": ("planned", ["ps", "sfb"])}
        return {name: self.ratio(*what) for name, what in known.items() if self.ratio(*what) is not None}

    def to_json(self, layout):
        return {"network": self.network, "about": networks.NETWORKS[self.network].about, "ratios": self.ratios(),
                "schemes": {scheme: {"seconds_per_iteration": self.median(scheme, lambda one: one.mean_s),
                                     "layers": rounds[0].schemes,
                                     "rounds": [dataclasses.asdict(one) for one in rounds]}
                            for scheme, rounds in self.rounds.items()},
                "hosts": host_names(layout)}

    def print_table(self, layout):
        print(f"\n{self.network}: {networks.NETWORKS[self.network].about}")
        print(f"{'':10}{'s/iteration':>12}{'least':>9}{'greatest':>9}{'MB/worker':>11}{'MB/server':>11}{'link busy':>11}"
              "   layers by SFB")
        for scheme, rounds in self.rounds.items():
            means = [one.mean_s for one in rounds]
            workers = self.median(scheme, lambda one: mean_bytes(one, worker_hosts(layout)))
            servers = self.median(scheme, lambda one: mean_bytes(one, server_hosts(layout)))
            busy = self.median(scheme, lambda one: one.busiest_bytes() * 8 / (layout.mbit * 1e6) / one.mean_s)
            by_sfb = [name for name, chosen in rounds[0].schemes.items() if chosen == "sfb"]
            print(f"{scheme:10}{statistics.median(means):12.4f}{min(means):9.4f}{max(means):9.4f}{workers / 1e6:11.3f}"
                  f"{servers / 1e6:11.3f}{busy:11.0%}   {' '.join(by_sfb) or '-'}")
        for name, value in self.ratios().items():
            print(f"{name}: {value:.3f}")
        for one in self.rounds.get("auto", []):
            if one.predicted:
                nic = one.calibration["workers"][0]
                print(f"auto: predicted {one.predicted['iteration_seconds']:.4f} s, measured {one.mean_s:.4f} s; all by ps "
                      f"predicted {one.predicted['all_ps_seconds']:.4f}, all by sfb {one.predicted['all_sfb_seconds']:.4f}; "
                      f"calibrated network {nic['send_bytes_per_s'] * 8e-6:.0f} Mbit/s, computing "
                      f"{one.predicted['compute_seconds']:.4f} s")


def worker_hosts(layout):
    return [layout.worker_host(index) for index in range(layout.workers)]


def server_hosts(layout):
    return [layout.server_host(index) for index in range(layout.servers)]


def host_names(layout):
    names = [["coordinator"]] + [[] for _ in range(layout.hosts - 1)]
    for kind, places in (("worker", worker_hosts(layout)), ("server", server_hosts(layout))):
        for index, host in enumerate(places):
            names[host].append(f"{kind} {index}")
    return [", ".join(name) for name in names]


def mean_bytes(measurement, places):
    """Sent and received, per host and iteration."""
    return sum(measurement.sent_bytes[host] + measurement.received_bytes[host] for host in places) / len(places)


def measure(arguments, layout, network, folder):
    """All rounds of all schemes, in turn; each round begins with another one."""
    results = Results(network)
    plan = plan_for_rate(arguments, network, folder) if "planned" in arguments.schemes else None
    for turn in range(arguments.rounds):
        shift = turn % len(arguments.schemes)
        for scheme in arguments.schemes[shift:] + arguments.schemes[:shift]:
            measured = networks.NETWORKS[network].iterations[scheme]
            job = networks.job(network, scheme, arguments.batch_size, measure_job.WARM_UP + measured + 1, arguments.chunk_kib,
                               plan if scheme == "planned" else None)
            one = measure_job.run(layout, arguments.bin, job, measured, folder / f"{network}-{scheme}-{turn}")
            results.add(scheme, one)
            print(f"{network}, round {turn + 1}: {scheme} {one.mean_s:.4f} s", flush=True)
    return results


def main():
    arguments = parse_arguments()
    machine.clean_up_on_signals()
    hosts.exit_unless_possible(arguments.mbit, arguments.congestion_control)
    layout = Layout(arguments.workers, arguments.servers, arguments.servers_with_workers, arguments.mbit,
                    arguments.congestion_control)
    folder, head = machine.begin_run("shaped")
    head["arguments"] = machine.as_json(arguments)
    print(f"{layout.workers} workers, {layout.servers} servers {'with them' if layout.servers_with_workers else 'apart'}, "
          f"{layout.mbit} Mbit/s each way, batch {arguments.batch_size} per worker; auto measures before the job "
          "(sync.cost time)", flush=True)
    done = []
    for network in arguments.networks:
        results = measure(arguments, layout, network, folder)
        results.print_table(layout)
        done.append(results.to_json(layout))
        # After every network: an interrupted run keeps what it has.
        result = arguments.json or folder / "result.json"
        machine.write_result(result, {**head, "networks": done})
    print(f"\nall rounds: {result}")
    for leftover in folder.iterdir():  # what the jobs wrote is large; a failed run keeps it
        if leftover.is_dir():
            shutil.rmtree(leftover)
    if arguments.json:
        shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("shaped.py: interrupted; the hosts are removed")
    except (hosts.HostsError, ProcessError) as error:
        sys.exit(f"shaped.py: {error}")
