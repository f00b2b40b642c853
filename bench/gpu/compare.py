#!/usr/bin/env python3
"""Training speed on a GPU beside PyTorch on the same one: forward and backward of the same networks, in turns.

    bench/gpu.sh compare [--networks vgg19,resnet50] [--batches 64,32,128,256] [--precisions bf16,tf32,fp32] [--no-compile]
                         [--skip-done compare.json]

For each network, batch size and precision every variant is one process, all on the same GPU, that measures for a
moment whenever it is its turn; the others wait meanwhile. PyTorch: with and without channels_last, autocast for bf16 and
fp16; with torch.compile in cells of their own, as that takes minutes (cells.py has the order). A variant that fails (out
of memory, say) is named and left out. Ratios are medians over rounds of the ratio within a round; `best` is the fastest
of a cell's variants of PyTorch. --skip-done goes on where an earlier call stopped, and puts its figures before the new.
"""

import argparse
import dataclasses
import datetime
import json
import pathlib
import signal
import statistics
import sys
import tempfile
import time

import cells

from common import OURS, PRECISIONS, ROOT, BenchError, Contender, about, add_options, machine, numbers, ours, parse, words

NETWORKS = (*cells.GOALS, "alexnet")
TORCH_ENGINE = ROOT / "bench" / "engine" / "torch_engine.py"


# Of a call's first cell, whatever the budget: machines that are lent end a command soon after.
FIRST_LIMIT_S = 540.0


@dataclasses.dataclass
class Row:
    network: str
    batch: int
    precision: str
    compiled: bool  # whether the cell is the one with torch.compile
    variant: str
    images_per_s: float
    ratio: float  # of our images/s to this variant's
    spread: float  # of its rounds: (largest - smallest) / median
    device_peak_mib: float
    rounds: list


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--networks", type=words(), default=list(NETWORKS), help=f"default {','.join(NETWORKS)}")
    parser.add_argument("--batches", type=numbers, default=[64, 32, 128, 256], help="the first is measured first, default 64,32,128,256")
    parser.add_argument("--precisions", type=words(PRECISIONS), default=["bf16", "tf32"],
                        help=f"of {', '.join(PRECISIONS)}; default bf16,tf32")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes minutes per cell")
    parser.add_argument("--skip-done", type=pathlib.Path, metavar="FILE", help="a compare.json: measure what it has not")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--turn-s", type=float, default=1.0, help="about how long a turn lasts, default %(default)s")
    parser.add_argument("--threads", type=int, default=4, help="CPU threads of each variant, default %(default)s")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch, default this one")
    return parse(parser)


def torch_variants(arguments, common, compiled):
    for channels_last in (False, True):
        name = "torch" + (" channels-last" if channels_last else "") + (" compile" if compiled else "")
        yield name, [arguments.python, "-B", str(TORCH_ENGINE), *common] + (["--channels-last"] if channels_last else []) + (
            ["--compile"] if compiled else [])


def start_all(arguments, cell, contenders, failures):
    engine = ours("poseidon-bench-engine", "--network", cell.network, programs=arguments.programs)
    description = machine.first_line(*engine, "--describe")
    if not description:
        raise BenchError(f"{' '.join(engine)} --describe failed: is it built, is there such a network?")
    common = ["--batch", str(cell.batch), "--threads", str(arguments.threads), "--device", arguments.device, "--precision",
              cell.precision]
    commands = [(OURS, [*engine, *common, "--turns"], None)]
    if arguments.torch:
        commands += [(name, command, description) for name, command in torch_variants(arguments, common, cell.compiled)]
    for name, command, first_line in commands:
        log = arguments.logs / f"{str(cell).replace(':', '-')}-{name.replace(' ', '-')}.log"
        contenders.append(Contender(name, command, first_line, log, wait=False))

    def warm_up(one):
        one.turn(2)  # code generation, choice of algorithms
        probe = one.turn(2)
        one.iterations = max(1, round(arguments.turn_s * probe["images_per_s"] / cell.batch))
    each(contenders, Contender.ready, cell, failures)  # they start beside each other, and compute alone
    each(contenders, warm_up, cell, failures)


def each(contenders, do, cell, failures, first=0):
    """In turns, from number `first` on. Who cannot is left out."""
    for one in contenders[first:] + contenders[:first]:
        try:
            do(one)
        except BenchError as error:
            contenders.remove(one)
            one.end()
            failures.append({**dataclasses.asdict(cell), "variant": one.name, "error": str(error)})
            print(f"    {one.name} failed: {str(error).splitlines()[-1]}", flush=True)


