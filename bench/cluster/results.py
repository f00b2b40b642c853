"""The result files of the emulated cluster (bench/results/*.json) and tables of them.

{"date": "2026-11-22", "machine": {...}, "command": "...", "rows": [
  {"network": "vgg19", "profile": "titan-x", "hosts": 8, "gbit": 10, "variant": "poseidon", "f": 20,
   "seconds": [1.02, 1.01, 1.02],          per iteration, real time: the median of each run
   "speedup": 7.9, "bytes_per_host": 1.1e8, "cpu_seconds": 3.2, "busy": 0.5,
   "compute_s": 0.9, "bound_s": 0.95,      least possible: of the device, and of device and best scheme's bytes
   "stall_s": {"fc6": 0.01, ...} or null}, ...]}

`programs` is {name: sha256 of the file, or a library's version}, in files since 2026-11-26.
`earlier`, where rounds were added, has date, machine, command and programs of those before, oldest first.
`variant` is poseidon, an ablation of it by its own name, or a peer by its name in peers.py.
"""

import json
import pathlib
import statistics

from measurement import VOID_BUSY

OURS = "poseidon"
PEERS = ("ddp", "mpi", "horovod", "byteps")  # how their names begin
SAME_F = 0.05  # what two factors may differ by, of the smaller: overheads on the processor are divided by them
NUMBERS = ("hosts", "gbit", "f", "speedup", "bytes_per_host", "cpu_seconds", "busy", "bound_s", "compute_s")


class ResultsError(Exception):
    """A file is no result; the message names it, the row and the key."""


def is_peer(variant):
    return variant.startswith(PEERS)


def load(paths):
    """(rows, heads) of all files, in the order of their dates; a later row stands for an earlier one of the same run."""
    files = []
    for path in map(pathlib.Path, paths):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ResultsError(f"{path} is no JSON: {error}") from None
        try:
            check(data)
        except ResultsError as error:
            raise ResultsError(f"{path}: {error}") from None
        files.append(data)
    files.sort(key=lambda data: data["date"])
    rows = {}
    for data in files:
        for row in data["rows"]:
            rows[key(row)] = row
    return list(rows.values()), [{name: data[name] for name in ("date", "machine", "command", "programs", "earlier") if name in data}
                                 for data in files]


def check(data):
    for name in ("date", "machine", "command", "rows"):
        if not isinstance(data, dict) or name not in data:
            raise ResultsError(f"it has no '{name}'")
    for number, row in enumerate(data["rows"]):
        where = f"rows[{number}]"
        for name in ("network", "profile", "variant"):
            if not isinstance(row.get(name), str) or not row[name]:
                raise ResultsError(f"{where}.{name} is {row.get(name)!r}; a name")
        for name in NUMBERS:
            if isinstance(row.get(name), bool) or not isinstance(row.get(name), (int, float)):
                raise ResultsError(f"{where}.{name} is {row.get(name)!r}; a number")
        if not isinstance(row.get("seconds"), list) or not row["seconds"]:
            raise ResultsError(f"{where}.seconds is {row.get('seconds')!r}; the medians of at least one run")


def key(row):
    return row["network"], row["profile"], row["hosts"], row["gbit"], row["variant"]


def seconds(row):
    return statistics.median(row["seconds"])


def same_f(factors):
    """Whether figures measured with these slow-motion factors may stand beside each other."""
    factors = list(factors)
    return not factors or max(factors) <= (1 + SAME_F) * min(factors)


def factor_at(rows, *place):
    """The factor of all rows at a network, profile, number of hosts and rate; None where there are none."""
    factors = [row["f"] for row in rows if key(row)[:-1] == place]
    if not same_f(factors):
        raise ResultsError(f"the rows of {', '.join(map(str, place))} Gbit/s have factors f from {min(factors):g} to "
                           f"{max(factors):g}: nothing is added to them; give another --json")
    return factors[0] if factors else None


def check_same_programs(now, earlier):
    """That rounds measured with the programs `now` may be added to those of the file whose newest head is `earlier`."""
    before = earlier.get("programs")
    if before is None:
        raise ResultsError("does not say which programs it was measured with, so nothing is added to it; give another --json")
    other = sorted(name for name in now.keys() & before.keys() if now[name] != before[name])
    if other:
        raise ResultsError(f"was measured with other programs than these ({', '.join(other)} differ), so nothing is added to "
                           "it; give those programs with --bin (and --python), or another --json")


