#!/usr/bin/env python3
"""Poseidon's sampling rule in plain Python: a reference for golden scripts and for people.

docs/sampling.md explains it. Import it, or run it to print the data set indices of one batch:
    tests/data/sampling.py --size 1437 --seed 1 --workers 4 --batch-size 32 --rank 0 --iteration 7
"""

import argparse

MASK = (1 << 64) - 1
TRANSFORM_STREAM = 0x7472616E73666F72


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


def mix_seed(a, b):
    return SplitMix64(SplitMix64(a).next() ^ ((b + 0x9E3779B97F4A7C15) & MASK)).next()


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
