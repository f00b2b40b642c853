#!/usr/bin/env -S python3 -B
"""Measures a grid of runs on the emulated cluster: see bench/cluster/README.md. As root.

    bench/cluster/run.py --grid headline            a grid by its name
    bench/cluster/run.py --networks vgg19 --nodes 2,4 --gbit 10 --variants poseidon,ddp-tuned
    bench/cluster/run.py --grid smoke               does it run here? a minute

Exit status: 0 measured (runs that are void are named, and left out of charts), 1 a run failed, 77 such hosts cannot be made here (which ctest calls skipped).
"""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import shlex
import shutil
import statistics
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(ROOT / "bench" / "common")]

import device_profile  # noqa: E402
import hosts  # noqa: E402
import machine  # noqa: E402
import peers  # noqa: E402
import poseidon_run  # noqa: E402
import profiles  # noqa: E402
import results  # noqa: E402
import torch_gloo  # noqa: E402
from processes import ProcessError  # noqa: E402

BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
PEER_WARM_UP = 3
BYTES_PER_PARAMETER = 4

# The slow-motion factor where none is given: so that the machine's cores are about this busy ...
WANTED_BUSY = 0.4
# ... by what moving gradients costs on it (all ends, cards and switch): CPU seconds per GB that a host receives, per
# message of ours, and per worker and iteration. Peers were seen at 0.6 to 1.4 per GB.
CPU_S_PER_GB = 1.5
CPU_S_PER_MESSAGE = 130e-6
PEER_CPU_S_PER_GB = 1.0
CPU_S_PER_WORKER = 0.1
TOO_BUSY = 0.6            # a place with a run above it is repeated with a larger factor; above measurement.VOID_BUSY it is void
MAX_TRIES = 3             # of a place
LEAST_ITERATION_S = 1.0   # of slow motion: what the host's scheduler adds stays below a percent


@dataclasses.dataclass(frozen=True)
class Grid:
    about: str
    networks: list
    nodes: list
    gbit: list
    devices: list
    variants: list
    rounds: int = 3
    iterations: int = 3
    slow: float | None = None  # the factor, where it is known


PROGRAMS = ("poseidon", "poseidon-coordinator", "poseidon-server", "poseidon-bench-worker")
ALL = list(profiles.NETWORKS)
GRIDS = {
    "headline": Grid("VGG19-22K at 40 GbE", ["vgg19_22k"], [2, 4, 8, 16, 32], [40], ["titan-x"], ["poseidon"]),
    "inception": Grid("Inception-V3 on 32 nodes at 40 GbE", ["inception_v3"], [32], [40], ["titan-x"], ["poseidon"]),
    "ten-gbit": Grid("16 nodes at 10 GbE", ALL, [16], [10], ["titan-x"], ["poseidon"]),
    "modern": Grid("a card ten times as fast, beside the peers", ALL, [8, 16], [10, 25], ["modern-10x"],
                   ["poseidon", "ddp", "ddp-tuned", "ddp-tuned-fp16", "ddp-powersgd", "mpi"]),
    "ablations": Grid("what each part is good for", ["vgg19_22k"], [8], [10], ["titan-x"], list(poseidon_run.VARIANTS), slow=26),
    "bandwidth": Grid("speed-up over bandwidth", ["vgg19_22k", "vgg19"], [8], [1, 2, 5, 10, 25, 40], ["titan-x"],
                      ["poseidon", "ps-only", "ddp-tuned"]),
    "several-devices": Grid("four workers on each of four hosts", ["vgg19", "resnet152"], [4], [10, 25], ["titan-x", "modern-10x"],
                            ["four-devices", "four-devices-each"]),
    "smoke": Grid("does it run?", ["googlenet"], [2, 4], [10], ["titan-x"], ["poseidon"], rounds=1, iterations=2),
}


def words_of(known):
    def parse(text):
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return text.split(",")
    return parse


def numbers(least, most, kind=int):
    def parse(text):
        try:
            found = [kind(word) for word in text.split(",")]
        except ValueError:
            found = [least - 1]
        if not all(least <= number <= most for number in found):
            raise argparse.ArgumentTypeError(f"'{text}': numbers from {least} to {most}, such as {least},{most}")
        return found
    return parse


def number(least, most, kind=int):
    def parse(text):
        one, *more = numbers(least, most, kind)(text)
        if more:
            raise argparse.ArgumentTypeError(f"'{text}': one number")
        return one
    return parse


