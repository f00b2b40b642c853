"""Initial weights of LeNet for the golden trajectory: a function of a seed, bit for bit, in plain Python.

The generator below is common/random.h in Python; every value is an exact float32.
"""

import hashlib
import json
import struct

MASK = (1 << 64) - 1
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


class SplitMix64:
    """common/random.h"""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound):
        return (self.next() * bound) >> 64

    def uniform(self):
        return (self.next() >> 40) * 2.0**-24


def mix_seed(a, b):
    return SplitMix64(SplitMix64(a).next() ^ ((b + 0x9E3779B97F4A7C15) & MASK)).next()


def permutation(seed, number, size):
    """docs/sampling.md: Fisher-Yates for one pass over the data."""
    random = SplitMix64(mix_seed(seed, number))
    order = list(range(size))
    for i in range(size - 1, 0, -1):
        j = random.below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def power_of_two_scale(fan_in):
    """The largest power of two not above 1/sqrt(fan_in): multiplying by it rounds nothing."""
    scale = 1.0
    while scale * scale * fan_in > 1.0:
        scale /= 2
    return scale


def tensors():
    """Yields (name, shape, float32 bytes)."""
    for index, (name, shape, fan_in) in enumerate(TENSORS):
        count = 1
        for size in shape:
            count *= size
        values = [0.0] * count
        if fan_in:
            random = SplitMix64(mix_seed(SEED, index))
            # 24 random bits minus one half: still exact in float32.
            scale = 2 * power_of_two_scale(fan_in)
            values = [(random.uniform() - 0.5) * scale for _ in range(count)]
        yield name, shape, struct.pack(f"<{count}f", *values)


def safetensors_bytes():
    header, body = {}, b""
    for name, shape, data in tensors():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def write(path):
    """Writes the safetensors file; returns its SHA-256."""
    data = safetensors_bytes()
    with open(path, "wb") as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()
