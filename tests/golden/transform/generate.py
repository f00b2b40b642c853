#!/usr/bin/env python3
"""Writes resize.json: F.interpolate(mode="bilinear", align_corners=False, antialias=False) on small images.

Run with a Python that has PyTorch (Debian: python3-torch); the result is checked in, so no test needs it:
    /usr/bin/python3 tests/golden/transform/generate.py
"""

import json
import pathlib

import torch
import torch.nn.functional as F

# channels, height, width -> height, width: larger, smaller, mixed, one pixel, the digits' own case
CASES = [((1, 3, 4), (7, 9)), ((2, 8, 6), (3, 4)), ((3, 5, 5), (5, 5)), ((1, 4, 9), (9, 4)), ((1, 1, 1), (3, 2)),
         ((2, 6, 7), (1, 1)), ((1, 8, 8), (28, 28))]


def main():
    torch.manual_seed(2)
    cases = []
    for shape, size in CASES:
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        # float64: the true values, from which Poseidon's single rounding to float32 differs by half a unit
        resized = F.interpolate(image.double()[None], size=size, mode="bilinear", align_corners=False,
                                antialias=False)[0]
        cases.append({"shape": shape, "size": size, "pixels": image.flatten().tolist(),
                      "resized": [round(value, 9) for value in resized.flatten().tolist()]})
    result = {"generator": "tests/golden/transform/generate.py, torch " + torch.__version__, "cases": cases}
    path = pathlib.Path(__file__).with_name("resize.json")
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
