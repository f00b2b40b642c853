#!/usr/bin/env python3
"""How fast one thread makes training samples of a folder of JPEGs: Poseidon's pipeline beside Pillow's and torchvision's way.

Every variant does the same per image: read the file, decode, random resized crop to 224, mirror, normalise to float32 CHW.
They run in turns, one thread each, on the same files (cached by the system: this measures processors, not disks); ratios
are of the same round. Needs Debian's python3-pil, python3-numpy and python3-torch, and the release build.

    /usr/bin/python3 bench/data/loader.py [--images 400] [--rounds 5] [--json FILE]
    /usr/bin/python3 bench/data/loader.py --tiny           # does it run? seconds
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224

try:
    import numpy as np
    from PIL import Image
except ImportError as missing:
    print(f"skipped: {missing} (Debian: python3-pil, python3-numpy)")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None


def make_images(folder, count):
    """Photograph-like: smooth shapes, edges and grain, around 500 x 375, quality 85 to 95, as ImageNet's."""
    generator = np.random.default_rng(1)
    for i in range(count):
        height, width = (375, 500) if i % 4 else (500, 375)
        coarse = generator.integers(0, 256, (height // 25 + 1, width // 25 + 1, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC)).astype(np.int16)
        edges = generator.integers(0, 2, (height // 60 + 1, width // 60 + 1, 1)).repeat(60, 0).repeat(60, 1)
        image = image + 40 * edges[:height, :width] + generator.normal(0, 5, (height, width, 1)).astype(np.int16)
        path = folder / f"class{i % 10}" / f"{i:05d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(path, quality=85 + i % 11)


def crop_box(width, height):
    """torchvision's RandomResizedCrop.get_params."""
    area = width * height
    for _ in range(10):
        target = area * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    return 0, 0, side, side


def load_pillow(path):
    with open(path, "rb") as file:
        image = Image.open(file).convert("RGB")
    image = image.crop(crop_box(*image.size)).resize((SIZE, SIZE), Image.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    return image


def pillow_numpy(path):
    values = np.asarray(load_pillow(path), dtype=np.float32)
    values -= np.float32(255) * np.array(MEAN, np.float32)
    values *= 1 / (np.float32(255) * np.array(STD, np.float32))
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def torchvision_like(path):
    """ToTensor and Normalize, as torchvision writes them."""
    image = load_pillow(path)
    tensor = torch.from_numpy(np.array(image, np.uint8, copy=True))
    tensor = tensor.permute((2, 0, 1)).contiguous().to(torch.float32).div(255)
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
    return tensor.sub_(mean).div_(std)


def time_python(load, paths):
    begin = time.perf_counter()
    for path in paths:
        load(path)
    return time.perf_counter() - begin


def time_poseidon(folder, images, source):
    command = [BUILD / "bin" / "poseidon-bench-data", "--format", source, "--path", folder, "--samples", str(images),
               "--threads", "1"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    return json.loads(answer.stdout)["seconds"]


def measure(folder, packed, images, rounds):
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    variants = {"poseidon, image_folder": lambda: time_poseidon(folder, images, "image_folder"),
                "poseidon, records": lambda: time_poseidon(packed, images, "records"),
                "Pillow + numpy": lambda: time_python(pillow_numpy, paths)}
    if torch is not None:
        torch.set_num_threads(1)
        variants["Pillow + torchvision's steps"] = lambda: time_python(torchvision_like, paths)
    for path in paths:
        pathlib.Path(path).read_bytes()
    seconds = {name: [] for name in variants}
    for turn in range(rounds):
        names = list(variants)
        names = names[turn % len(names):] + names[:turn % len(names)]
        for name in names:
            seconds[name].append(variants[name]())
    return seconds


def report(seconds, images):
    ours = seconds["poseidon, image_folder"]
    rows = []
    for name, times in seconds.items():
        rows.append({"variant": name, "images_per_s": images / statistics.median(times),
                     "poseidon_to_it": statistics.median(t / o for t, o in zip(times, ours))})
        print(f"{name:30} {rows[-1]['images_per_s']:8.0f} images/s   image_folder to it {rows[-1]['poseidon_to_it']:5.2f}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a handful of images, one round")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.tiny:
        options.images, options.rounds = 20, 1
    random.seed(1)
    with tempfile.TemporaryDirectory(prefix="poseidon-bench-") as name:
        folder, packed = pathlib.Path(name) / "images", pathlib.Path(name) / "packed"
        folder.mkdir()
        make_images(folder, options.images)
        subprocess.run([BUILD / "bin" / "poseidon", "data", "pack", folder, "--to", packed], check=True,
                       stdout=subprocess.DEVNULL, timeout=600)
        file_bytes = [path.stat().st_size for path in folder.rglob("*.jpg")]
        print(f"{options.images} JPEGs of {statistics.mean(file_bytes) / 1000:.0f} kB, {options.rounds} rounds")
        rows = report(measure(folder, packed, options.images, options.rounds), options.images)
    if options.json:
        options.json.write_text(json.dumps({"images": options.images, "rounds": options.rounds, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
