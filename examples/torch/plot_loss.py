"""Draws the losses of a run: python examples/torch/plot_loss.py RUN_DIR loss.png"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main(run, picture):
    lines = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    known = [(line["iteration"], line["loss"]) for line in lines if line.get("loss") is not None]
    if not known:
        sys.exit(f"{run}/metrics.jsonl has no loss: the script tells it by poseidon.report(loss=...)")
    pyplot.figure(figsize=(8, 4.5))
    pyplot.plot(*zip(*known), linewidth=1)
    pyplot.xlabel("iteration")
    pyplot.ylabel("loss")
    pyplot.grid(alpha=0.3)
    pyplot.tight_layout()
    pyplot.savefig(picture, dpi=120)
    print(f"loss {known[0][1]:.3f} -> {known[-1][1]:.3f}: {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:])