def measure(arguments, cell, failures):
    contenders = []
    try:
        start_all(arguments, cell, contenders, failures)
        for number in range(arguments.rounds):
            each(contenders, lambda one: one.rounds.append(one.turn(one.iterations)), cell, failures,
                 first=number % max(1, len(contenders)))
        return rows_of(cell, contenders)
    except KeyboardInterrupt:  # they may be in the middle of something long
        for one in contenders:
            one.process.kill()
        raise
    finally:
        for one in contenders:
            one.end()


def rows_of(cell, contenders):
    rates = {one.name: [r["images_per_s"] for r in one.rounds] for one in contenders}
    rows = []
    for one in contenders:
        ratios = [a / b for a, b in zip(rates.get(OURS, []), rates[one.name])] or [float("nan")]
        middle = statistics.median(rates[one.name])
        rows.append(Row(*dataclasses.astuple(cell), one.name, middle, statistics.median(ratios),
                        (max(rates[one.name]) - min(rates[one.name])) / middle,
                        one.rounds[-1].get("device_peak_mib", 0.0), one.rounds))
    return rows


def print_rows(rows):
    best = max((r.images_per_s for r in rows if r.variant != OURS), default=None)
    for row in rows:
        mark = " best" if row.images_per_s == best else ""
        print(f"{row.network:14}{row.batch:6} {row.precision:6}{row.variant:30}{row.images_per_s:10.1f}{row.ratio:9.3f}"
              f"{row.spread:8.1%}{row.device_peak_mib:10.0f}{mark}", flush=True)


def read_earlier(arguments, gpu):
    """(cells done, rows, failures, calls) of --skip-done."""
    if arguments.skip_done is None:
        return set(), [], [], []
    try:
        earlier = json.loads(arguments.skip_done.read_text())
        return *cells.take_over(earlier, OURS, gpu), earlier["calls"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BenchError(f"--skip-done {arguments.skip_done}: {error}") from error


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine.clean_up_on_signals()
    with tempfile.TemporaryDirectory(prefix="poseidon-compare-") as logs:  # what fails tells its last words
        arguments.logs = pathlib.Path(logs)
        return compare(arguments)


def compare(arguments):
    # The time is up: as bench/gpu.sh says it with another signal.
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
    begin, slowest = time.monotonic(), {}
    here = about(arguments.device)
    done, rows, failures, calls = read_earlier(arguments, here["gpu"])
    # The first import reads gigabytes.
    arguments.torch = machine.first_line(arguments.python, "-c", "import torch; print(torch.__version__)", timeout_s=180)
    document = {"calls": [*calls, {"date": datetime.date.today().isoformat(), "machine": here, "device": arguments.device,
                                   "command": sys.argv}]}
    wanted = cells.in_order(arguments.networks, arguments.batches, arguments.precisions,
                            with_compile=bool(arguments.torch) and not arguments.no_compile)
    left, measured = [cell for cell in wanted if cell not in done], 0

    def write():
        document.update(rows=rows, failures=failures, left=[str(cell) for cell in left])
        (arguments.out / "compare.json").write_text(json.dumps(document, indent=1) + "\n")
    write()
    print(f"{'network':14}{'batch':>6} {'':6}{'variant':30}{'images/s':>10}{'ours/it':>9}{'spread':>8}{'GPU MiB':>10}", flush=True)
    while left:
        started = time.monotonic()
        left_s = arguments.budget_s - (started - begin)
        # The first is tried however little there is.
        cell = left[0] if measured == 0 else next((one for one in left if cells.fits(one, slowest, left_s)), None)
        if cell is None:
            break
        missing = []
        try:
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001 if measured else FIRST_LIMIT_S))
            found = measure(arguments, cell, missing)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            if measured == 0:  # nor would it be done in the next call
                failures.append(cells.given_up(cell, OURS, arguments.budget_s))
                left.remove(cell)
                write()
            break
        slowest[cell.compiled] = max(slowest.get(cell.compiled, 0.0), time.monotonic() - started)
        left.remove(cell)
        measured += 1
        print_rows(found)
        rows += [dataclasses.asdict(row) for row in found]
        failures += missing
        write()
    if left:
        print(f"not measured within {arguments.budget_s:.0f} s: " + ", ".join(map(str, left)))
    return 0 if any(row["variant"] == OURS for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit("compare.py: stopped before anything was measured")
