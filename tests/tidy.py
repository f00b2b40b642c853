#!/usr/bin/env python3
"""Runs clang-tidy over every translation unit of ours, and not again over one that it found clean before.

    tests/tidy.py BUILD [BUDGET]

BUDGET: so many seconds after its start it begins no further unit. It says how many it left, and the next run, which passes
over what was found clean, reads those: after a change to a header of everything a run of CI alone could take too long.

BUILD is a build folder of Clang's (build/asan), up to date: its compile commands say how to read a file, its Ninja log
which headers the file includes. As with a compiler cache the verdict is that of the whole input, so the key is a digest of
clang-tidy's version, the checks (.clang-tidy), this file, the command and the contents of all files that it reads. Clean ones alone are
kept, in ~/.cache/poseidon/tidy (XDG_CACHE_HOME), and those that nobody asked for in a month are dropped.

Most of clang-tidy's time goes into headers that are not ours, some 12 s for each translation unit, so that it reads as the build
compiles: up to 16 files of a target in one (CMake's unity files).

Unit tests are left to the warnings of two compilers: they would be two fifths of all.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "poseidon" / "tidy"
KEPT_SECONDS = 30 * 24 * 3600
LIMIT_S = 600  # for one file; the slowest takes a minute on a busy machine


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def sources_in(file):
    """The source files that a translation unit is made of: itself, or those of a unity file."""
    if "Unity" not in file.parts:
        return {file}
    return {pathlib.Path(name) for name in re.findall(r'^#include "(.+)"$', file.read_text(), re.MULTILINE)}


def commands_of_units(build):
    """({translation unit: [(object, command)]}, as the build has them; paths relative to the sources, so that clones
    agree; the number of our files in them)."""
    ours = {ROOT / name for name in output_of("git", "ls-files", "--", "*.cc", ":!*_test.cc").split()}
    commands, files = {}, set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        unit = pathlib.Path(entry["file"])
        if sources := sources_in(unit) & ours:
            files |= sources
            words = entry["command"].split()
            commands.setdefault(unit, []).append((words[words.index("-o") + 1], entry["command"].replace(str(ROOT), ".")))
    return commands, len(files)


def included_by_objects(build):
    """{object: paths of the files it was made from}, for objects whose log entry is of their last build."""
    included, current = {}, None
    for line in output_of("ninja", "-C", build, "-t", "deps").splitlines():
        if line.startswith(" "):
            if current is not None:
                current.append(build / line.strip())
        elif ": #deps" in line:
            current = included.setdefault(line.split(":")[0], []) if line.endswith("(VALID)") else None
    return included


class Digests:
    """Of contents, each file read once."""

    def __init__(self):
        self.known = {}

    def of(self, path):
        if path not in self.known:
            self.known[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self.known[path]


def key_of(common, commands, included, digests):
    """None where the build does not say what a file is made from."""
    key = hashlib.sha256(common)
    for object_file, command in commands:
        if object_file not in included:
            return None
        key.update(command.encode())
        # A unity file, which names the sources with the folder of this clone, is no more than they are.
        paths = {path for each in included[object_file] if "Unity" not in (path := pathlib.Path(os.path.normpath(each))).parts}
        if not all(path.exists() for path in paths):
            return None  # a file has moved since the build
        # Sorted by what is the same in all clones: the folder of one may come before /usr, that of another behind it.
        names = {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path: path for path in paths}
        for name in sorted(names):
            key.update(f"\n{name} {digests.of(names[name])}".encode())
    return key.hexdigest()


def findings_of(build, file):
    """What clang-tidy says of the translation unit, "" if nothing. That a unity file includes sources is what it is for."""
    try:
        run = subprocess.run(["clang-tidy", "-quiet", "-checks=-bugprone-suspicious-include", "-p", build, file],
                             capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"{file.relative_to(ROOT)}: error: clang-tidy took more than {LIMIT_S} s"
    if run.returncode == 0 and "warning:" not in run.stdout and "error:" not in run.stdout:
        return ""
    return run.stdout or f"{file.relative_to(ROOT)}: error: {run.stderr.strip() or run.returncode}"


def drop_the_old():
    limit = time.time() - KEPT_SECONDS
    for kept in KEPT.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run dropped it
            if kept.stat().st_mtime < limit:
                kept.unlink()


def main():
    if len(sys.argv) not in (2, 3) or not (pathlib.Path(sys.argv[1]) / "compile_commands.json").is_file():
        sys.exit(f"usage: {sys.argv[0]} BUILD [BUDGET], a configured build folder of Clang's: cmake --preset asan")
    deadline = time.monotonic() + (float(sys.argv[2]) if len(sys.argv) == 3 else float("inf"))
    build = pathlib.Path(sys.argv[1]).resolve()
    KEPT.mkdir(parents=True, exist_ok=True)
    drop_the_old()

    (commands, files), included, digests = commands_of_units(build), included_by_objects(build), Digests()
    if not commands:
        sys.exit(f"{build} compiles none of our files")
    common = output_of("clang-tidy", "--version").encode() + (ROOT / ".clang-tidy").read_bytes() + \
        pathlib.Path(__file__).read_bytes()
    to_read, clean = [], 0
    for file in sorted(commands):
        key = key_of(common, commands[file], included, digests)
        if key is not None and (KEPT / key).exists():
            (KEPT / key).touch()
            clean += 1
        else:
            to_read.append((file, key))
    print(f"{files} files in {len(commands)}: {clean} found clean before, {len(to_read)} to read", flush=True)

    bad = left = 0

    def read(file):
        return findings_of(build, file) if time.monotonic() < deadline else None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (file, key), findings in zip(to_read, pool.map(lambda each: read(each[0]), to_read)):
            if findings is None:
                left += 1
            elif findings:
                bad += 1
                print(findings, flush=True)
            elif key is not None and key == key_of(common, commands[file], included, Digests()):
                (KEPT / key).touch()  # and nobody changed it meanwhile
    print(f"{len(to_read) - bad - left} clean, {bad} not" + (f", {left} left for the next run" if left else ""))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
