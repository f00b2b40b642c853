"""What compare.py and sync.py share: options, programs, their libraries."""

import argparse
import importlib.util
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
for beside in ("common", "engine"):
    sys.path.insert(0, str(ROOT / "bench" / beside))

import machine  # noqa: E402

# bench/engine/compare.py, which has the name of the program beside this file.
_spec = importlib.util.spec_from_file_location("engine_compare", ROOT / "bench" / "engine" / "compare.py")
engine_compare = sys.modules["engine_compare"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(engine_compare)
OURS, BenchError, Contender, pairs = (engine_compare.OURS, engine_compare.BenchError, engine_compare.Contender,
                                      engine_compare.pairs)

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Set by bench/gpu.sh in a bundle: its programs and where they find their libraries.
PROGRAMS = pathlib.Path(os.environ.get("POSEIDON_PROGRAMS", ROOT / "build" / "release" / "bin"))
LIBRARY_PATH = os.environ.get("POSEIDON_LIBRARY_PATH", "")


def ours(program, *arguments, programs=PROGRAMS):
    """The command line of one of our programs. Only they get our libraries: Python has its own."""
    path = [f"LD_LIBRARY_PATH={LIBRARY_PATH}"] if LIBRARY_PATH else []
    return ["/usr/bin/env", *path, str(programs / program), *map(str, arguments)]


def words(allowed=None):
    def parse(text):
        found = text.split(",")
        for word in found:
            if not word or (allowed and word not in allowed):
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(allowed or ['(a word)'])}")
        return found
    return parse


def numbers(text):
    found = text.split(",")
    if not all(word.isdigit() and int(word) > 0 for word in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers above 0")
    return [int(word) for word in found]


def add_options(parser):
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try this out, default %(default)s")
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS, help="default %(default)s")
    out = pathlib.Path(os.environ.get("OUT") or ROOT / "build") / "bench-gpu"
    parser.add_argument("--out", type=pathlib.Path, default=out, help="default bench-gpu in $OUT, else %(default)s")
    parser.add_argument("--budget-s", type=float, default=540.0,
                        help="stop measuring then and say what is left, default %(default)s")


def parse(parser):
    """With gpu.sh's --of-both, options that are the other script's are left to it."""
    parser.add_argument("--of-both", action="store_true", help=argparse.SUPPRESS)
    arguments, others = parser.parse_known_args()
    if others and not arguments.of_both:
        parser.error(f"unknown: {' '.join(others)}")
    return arguments


def about(device):
    found = machine.about()
    found["gpu"] = "" if device == "cpu" else machine.first_line(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader", "-i",
        device.split(":")[1])
    return found
