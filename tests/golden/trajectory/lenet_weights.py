"""Initial weights of LeNet for the golden trajectory: a function of a seed, bit for bit, in plain Python.

The random generator is common/base/random.h (in Python: tests/data/sampling.py); every value is an exact float32.
"""

import hashlib
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data"))
from sampling import SplitMix64, mix_seed  # noqa: E402

SEED = 7

# name, shape, inputs per output (0: a bias, which starts at zero); models/lenet.json in PyTorch's layouts.
TENSORS = [
    ("conv1.weight", (20, 1, 5, 5), 25),
    ("conv1.bias", (20,), 0),
    ("conv2.weight", (50, 20, 5, 5), 500),
    ("conv2.bias", (50,), 0),
    ("ip1.weight", (500, 800), 800),
    ("ip1.bias", (500,), 0),
    ("ip2.weight", (10, 500), 500),
    ("ip2.bias", (10,), 0),
]


def power_of_two_scale(fan_in):
    """The largest power of two not above 1/sqrt(fan_in): multiplying by it rounds nothing."""
    scale = 1.0
    while scale * scale * fan_in > 1.0:
        scale /= 2
    return scale


def tensors(wanted=TENSORS):
    """Yields (name, shape, float32 bytes)."""
    for index, (name, shape, fan_in) in enumerate(wanted):
        count = 1
        for size in shape:
            count *= size
        values = [0.0] * count
        if fan_in:
            random = SplitMix64(mix_seed(SEED, index))
            # 24 random bits minus one half: still exact in float32.
            scale = 4 * power_of_two_scale(fan_in)
            values = [((random.next() >> 40) * 2.0**-24 - 0.5) * scale for _ in range(count)]
        yield name, shape, struct.pack(f"<{count}f", *values)


def safetensors_bytes(wanted=TENSORS):
    header, body = {}, b""
    for name, shape, data in tensors(wanted):
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def write(path, wanted=TENSORS):
    """Writes the safetensors file; returns its SHA-256."""
    data = safetensors_bytes(wanted)
    with open(path, "wb") as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()