def parse_arguments():
    known = [*poseidon_run.VARIANTS, *peers.NAMES]
    parser = argparse.ArgumentParser(description="Real daemons, and peers, on hosts with shaped cards, in slow motion: "
                                     "devices are emulated.")
    parser.add_argument("--grid", choices=GRIDS, default="headline",
                        help="; ".join(f"{name}: {grid.about}" for name, grid in GRIDS.items()))
    parser.add_argument("--networks", type=words_of(profiles.NETWORKS), help="instead of the grid's")
    parser.add_argument("--nodes", type=numbers(1, 64), help="likewise")
    parser.add_argument("--gbit", type=numbers(0.1, 400, float), help="likewise; of every card, each way")
    parser.add_argument("--devices", type=words_of(profiles.DEVICES), help="likewise")
    parser.add_argument("--variants", type=words_of(known), help="likewise; of " + ", ".join(known))
    parser.add_argument("--rounds", type=number(1, 100), help="likewise; variants take turns")
    parser.add_argument("--iterations", type=number(1, 1000), help="likewise; measured per run")
    parser.add_argument("--slow", type=number(0.01, 100000, float),
                        help="the slow-motion factor; default: the grid's, or so that this machine's cores are 40 %% busy")
    parser.add_argument("--profile", type=pathlib.Path, help="a profile of your own, instead of --networks and --devices")
    parser.add_argument("--python", default=torch_gloo.default_python(), help="interpreter with torch, default %(default)s")
    parser.add_argument("--horovod-python", help="interpreter with Horovod")
    parser.add_argument("--bin", type=pathlib.Path, default=BUILD / "bin", help="the programs, default %(default)s")
    parser.add_argument("--json", type=pathlib.Path, help="the result, default bench/results/GRID.json")
    parser.add_argument("--add", action="store_true",
                        help="more rounds to those that the result has, of the same programs: a grid need not fit into an evening")
    arguments = parser.parse_args()
    grid = GRIDS[arguments.grid]
    for name in ("networks", "nodes", "gbit", "devices", "variants", "rounds", "iterations", "slow"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(grid, name))
    return arguments


def cpu_s_per_gb(chunk_bytes):
    """Of ours in chunks of so many bytes."""
    return CPU_S_PER_GB + 1e9 / chunk_bytes * CPU_S_PER_MESSAGE


def first_slow(cpu_bytes, nodes, iteration_s, per_gb):
    """The factor at which moving so many bytes keeps the machine's cores as busy as wanted."""
    cpu_s = cpu_bytes / 1e9 * per_gb + nodes * CPU_S_PER_WORKER
    return max(LEAST_ITERATION_S, cpu_s / WANTED_BUSY / os.cpu_count()) / iteration_s


def best_scheme_bytes(plan):
    """Sent and received by a node in an iteration if each layer took the scheme that moves less."""
    return sum(min(layer["ps_bytes"], layer["sfb_bytes"]) if layer["type"] == "fully_connected" else layer["ps_bytes"]
               for layer in plan["layers"])