def merged(one, other):
    """The row of both's runs. What is not seconds is the typical run's own: of the row whose runs are nearer the middle."""
    if not same_f([one["f"], other["f"]]):
        raise ResultsError(f"{', '.join(map(str, key(one)))}: runs at f {one['f']:g} and at f {other['f']:g} are no row together")
    both = [*one["seconds"], *other["seconds"]]
    middle = statistics.median(both)
    typical = min((one, other), key=lambda row: min(abs(each - middle) for each in row["seconds"]))
    return {**typical, "seconds": both, "speedup": typical["hosts"] * typical["compute_s"] / middle,
            "busy": max(one["busy"], other["busy"])}


def is_void(row):
    return row["busy"] > VOID_BUSY


def valid(rows):
    return [row for row in rows if not is_void(row)]


def groups(rows, *names):
    """Rows by the values of these keys, in order of appearance."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def against_peers(rows):
    """Per network, profile, hosts and rate where both were measured: (ours, peers)."""
    found = []
    for members in groups(valid(rows), "network", "profile", "hosts", "gbit").values():
        ours = [row for row in members if row["variant"] == OURS]
        others = [row for row in members if is_peer(row["variant"])]
        if ours and others:
            found.append((ours[0], others))
    return found


def of_several_factors(rows):
    """Of network, profile, hosts and rate: where variants were measured at different factors."""
    return [place for place, members in groups(rows, "network", "profile", "hosts", "gbit").items()
            if not same_f(row["f"] for row in members)]


def _table(titles, lines):
    return "\n".join(["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles),
                      *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def tables(rows):
    """Markdown: every row; the speed-ups side by side; us and the best peer."""
    rows = sorted(rows, key=lambda row: (row["network"], row["profile"], row["gbit"], row["hosts"]))
    out = ["### Speed-up\n"]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    lines = []
    for (network, profile, gbit, hosts), members in groups(valid(rows), "network", "profile", "gbit", "hosts").items():
        by_variant = {row["variant"]: row for row in members}
        lines.append([network, profile, f"{gbit:g}", str(hosts), *(
            f"{by_variant[name]['speedup']:.2f}" if name in by_variant else "-" for name in variants)])
    out.append(_table(["network", "profile", "Gbit/s", "nodes", *variants], lines))
    uneven = of_several_factors(valid(rows))
    if uneven:
        out.append("Not all variants had the same f here, and a larger one flatters (f is in the last table): " + "; ".join(
            f"{network}, {profile}, {hosts} nodes, {gbit:g} Gbit/s" for network, profile, hosts, gbit in uneven) + ".\n")
    compared = against_peers(rows)
    if compared:
        out.append("### Time per iteration against the best peer, and the bound\n")
        lines = []
        for ours, others in compared:
            best = min(others, key=seconds)
            lines.append([ours["network"], ours["profile"], f"{ours['gbit']:g}", str(ours["hosts"]), f"{seconds(ours):.4f}",
                          f"{seconds(best):.4f} ({best['variant']})", f"{seconds(ours) / seconds(best):.3f}" + (
                              "" if same_f([ours["f"], best["f"]]) else f" (f {ours['f']:.3g} and {best['f']:.3g})"),
                          f"{seconds(ours) / ours['bound_s']:.3f}"])
        out.append(_table(["network", "profile", "Gbit/s", "nodes", "ours, s", "best peer, s", "ours / best peer",
                           "ours / bound"], lines))
    out.append("### Everything\n")
    out.append(_table(
        ["network", "profile", "Gbit/s", "nodes", "variant", "s/iteration", "speed-up", "to bound", "MB/node", "CPU s",
         "busy", "f", "runs"],
        [[row["network"], row["profile"], f"{row['gbit']:g}", str(row["hosts"]), row["variant"], f"{seconds(row):.4f}",
          f"{row['speedup']:.2f}", f"{seconds(row) / row['bound_s']:.3f}", f"{row['bytes_per_host'] / 1e6:.1f}",
          f"{row['cpu_seconds']:.2f}", f"{row['busy']:.0%}{' **void**' if is_void(row) else ''}", f"{row['f']:g}",
          str(len(row["seconds"]))] for row in rows]))
    return "\n".join(out)
