#!/usr/bin/python3
"""Writes losses.json: the golden trajectory, by PyTorch. README.md beside it explains."""

import gzip
import hashlib
import json
import os
import struct
import sys

import torch
import torch.nn.functional as F

import lenet_weights
from sampling import permutation

FOLDER = os.path.dirname(os.path.abspath(__file__))

# README.md says why LeNet itself goes slowly and its twin with average pooling at full speed.
CASES = [{"pool": "max", "learning_rate": 0.0005}, {"pool": "average", "learning_rate": 0.002}]


def read_idx(path):
    with gzip.open(path) as file:
        data = file.read()
    dimensions = data[3]
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    return torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


def load_data(job):
    source = job["data"]["train"]
    transform = job["data"]["transform"]
    images = read_idx(os.path.join(FOLDER, source["images"])).unsqueeze(1).float()
    labels = read_idx(os.path.join(FOLDER, source["labels"])).long()
    images = F.interpolate(images, size=transform["resize"], mode="bilinear", align_corners=False)
    return images * transform["scale"], labels


def sample_numbers(job, size):
    """Endless: one permutation per pass, batches run on across the end of a pass."""
    number = 0
    while True:
        yield from permutation(job["data"]["seed"], number, size)
        number += 1


POOLS = {"max": F.max_pool2d, "average": F.avg_pool2d}


def forward(weights, x, pool):
    x = pool(F.conv2d(x, weights["conv1.weight"], weights["conv1.bias"]), 2)
    x = pool(F.conv2d(x, weights["conv2.weight"], weights["conv2.bias"]), 2)
    x = F.relu(F.linear(x.flatten(1), weights["ip1.weight"], weights["ip1.bias"]))
    return F.linear(x, weights["ip2.weight"], weights["ip2.bias"])


def train(job, case, dtype):
    images, labels = load_data(job)
    images = images.to(dtype)
    weights = {
        name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape).to(dtype).requires_grad_()
        for name, shape, data in lenet_weights.tensors()
    }
    rule = dict(job["optimizer"], learning_rate=case["learning_rate"])
    optimizer = torch.optim.SGD(
        weights.values(), lr=rule["learning_rate"], momentum=rule["momentum"], weight_decay=rule["weight_decay"]
    )
    numbers = sample_numbers(job, len(labels))
    losses = []
    for _ in range(job["iterations"]):
        batch = [next(numbers) for _ in range(job["batch_size"])]
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(weights, images[batch], POOLS[case["pool"]]), labels[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.set_num_threads(1)
    with open(os.path.join(FOLDER, "job.json")) as file:
        job = json.load(file)
    result = {
        "torch": torch.__version__,
        "weights_sha256": hashlib.sha256(lenet_weights.safetensors_bytes()).hexdigest(),
        "cases": CASES,
    }
    for case in CASES:
        case["losses"] = train(job, case, torch.float32)
        if "--sensitivity" in sys.argv:
            exact = train(job, case, torch.float64)
            worst = max(abs(a - b) / abs(b) for a, b in zip(case["losses"], exact))
            first, last = case["losses"][0], case["losses"][-1]
            print(f"{case['pool']}: loss {first:.4f} -> {last:.6f}; float32 against float64: {worst:.2e} relative at worst")
    if "--sensitivity" in sys.argv:
        return
    with open(os.path.join(FOLDER, "losses.json"), "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
