#!/usr/bin/env python3
"""Opens a safetensors file with the public package and checks it; exit 0 if all is well, 1 with a word if not.

    check_safetensors.py model.safetensors [name=DIMxDIMx... ...] [--finite] [--sum name=VALUE] [--exactly]

Needs the packages `safetensors` and `numpy`.
"""

import argparse
import sys

import numpy
import safetensors
import safetensors.numpy


def parse_shape(text):
    return tuple(int(part) for part in text.split("x")) if text else ()


def check(options):
    tensors = safetensors.numpy.load_file(options.path)
    with safetensors.safe_open(options.path, framework="np") as opened:
        metadata = opened.metadata() or {}
    expected = dict(item.split("=", 1) for item in options.tensors)
    problems = []
    for name, shape in expected.items():
        if name not in tensors:
            problems.append(f"{name}: is missing; there are {sorted(tensors)}")
        elif tensors[name].shape != parse_shape(shape):
            problems.append(f"{name}: shape {tensors[name].shape}, expected {parse_shape(shape)}")
    if options.exactly and set(tensors) != set(expected):
        problems.append(f"there are {sorted(tensors)}, expected exactly {sorted(expected)}")
    for name, values in tensors.items():
        if values.dtype != numpy.float32:
            problems.append(f"{name}: {values.dtype}, expected float32")
        if options.finite and not numpy.isfinite(values).all():
            problems.append(f"{name}: holds a NaN or an infinity")
    for item in options.sum:
        name, value = item.split("=", 1)
        total = float(tensors[name].sum(dtype=numpy.float64)) if name in tensors else float("nan")
        if not numpy.isclose(total, float(value), rtol=1e-6, atol=1e-6):
            problems.append(f"{name}: sum {total}, expected {value}")
    print(f"{options.path}: {len(tensors)} tensors, metadata {metadata}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("tensors", nargs="*", help="name=shape that must be there, e.g. conv1.weight=20x1x5x5")
    parser.add_argument("--exactly", action="store_true", help="no other tensors may be there")
    parser.add_argument("--finite", action="store_true", help="every value must be finite")
    parser.add_argument("--sum", action="append", default=[], metavar="NAME=VALUE")
    problems = check(parser.parse_args())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
