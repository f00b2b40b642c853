#!/usr/bin/env python3
"""All that is random in a run, in plain Python: a reference for golden scripts and for people.

docs/sampling.md explains it. Import it, or run it to print the data set indices of one batch:
    tests/data/sampling.py --size 1437 --seed 1 --workers 4 --batch-size 32 --rank 0 --iteration 7
"""

import argparse
import math
import struct

MASK = (1 << 64) - 1
TRANSFORM_STREAM = 0x7472616E73666F72
RESIZED_CROP_STREAM = 0x726573697A656372
COLOUR_STREAM = 0x636F6C6F75726A69


class SplitMix64:
    """common/base/random.h"""

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

    def uniform(self, low, high):
        """53 random bits."""
        return low + (high - low) * ((self.next() >> 11) * 2.0**-53)

    def uniform24(self):
        """From 0 to 1 with 24 random bits: exact in float32."""
        return (self.next() >> 40) * 2.0**-24

    def normal(self):
        """Box-Muller, the cosine branch."""
        u = ((self.next() >> 11) + 0.5) * 2.0**-53
        v = (self.next() >> 11) * 2.0**-53
        return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def mix_seed(a, b):
    return SplitMix64(SplitMix64(a).next() ^ ((b + 0x9E3779B97F4A7C15) & MASK)).next()


def fnv1a_64(text):
    """Turns names into seeds."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def permutation(seed, pass_number, size):
    """Order of one pass over the data."""
    order = list(range(size))
    random = SplitMix64(mix_seed(seed, pass_number))
    for i in range(size - 1, 0, -1):
        j = random.below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


class Sampler:
    """Data set index of each position of a run."""

    def __init__(self, size, shuffle=True, seed=1):
        self.size, self.shuffle, self.seed = size, shuffle, seed
        self.pass_number, self.order = None, None

    def index_at(self, position):
        pass_number, index = divmod(position, self.size)
        if not self.shuffle:
            return index
        if pass_number != self.pass_number:
            self.pass_number, self.order = pass_number, permutation(self.seed, pass_number, self.size)
        return self.order[index]

    def batch(self, iteration, workers, batch_size, rank):
        first = (iteration * workers + rank) * batch_size
        return [self.index_at(first + k) for k in range(batch_size)]


def transform_choices(seed, position, top_choices, left_choices):
    """Crop corner in the padded image and whether to mirror, for the sample at a position of the run."""
    random = SplitMix64(mix_seed(seed ^ TRANSFORM_STREAM, position))
    top = random.below(top_choices)
    left = random.below(left_choices)
    return top, left, random.next() >> 63 == 1


def resized_crop(seed, position, height, width, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    """(top, left, height, width) of a random resized crop: torchvision's rule on our random numbers."""
    random = SplitMix64(mix_seed(seed ^ RESIZED_CROP_STREAM, position))
    for _ in range(10):
        area = height * width * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 1 <= w <= width and 1 <= h <= height:
            top = random.below(height - h + 1)
            return top, random.below(width - w + 1), h, w
    w, h = width, height
    if width / height < ratio[0]:
        h = round(w / ratio[0])
    elif width / height > ratio[1]:
        w = round(h * ratio[1])
    h, w = min(max(h, 1), height), min(max(w, 1), width)
    return (height - h) // 2, (width - w) // 2, h, w


def colour_choices(seed, position, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0):
    """Order of the steps and their factors; the three normal numbers of the lighting."""
    random = SplitMix64(mix_seed(seed ^ COLOUR_STREAM, position))
    order = ["brightness", "contrast", "saturation", "hue"]
    for i in (3, 2, 1):
        j = random.below(i + 1)
        order[i], order[j] = order[j], order[i]
    factors = {name: random.uniform(max(0.0, 1 - strength), 1 + strength)
               for name, strength in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation))}
    factors["hue"] = random.uniform(-hue, hue)
    return order, factors, [random.normal() for _ in range(3)]


def dropout_keeps(seed, layer, position, elements, ratio=0.5):
    """Of one sample's elements in C x H x W order, which ones a dropout layer keeps in training."""
    random = SplitMix64(mix_seed(mix_seed(seed, fnv1a_64(layer)), position))
    return [random.uniform24() >= ratio for _ in range(elements)]


def initial_uniform(seed, tensor, count, bound):
    random = SplitMix64(mix_seed(seed, fnv1a_64(tensor)))
    return [float32((2 * random.uniform24() - 1) * bound) for _ in range(count)]


def initial_normal(seed, tensor, count, deviation, limit=math.inf):
    """Values beyond `limit` deviations are drawn anew, from a sequence of their own."""
    seed = mix_seed(seed, fnv1a_64(tensor))
    random = SplitMix64(seed)
    values = []
    for i in range(count):
        draw = random.normal()
        if abs(draw) > limit:
            again = SplitMix64(mix_seed(seed, i))
            while abs(draw) > limit:
                draw = again.normal()
        values.append(float32(draw * deviation))
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, required=True, help="samples in the data set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-shuffle", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--iteration", type=int, default=0)
    options = parser.parse_args()
    sampler = Sampler(options.size, not options.no_shuffle, options.seed)
    print(*sampler.batch(options.iteration, options.workers, options.batch_size, options.rank))


if __name__ == "__main__":
    main()