def several_devices(variant):
    """Workers on each host."""
    return poseidon_run.VARIANTS[variant].workers_per_host if variant in poseidon_run.VARIANTS else 1


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a group of variants is compared."""

    profile: dict
    input_size: int
    nodes: int
    gbit: float

    def key(self):
        """As results.key() begins."""
        return self.profile["network"], self.profile["device"], self.nodes, self.gbit

    def name(self):
        return f"{self.profile['network']}-{self.profile['device']}-{self.nodes}x{self.gbit:g}g"


class Measurer:
    def __init__(self, arguments, folder):
        self._arguments = arguments
        self._folder = folder
        self._runs = 0

    def why_not(self, variant):
        if variant in poseidon_run.VARIANTS:
            worker = self._arguments.bin / "poseidon-bench-worker"
            return None if worker.is_file() else f"{worker} is missing: cmake --preset release && cmake --build --preset release"
        return peers.why_not(variant, self._arguments.python, self._arguments.horovod_python)

    def plan(self, place, variants):
        """Of all of Poseidon, which gives the bound too; with as many workers on a host as the first variant has."""
        planned = variants[0] if several_devices(variants[0]) > 1 else "poseidon"
        return poseidon_run.plan_of(self._arguments.bin, place.profile, place.input_size, place.nodes, place.gbit,
                                    poseidon_run.VARIANTS[planned], self._folder / "plan")[2]

    def run(self, place, variant, slow):
        self._runs += 1
        folder = self._folder / f"{self._runs:03}-{place.name()}-{variant}"
        if variant in poseidon_run.VARIANTS:
            measured = poseidon_run.run(self._arguments.bin, place.profile, place.input_size, place.nodes, place.gbit, slow,
                                        poseidon_run.VARIANTS[variant], self._arguments.iterations, folder).measurement
        else:
            with hosts.NamespaceHosts(place.nodes, place.gbit * 1000 / slow, poseidon_run.CONGESTION_CONTROL, slow) as made:
                measured = peers.run(variant, made, device_profile.parse(place.profile), slow, self._arguments.iterations,
                                     PEER_WARM_UP, folder, timeout_s=3600, python=self._arguments.python,
                                     horovod_python=self._arguments.horovod_python)
        shutil.rmtree(folder)  # a failed run keeps what it wrote
        print(f"{place.name()} {variant}: {measured.median_s:.4f} s, f {slow:.3g}, cores {measured.busy:.0%} busy, "
              f"{max(map(sum, zip(measured.sent_bytes, measured.received_bytes))) / 1e6:.0f} MB per node", flush=True)
        return measured


def slow_for_all(place, variants, plan, bound_s):
    """One factor for all variants of a place, the largest that one of them needs: what takes the processor's time is divided
    by it, so that of two the one with the larger factor would be flattered."""
    rate = place.gbit * 1e9 / 8

    def needed(variant):
        is_ours = variant in poseidon_run.VARIANTS
        moved = plan["iteration_bytes"] if is_ours else 2 * 2 * BYTES_PER_PARAMETER * profiles.parameters(place.profile)
        per_gb = cpu_s_per_gb(poseidon_run.VARIANTS[variant].chunk_bytes or plan["chunk_bytes"]) if is_ours else PEER_CPU_S_PER_GB
        return first_slow(place.nodes * moved / 2, place.nodes, max(bound_s, moved / 2 / rate), per_gb)

    return max(map(needed, variants))


def take_turns(measurer, place, variants, slow, rounds, most_busy):
    """(runs of each variant, those that failed, None): all rounds, each of which begins with another variant. Where a run had
    the cores busier than `most_busy` it ends there, and the last is how busy."""
    runs, failed = {}, []
    for turn in range(rounds):
        shift = turn % len(variants)
        for variant in variants[shift:] + variants[:shift]:
            if variant in failed:
                continue
            try:
                measured = measurer.run(place, variant, slow)
            except ProcessError as error:
                print(f"{place.name()} {variant} FAILED: {error}", flush=True)
                failed.append(variant)
                continue
            if measured.busy > most_busy:
                return runs, failed, measured.busy
            runs.setdefault(variant, []).append(measured)
    return runs, failed, None


def measure(measurer, place, variants, arguments, slow=None):
    """Rows of all variants at one place, all at the same factor: `slow`, or one that is large enough for each of them."""
    plan = measurer.plan(place, variants)
    compute_s = profiles.compute_s(place.profile)
    bound_s = max(compute_s, best_scheme_bytes(plan) / 2 / (place.gbit * 1e9 / 8))
    fixed = slow is not None
    slow = slow if fixed else slow_for_all(place, variants, plan, bound_s)
    for left in reversed(range(MAX_TRIES)):
        runs, failed, busy = take_turns(measurer, place, variants, slow, arguments.rounds,
                                        math.inf if fixed or left == 0 else TOO_BUSY)
        if busy is None:
            break
        slow *= busy / WANTED_BUSY
        print(f"{place.name()}: cores were {busy:.0%} busy; all variants again, at f {slow:.3g}", flush=True)
    return [row(place, variant, done, slow, compute_s, bound_s) for variant, done in runs.items()], failed


def row(place, variant, runs, slow, compute_s, bound_s):
    """As results.py describes it."""
    seconds = [one.median_s for one in runs]
    middle = statistics.median(seconds)
    # The median run's own figures, not a mixture.
    typical = min(runs, key=lambda one: abs(one.median_s - middle))
    return {"network": place.profile["network"], "profile": place.profile["device"], "hosts": place.nodes,
            "gbit": place.gbit, "variant": variant, "f": round(slow, 3), "seconds": seconds,
            "speedup": place.nodes * several_devices(variant) * compute_s / middle,
            "bytes_per_host": max(map(sum, zip(typical.sent_bytes, typical.received_bytes))),
            "cpu_seconds": typical.cpu_seconds, "busy": max(one.busy for one in runs), "compute_s": compute_s,
            "bound_s": bound_s, "stall_s": typical.stall_s}


def places(arguments):
    poseidon = arguments.bin / "poseidon"
    if arguments.profile:
        made = [json.loads(arguments.profile.read_text(encoding="utf-8"))]
    else:
        made = [profiles.make(poseidon, network, device) for network in arguments.networks for device in arguments.devices]
    for profile in made:
        device_profile.parse(profile)  # what is wrong with it is said here
        size = profiles.describe(poseidon, profile["network"])["layers"][0]["input_shape"][1]
        for gbit in arguments.gbit:
            for nodes in arguments.nodes:
                yield Place(profile, size, nodes, gbit)


def programs_of(arguments, variants):
    """What is measured, as results.py describes it."""
    found = {name: hashlib.sha256((arguments.bin / name).read_bytes()).hexdigest() for name in PROGRAMS
             if (arguments.bin / name).is_file()}
    if any(variant in peers.DDP for variant in variants):
        found["torch"] = machine.first_line(arguments.python, "-c", "import torch; print(torch.__version__)")
    return found


def slow_at(place, arguments, rows):
    """The factor that is given, or that the rows to which rounds are added have; None: to be found."""
    before = results.factor_at(rows, *place.key())
    if before and arguments.slow and not results.same_f([before, arguments.slow]):
        raise results.ResultsError(f"{place.name()}: --slow {arguments.slow:g}, but what is added to was measured at f {before:g}; "
                                   "leave --slow out, or give another --json")
    return before or arguments.slow


def main():
    arguments = parse_arguments()
    machine.clean_up_on_signals()
    hosts.exit_unless_possible(1000, poseidon_run.CONGESTION_CONTROL)
    folder, head = machine.begin_run("cluster")
    head["command"] = shlex.join(["bench/cluster/run.py", *sys.argv[1:]])
    measurer = Measurer(arguments, folder)
    variants = []
    for variant in arguments.variants:
        why_not = measurer.why_not(variant)
        if why_not:
            print(f"{variant}: skipped: {why_not}", flush=True)
        else:
            variants.append(variant)
    if not variants:
        sys.exit("run.py: no variant is left to run")
    head["programs"] = programs_of(arguments, variants)
    result = arguments.json or ROOT / "bench" / "results" / f"{arguments.grid}.json"
    by_key = {}
    if arguments.add and result.exists():
        before, heads = results.load([result])
        try:
            results.check_same_programs(head["programs"], heads[0])
        except results.ResultsError as error:
            sys.exit(f"run.py: {result} {error}")
        by_key = {results.key(row): row for row in before}
        head["earlier"] = heads[0].pop("earlier", []) + heads
    failed = []
    # All factors before the first run: what cannot be added is said at once.
    for place, slow in [(place, slow_at(place, arguments, by_key.values())) for place in places(arguments)]:
        more, bad = measure(measurer, place, variants, arguments, slow)
        for row_of_place in more:
            key = results.key(row_of_place)
            by_key[key] = results.merged(by_key[key], row_of_place) if key in by_key else row_of_place
        failed += [f"{place.name()} {variant}" for variant in bad]
        # After every place: an interrupted run keeps what it has.
        machine.write_result(result, {**head, "rows": list(by_key.values())})
    rows = list(by_key.values())
    print("\n" + results.tables(rows) if rows else "nothing was measured")
    print(f"all of it: {result}")
    void = [one for one in rows if results.is_void(one)]
    for one in void:
        print(f"void, cores {one['busy']:.0%} busy: {one['network']} {one['hosts']} nodes {one['variant']}")
    if failed:
        print(f"failed: {', '.join(failed)}; what they wrote: {folder}")
    else:
        shutil.rmtree(folder)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("run.py: interrupted; the hosts are removed")
    except (hosts.HostsError, ProcessError, device_profile.ProfileError, results.ResultsError, RuntimeError, OSError) as error:
        sys.exit(f"run.py: {error}")
