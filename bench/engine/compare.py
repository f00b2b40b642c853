#!/usr/bin/env python3
"""Training speed of one process beside PyTorch: forward and backward of the same networks, in turns.

    bench/engine/compare.py [--networks alexnet:32,vgg19:8] [--python PYTHON ...] [--rounds 5] [--json FILE]

Every variant is one process that is started once per network and then measures for some seconds whenever it is its
turn, so that what disturbs the machine disturbs all. Ratios are medians over rounds of the ratio within a round.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import threading

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "common"))

import machine  # noqa: E402

NETWORKS = "alexnet:32,vgg19:8,resnet50:16,googlenet:32,inception_v3:16"
OURS = "poseidon"
TURN_TIMEOUT_S = 600
SETUP_TIMEOUT_S = 300


class BenchError(Exception):
    pass


class Contender:
    """One process that trains when told to; not before ready() has returned."""

    def __init__(self, name, command, first_line, log, wait=True):
        self.name = name
        self.rounds = []
        self.log = log
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"),
                                        text=True)
        if first_line:
            self.say(first_line)
        if wait:
            self.ready()

    def ready(self):
        self.about = self.answer(SETUP_TIMEOUT_S)

    def say(self, line):
        try:
            self.process.stdin.write(line.rstrip("\n") + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() tells why

    def answer(self, timeout_s):
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(line)
        self.process.kill()
        self.process.wait()
        if line:
            raise BenchError(f"{self.name} answered what is no JSON: {line.strip()[:200]}")
        raise BenchError(f"{self.name} ended or did not answer within {timeout_s} s; its last words:\n"
                         + "\n".join(self.log.read_text().splitlines()[-8:]))

    def turn(self, iterations):
        self.say(str(iterations))
        return self.answer(TURN_TIMEOUT_S)

    def end(self):
        with contextlib.suppress(BrokenPipeError):  # a line that a dead one never read
            self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclasses.dataclass
class Row:
    network: str
    batch: int
    variant: str
    images_per_s: float
    cpu_seconds_per_image: float
    ratio: float  # of our images/s to this variant's
    cpu_ratio: float  # of this variant's CPU seconds to ours
    peak_mib: float
    import_only_mib: float
    rounds: list


def pairs(text):
    result = []
    for word in text.split(","):
        name, _, batch = word.partition(":")
        if not batch.isdigit() or int(batch) < 1:
            raise argparse.ArgumentTypeError(f"{word!r} is no NETWORK:BATCH")
        result.append((name, int(batch)))
    return result


def positive(text):
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=pairs, default=pairs(NETWORKS), help=f"default {NETWORKS}")
    parser.add_argument("--threads", type=int, default=2, help="of each variant, default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--turn-s", type=positive, default=4.0, help="about how long a turn lasts, default %(default)s")
    parser.add_argument("--python", action="append", help="interpreters with torch, default /usr/bin/python3")
    parser.add_argument("--formats", choices=("both", "default", "channels-last"), default="both",
                        help="PyTorch's memory formats, default %(default)s")
    parser.add_argument("--build", type=pathlib.Path, default=machine.ROOT / "build" / "release")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--log-dir", type=pathlib.Path, default=None, help="default build/bench-engine")
    arguments = parser.parse_args()
    arguments.python = arguments.python or ["/usr/bin/python3"]
    arguments.log_dir = arguments.log_dir or machine.ROOT / "build" / "bench-engine"
    return arguments


def torch_version(python):
    return machine.first_line(python, "-c", "import torch; print(torch.__version__)")


def start_all(network, batch, arguments, versions, contenders):
    engine = str(arguments.build / "bin" / "poseidon-bench-engine")
    common = ["--batch", str(batch), "--threads", str(arguments.threads)]
    description = machine.first_line(engine, "--network", network, "--describe")
    if not description:
        raise BenchError(f"{engine} --network {network} --describe failed: is it built, is there such a network?")

    def start(name, command, first_line):
        log = arguments.log_dir / f"{network}-{name.replace(' ', '-')}.log"
        contenders.append(Contender(name, command, first_line, log))

    start(OURS, [engine, "--network", network, *common, "--turns"], None)
    for python, version in versions.items():
        command = [python, "-B", str(FOLDER / "torch_engine.py"), *common]
        if arguments.formats != "channels-last":
            start(f"torch {version}", command, description)
        if arguments.formats != "default":
            start(f"torch {version} channels-last", command + ["--channels-last"], description)


def measure(network, batch, arguments, versions):
    contenders = []
    try:
        start_all(network, batch, arguments, versions, contenders)
        iterations = {}
        for one in contenders:
            one.turn(1)  # page faults, code generation
            probe = one.turn(1)
            iterations[one.name] = max(1, round(arguments.turn_s * probe["images_per_s"] / batch))
        for number in range(arguments.rounds):
            shift = number % len(contenders)
            for one in contenders[shift:] + contenders[:shift]:
                one.rounds.append(one.turn(iterations[one.name]))
        return rows_of(network, batch, contenders)
    finally:
        for one in contenders:
            one.end()


def rows_of(network, batch, contenders):
    ours = contenders[0]

    def median(one, key):
        return statistics.median(r[key] for r in one.rounds)

    def ratio(one, key, inverse):
        values = [b[key] / a[key] if inverse else a[key] / b[key] for a, b in zip(ours.rounds, one.rounds)]
        return statistics.median(values)

    return [Row(network, batch, one.name, median(one, "images_per_s"), median(one, "cpu_seconds_per_image"),
                ratio(one, "images_per_s", False), ratio(one, "cpu_seconds_per_image", True),
                one.rounds[-1]["peak_mib"], one.about.get("import_only_mib", 0.0), one.rounds) for one in contenders]


def print_rows(rows):
    for row in rows:
        print(f"{row.network:14}{row.batch:6} {row.variant:30}{row.images_per_s:10.2f}{row.cpu_seconds_per_image:12.4f}"
              f"{row.ratio:9.2f}{row.cpu_ratio:9.2f}{row.peak_mib:10.0f}{row.import_only_mib:8.0f}", flush=True)


def main():
    arguments = parse_arguments()
    versions = {python: torch_version(python) for python in arguments.python}
    for python in [p for p, version in versions.items() if not version]:
        print(f"{python} has no torch: left out", file=sys.stderr)
        del versions[python]
    arguments.log_dir.mkdir(parents=True, exist_ok=True)
    print(f"{'network':14}{'batch':>6} {'variant':30}{'images/s':>10}{'CPU s/image':>12}{'ours/it':>9}{'CPU':>9}"
          f"{'peak MiB':>10}{'import':>8}", flush=True)
    rows = []
    for network, batch in arguments.networks:
        found = measure(network, batch, arguments, versions)
        print_rows(found)
        rows += found
    if arguments.json:
        document = {"date": datetime.date.today().isoformat(), "machine": machine.about(),
                    "threads": arguments.threads, "rows": [dataclasses.asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(1)
