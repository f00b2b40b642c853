#!/usr/bin/env -S python3 -B
"""Charts and tables of the emulated cluster's results, as SVG and Markdown. Standard library only.

    python3 bench/cluster/plots.py bench/results/*.json --folder bench/results [--tables bench/results/tables.md]

It draws what the rows have: speed-up over nodes and over bandwidth where several were measured, us against each peer, and,
at the most nodes and the least bandwidth of each network, bytes per node and stall per layer. Void runs (results.py) are
left out of the charts and named.
"""

import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))

import results  # noqa: E402
from svg import BAR_HEIGHT, COLOURS, MARKERS, Svg, ticks  # noqa: E402

WIDTH = 760
MARGIN = 24
GRID = "#e2e2dc"
LAYERS_SHOWN = 12
WORDS_WIDTH = 42  # of a bar's value


class Styles:
    """A colour and a marker per variant, the same in every chart."""

    def __init__(self, rows):
        names = list(dict.fromkeys(row["variant"] for row in rows))
        names.sort(key=lambda name: name != results.OURS)
        self._number = {name: number for number, name in enumerate(names)}

    def colour(self, name):
        number = self._number[name]
        return COLOURS[number % len(COLOURS)][number // len(COLOURS) % 2]

    def marker(self, name):
        number = self._number[name]
        return MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def _heading(svg, title, about):
    svg.text(MARGIN, 32, title, size=18, weight="bold")
    svg.text(MARGIN, 52, about, size=12, colour="#555")


def line_chart(title, about, x_title, y_title, series, styles, ideal, linear_x):
    """`series`: variant -> {x: y}; `ideal`: x -> y. With linear_x nodes stand where their number says, otherwise all x are
    at the same distance."""
    svg = Svg()
    _heading(svg, title, about)
    left, right, top, bottom = MARGIN + 46, WIDTH - 190, 84, 400
    xs = sorted({x for points in series.values() for x in points})
    y_ticks = ticks(max(max(y for points in series.values() for y in points.values()), *(ideal(x) for x in xs)))

    def place_x(x):
        if linear_x:
            return left + (right - left) * x / xs[-1]
        return left + (right - left) * (xs.index(x) + 0.5) / len(xs)

    def place_y(y):
        return bottom - (bottom - top) * y / y_ticks[-1]

    for y in y_ticks:
        svg.line([(left, place_y(y)), (right, place_y(y))], GRID, width=1)
        svg.text(left - 8, place_y(y) + 4, f"{y:g}", size=12, anchor="end", colour="#555")
    for x in xs:
        svg.line([(place_x(x), bottom), (place_x(x), bottom + 5)], "#999", width=1)
        svg.text(place_x(x), bottom + 20, f"{x:g}", size=12, anchor="middle", colour="#555")
    svg.line([(left, bottom), (right, bottom)], "#999", width=1)
    svg.text((left + right) / 2, bottom + 42, x_title, anchor="middle")
    svg.text(MARGIN, top - 12, y_title)
    svg.line([(place_x(x), place_y(ideal(x))) for x in ([0] + xs if linear_x else xs)], "#999", width=1.5, dashed=True)

    ends = []
    for name, points in series.items():
        places = [(place_x(x), place_y(y)) for x, y in sorted(points.items())]
        svg.line(places, styles.colour(name))
        for (x, y), place in zip(sorted(points.items()), places):
            svg.marker(*place, styles.marker(name), styles.colour(name), f"{name}: {y:.2f} at {x:g}")
        ends.append([places[-1][1] + 4, name, f"{name} {points[max(points)]:.1f}"])
    _name_lines(svg, ends, place_y(ideal(xs[-1])) + 4, right, styles)
    return svg.document(WIDTH, bottom + 42 + MARGIN)


def _name_lines(svg, ends, ideal_y, right, styles):
    """Names beside the ends of lines, moved apart where they would touch."""
    ends = sorted(ends + [[ideal_y, None, "ideal"]], key=lambda end: end[0])
    for above, below in zip(ends, ends[1:]):
        below[0] = max(below[0], above[0] + 16)
    for y, name, words in ends:
        if name:
            svg.marker(right + 18, y - 4, styles.marker(name), styles.colour(name), name)
        else:
            svg.line([(right + 11, y - 4), (right + 25, y - 4)], "#999", width=1.5, dashed=True)
        svg.text(right + 30, y, words)


def bar_chart(title, about, groups, styles, unit, reference=None):
    """`groups`: [(title, [(label, variant, value, words)])]; a reference is a line at that value."""
    svg = Svg()
    _heading(svg, title, about)
    left = MARGIN + 150
    length = WIDTH - left - MARGIN - 120
    most = max([value for _, bars in groups for _, _, value, _ in bars] + [reference or 0]) or 1
    y = 76
    svg.text(left, y, unit, size=12, colour="#555")
    top = y = y + 8
    for group, bars in groups:
        if group:
            y += 18
            svg.text(MARGIN, y, group, colour="#333", weight="bold")
            y += 6
        for label, variant, value, words in bars:
            svg.text(left - 8, y + BAR_HEIGHT - 5, label, anchor="end")
            svg.bar(left, y, length * value / most, styles.colour(variant), f"{label}: {words}")
            end = length * value / most
            if reference is not None and 0 <= length * reference / most - end < WORDS_WIDTH:
                end = length * reference / most  # or the line would go through them
            svg.text(left + end + 6, y + BAR_HEIGHT - 5, words, size=12)
            y += BAR_HEIGHT + 4
        y += 8
    if reference is not None:
        at = left + length * reference / most
        svg.line([(at, top), (at, y - 8)], "#222", width=1, dashed=True)
    return svg.document(WIDTH, y + MARGIN / 2)


def speedup_over_nodes(rows, styles):
    for (network, profile, gbit), members in results.groups(rows, "network", "profile", "gbit").items():
        if len({row["hosts"] for row in members}) < 2:
            continue
        series = {name: {row["hosts"]: row["speedup"] for row in of}
                  for (name,), of in results.groups(members, "variant").items()}
        yield (f"speedup-nodes-{network}-{profile}-{gbit:g}gbit",
               line_chart(f"Speed-up over nodes: {network}", f"{profile} profile, {gbit:g} Gbit/s, real time from slow motion",
                          "nodes", "times the speed of one", series, styles, ideal=lambda nodes: nodes, linear_x=True))


def hardest(rows):
    """Those of each network and profile at the most nodes, and of them at the least bandwidth."""
    found = []
    for members in results.groups(rows, "network", "profile").values():
        hosts = max(row["hosts"] for row in members)
        gbit = min(row["gbit"] for row in members if row["hosts"] == hosts)
        found += [row for row in members if (row["hosts"], row["gbit"]) == (hosts, gbit)]
    return found


def speedup_over_bandwidth(rows, styles):
    for (network, profile, hosts), members in results.groups(rows, "network", "profile", "hosts").items():
        if len({row["gbit"] for row in members}) < 2:
            continue
        series = {name: {row["gbit"]: row["speedup"] for row in of}
                  for (name,), of in results.groups(members, "variant").items()}
        yield (f"speedup-bandwidth-{network}-{profile}-{hosts}nodes",
               line_chart(f"Speed-up over bandwidth: {network}", f"{profile} profile, {hosts} nodes, real time from slow motion"
                          + ("; not all variants at one f" if results.of_several_factors(members) else ""),
                          "Gbit/s of each node, each way", "times the speed of one", series, styles,
                          ideal=lambda _: hosts, linear_x=False))


def bytes_per_node(rows, styles):
    for (profile, hosts, gbit), members in results.groups(hardest(rows), "profile", "hosts", "gbit").items():
        groups = [(network, [(row["variant"], row["variant"], row["bytes_per_host"] / 1e6, f"{row['bytes_per_host'] / 1e6:.0f}")
                             for row in of]) for (network,), of in results.groups(members, "network").items()]
        yield (f"bytes-{profile}-{hosts}nodes-{gbit:g}gbit",
               bar_chart("Bytes per node and iteration", f"{profile} profile, {hosts} nodes, {gbit:g} Gbit/s; as the nodes' cards "
                         "count them", groups, styles, "MB, 10^6 (shorter is better)"))


def stall_per_layer(rows, styles):
    told = hardest([row for row in rows if row.get("stall_s")])
    for (network, profile, hosts, gbit), members in results.groups(told, "network", "profile", "hosts", "gbit").items():
        layers = list(dict.fromkeys(layer for row in members for layer in row["stall_s"]))
        worst = sorted(layers, key=lambda layer: -max(row["stall_s"].get(layer, 0) for row in members))[:LAYERS_SHOWN]
        groups = [(layer, [(row["variant"], row["variant"], 1e3 * row["stall_s"].get(layer, 0),
                            f"{1e3 * row['stall_s'].get(layer, 0):.2f}") for row in members])
                  for layer in layers if layer in worst]
        shown = f"the {len(worst)} of {len(layers)} layers that waited longest" if len(worst) < len(layers) else "all layers"
        yield (f"stall-{network}-{profile}-{hosts}nodes-{gbit:g}gbit",
               bar_chart(f"Waiting for parameters, per layer: {network}", f"{profile} profile, {hosts} nodes, {gbit:g} Gbit/s; {shown}",
                         groups, styles, "ms per iteration (shorter is better)"))


def against_peers(rows, styles):
    found, uneven = {}, set()
    for ours, others in results.against_peers(rows):
        bars = []
        for row in others:
            ratio = results.seconds(ours) / results.seconds(row)
            same = results.same_f([ours["f"], row["f"]])
            bars.append((f"to {row['variant']}", row["variant"], ratio, f"{ratio:.2f}" + ("" if same else " *")))
            if not same:
                uneven.add((ours["profile"], ours["hosts"], ours["gbit"]))
        found.setdefault((ours["profile"], ours["hosts"], ours["gbit"]), []).append((ours["network"], bars))
    for (profile, hosts, gbit), groups in found.items():
        yield (f"peers-{profile}-{hosts}nodes-{gbit:g}gbit",
               bar_chart("Time per iteration, ours to each peer's",
                         f"{profile} profile, {hosts} nodes, {gbit:g} Gbit/s, real time from slow motion; below 1 we are faster",
                         groups, styles, "ours / peer's (shorter is better); the line: as fast as the peer"
                         + ("; *: at different f" if (profile, hosts, gbit) in uneven else ""), reference=1.0))


def draw(rows):
    """{file name: SVG} of all charts that these rows allow."""
    rows = sorted(results.valid(rows), key=lambda row: row["variant"] != results.OURS)
    styles = Styles(rows)
    charts = (speedup_over_nodes, speedup_over_bandwidth, bytes_per_node, stall_per_layer, against_peers)
    return {re.sub(r"[^A-Za-z0-9._-]", "-", name) + ".svg": image for chart in charts for name, image in chart(rows, styles)}


def main():
    parser = argparse.ArgumentParser(description="Charts and tables of results of the emulated cluster.")
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the SVG files go")
    parser.add_argument("--tables", type=pathlib.Path, help="a Markdown file; default: to stdout")
    arguments = parser.parse_args()
    try:
        rows, _ = results.load(arguments.results)
    except results.ResultsError as error:
        sys.exit(f"plots.py: {error}")
    for row in rows:
        if results.is_void(row):
            print(f"void: {', '.join(map(str, results.key(row)))}: the machine was {row['busy']:.0%} busy", file=sys.stderr)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, image in draw(rows).items():
        (arguments.folder / name).write_text(image, encoding="utf-8")
        print(arguments.folder / name, file=sys.stderr)
    if arguments.tables:
        arguments.tables.write_text(results.tables(rows), encoding="utf-8")
    else:
        print(results.tables(rows))


if __name__ == "__main__":
    main()
