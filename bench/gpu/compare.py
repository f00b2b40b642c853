#!/usr/bin/env python3
"""Training speed on a GPU beside PyTorch on the same one: forward and backward of the same networks, in turns.

    bench/gpu.sh compare [--networks vgg19,resnet50] [--batches 32,64,128,256] [--precisions tf32,bf16] [--no-compile]

For each network, batch size and precision every variant is one process, all on the same GPU, that measures for a
moment whenever it is its turn; the others wait meanwhile. PyTorch: with and without channels_last, with and without
torch.compile, autocast for bf16 and fp16. A variant that fails (out of memory, say) is named and left out. Ratios are
medians over rounds of the ratio within a round; `best` is the fastest of PyTorch's variants.
"""

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import time

from common import OURS, PRECISIONS, ROOT, BenchError, Contender, about, add_options, machine, numbers, ours, words

NETWORKS = ("vgg19", "resnet50", "resnet152", "inception_v3", "googlenet", "alexnet")
TORCH_ENGINE = ROOT / "bench" / "engine" / "torch_engine.py"


@dataclasses.dataclass
class Row:
    network: str
    batch: int
    precision: str
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
    parser.add_argument("--batches", type=numbers, default=[32, 64, 128, 256], help="default 32,64,128,256")
    parser.add_argument("--precisions", type=words(PRECISIONS), default=["tf32", "bf16"], help="default tf32,bf16")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes a minute per network")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--turn-s", type=float, default=1.0, help="about how long a turn lasts, default %(default)s")
    parser.add_argument("--threads", type=int, default=4, help="CPU threads of each variant, default %(default)s")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch, default this one")
    return parser.parse_known_args()[0]


def torch_variants(arguments, common):
    for compiled in (False, True):
        if compiled and arguments.no_compile:
            continue
        for channels_last in (False, True):
            name = "torch" + (" channels-last" if channels_last else "") + (" compile" if compiled else "")
            yield name, [arguments.python, "-B", str(TORCH_ENGINE), *common] + (["--channels-last"] if channels_last else []) + (
                ["--compile"] if compiled else [])


def start_all(arguments, cell, contenders, failures):
    network, batch, precision = cell
    engine = ours("poseidon-bench-engine", "--network", network, programs=arguments.programs)
    description = machine.first_line(*engine, "--describe")
    if not description:
        raise BenchError(f"{' '.join(engine)} --describe failed: is it built, is there such a network?")
    common = ["--batch", str(batch), "--threads", str(arguments.threads), "--device", arguments.device, "--precision",
              precision]
    commands = [(OURS, [*engine, *common, "--turns"], None)]
    if arguments.torch:
        commands += [(name, command, description) for name, command in torch_variants(arguments, common)]
    for name, command, first_line in commands:
        log = arguments.out / "logs" / f"{network}-{batch}-{precision}-{name.replace(' ', '-')}.log"
        one = None
        try:
            one = Contender(name, command, first_line, log)
            contenders.append(one)
            one.turn(2)  # code generation, choice of algorithms
            probe = one.turn(2)
            one.iterations = max(1, round(arguments.turn_s * probe["images_per_s"] / batch))
        except BenchError as error:
            if one in contenders:
                contenders.remove(one)
            failures.append({"network": network, "batch": batch, "precision": precision, "variant": name, "error": str(error)})
            print(f"    {name} failed: {str(error).splitlines()[-1]}", flush=True)


def measure(arguments, cell, failures):
    contenders = []
    try:
        start_all(arguments, cell, contenders, failures)
        for number in range(arguments.rounds):
            shift = number % max(1, len(contenders))
            for one in contenders[shift:] + contenders[:shift]:
                one.rounds.append(one.turn(one.iterations))
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
        rows.append(Row(*cell, one.name, middle, statistics.median(ratios),
                        (max(rates[one.name]) - min(rates[one.name])) / middle,
                        one.rounds[-1].get("device_peak_mib", 0.0), one.rounds))
    return rows


def print_rows(rows):
    best = max((r.images_per_s for r in rows if r.variant != OURS), default=None)
    for row in rows:
        mark = " best" if row.images_per_s == best else ""
        print(f"{row.network:14}{row.batch:6} {row.precision:6}{row.variant:30}{row.images_per_s:10.1f}{row.ratio:9.3f}"
              f"{row.spread:8.1%}{row.device_peak_mib:10.0f}{mark}", flush=True)


def main():
    arguments = parse_arguments()
    (arguments.out / "logs").mkdir(parents=True, exist_ok=True)
    machine.clean_up_on_signals()
    begin, slowest = time.monotonic(), 0.0
    # The first import reads gigabytes.
    arguments.torch = machine.first_line(arguments.python, "-c", "import torch; print(torch.__version__)", timeout_s=180)
    rows, failures = [], []
    print(f"{'network':14}{'batch':>6} {'':6}{'variant':30}{'images/s':>10}{'ours/it':>9}{'spread':>8}{'GPU MiB':>10}", flush=True)
    document = {"date": datetime.date.today().isoformat(), "machine": about(arguments.device), "device": arguments.device,
                "command": sys.argv}
    left = [(n, b, p) for b in arguments.batches for p in arguments.precisions for n in arguments.networks]
    while left and (slowest == 0.0 or time.monotonic() - begin + slowest <= arguments.budget_s):
        started = time.monotonic()
        try:
            found = measure(arguments, left[0], failures)
        except KeyboardInterrupt:  # bench/gpu.sh's way of saying that the time is up
            break
        slowest = max(slowest, time.monotonic() - started)
        del left[0]
        print_rows(found)
        rows += found
        document |= {"rows": [dataclasses.asdict(row) for row in rows], "failures": failures, "left": left}
        (arguments.out / "compare.json").write_text(json.dumps(document, indent=1) + "\n")
    if left:
        print(f"not measured within {arguments.budget_s:.0f} s: " + ", ".join(":".join(map(str, cell)) for cell in left))
    return 0 if any(row.variant == OURS for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit("compare.py: stopped before anything was measured")
