"""A bar chart of poseidon-bench-transport's figures, as SVG. Standard library only.

    python3 bench/plot.py transport.json transport.svg
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "common"))

from svg import BAR_HEIGHT, COLOURS, Svg  # noqa: E402

LABEL_WIDTH = 110  # variant names
PANEL_WIDTH = 360  # the longest bar
VALUE_WIDTH = 130  # the number behind a bar
BAR_GAP = 6
GROUP_GAP = 14
TOP = 92
MARGIN = 24


def group_title(row):
    return (f"{row['workers']} worker{'s' * (row['workers'] > 1)}, "
            f"{row['servers']} server{'s' * (row['servers'] > 1)}, "
            f"chunks of {row['chunk_bytes'] / 1024:g} KiB")


def grouped(rows):
    groups = {}
    for row in rows:
        groups.setdefault(group_title(row), []).append(row)
    return groups


def ratio(row, key):
    return f" ({row[key]:.2f}x)" if key in row else ""


def chart(data):
    rows = data["rows"]
    if not rows:
        raise ValueError("there are no rows in it")
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    # By variant, in order of appearance; the second one of each is the server's part of the CPU time.
    colours = {variant: COLOURS[i % len(COLOURS)] for i, variant in enumerate(variants)}
    most_goodput = max(row["goodput_gb_s"] for row in rows)
    most_cpu = max(row["worker_cpu_s_per_gb"] + row["server_cpu_s_per_gb"] for row in rows)
    left = MARGIN + LABEL_WIDTH
    right = left + PANEL_WIDTH + VALUE_WIDTH
    width = right + PANEL_WIDTH + VALUE_WIDTH + MARGIN

    svg = Svg()
    machine = data["machine"]
    svg.text(MARGIN, 30, "Moving gradients: goodput and what it costs", size=18, weight="bold")
    svg.text(MARGIN, 50, f"{data['date']}, {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel'].split('-')[0]}; "
             f"{rows[0]['mib']} MiB per worker and iteration, medians of {data['arguments']['rounds']} rounds; "
             f"in brackets: ratio to raw", size=12, colour="#555")
    svg.text(left, 80, "goodput, GB/s, both directions (longer is better)", weight="bold")
    svg.text(right, 80, "CPU s/GB (shorter is better): dark workers, light servers", weight="bold")

    y = TOP
    for title, members in grouped(rows).items():
        y += 18
        svg.text(MARGIN, y, title, colour="#333")
        y += 8
        for row in members:
            dark, light = colours[row["variant"]]
            baseline = y + BAR_HEIGHT - 5
            svg.text(left - 8, baseline, row["variant"], anchor="end")
            goodput = row["goodput_gb_s"]
            length = PANEL_WIDTH * goodput / most_goodput
            svg.bar(left, y, length, dark, f"{row['variant']}: {goodput:.3f} GB/s")
            svg.text(left + length + 6, baseline, f"{goodput:.2f}{ratio(row, 'goodput_ratio_to_raw')}")
            worker = PANEL_WIDTH * row["worker_cpu_s_per_gb"] / most_cpu
            server = PANEL_WIDTH * row["server_cpu_s_per_gb"] / most_cpu
            svg.bar(right, y, worker, dark, f"workers: {row['worker_cpu_s_per_gb']:.3f} s/GB")
            svg.bar(right + worker, y, server, light, f"servers: {row['server_cpu_s_per_gb']:.3f} s/GB")
            svg.text(right + worker + server + 6, baseline,
                     f"{row['cpu_s_per_gb']:.2f}{ratio(row, 'cpu_ratio_to_raw')}")
            y += BAR_HEIGHT + BAR_GAP
        y += GROUP_GAP
    return svg.document(width, y + MARGIN)


def main():
    parser = argparse.ArgumentParser(description="Draws the JSON of poseidon-bench-transport as an SVG bar chart.")
    parser.add_argument("json", help="what --json of poseidon-bench-transport wrote")
    parser.add_argument("svg", help="the file to write")
    arguments = parser.parse_args()
    try:
        with open(arguments.json, encoding="utf-8") as file:
            image = chart(json.load(file))
    except OSError as error:
        sys.exit(f"plot.py: {error}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"plot.py: {arguments.json} is not what poseidon-bench-transport writes: {error!r}")
    try:
        with open(arguments.svg, "w", encoding="utf-8") as file:
            file.write(image)
    except OSError as error:
        sys.exit(f"plot.py: {error}")


if __name__ == "__main__":
    main()
