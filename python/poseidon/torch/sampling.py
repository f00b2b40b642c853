"""Which sample is where (docs/sampling.md, whose numbers these are): a batch sampler that can begin at any iteration.

Called by: scripts, steps.py. Calls: distribute.py for rank and size. The permutation is pure.
"""

from poseidon.errors import Invalid
from poseidon.torch.distribute import current

MASK = (1 << 64) - 1


class SplitMix64:
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
    order = list(range(size))
    random = SplitMix64(mix_seed(seed, pass_number))
    for i in range(size - 1, 0, -1):
        j = random.below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


class BatchSampler:
    """For DataLoader(batch_sampler=...): this rank's batches of one epoch after the other.

    An epoch has len(dataset) / (batch_size * world size) batches, rounded down. What is left over begins the next epoch, so
    that each sample is used once per pass over the data.
    """

    def __init__(self, size, batch_size, shuffle=True, seed=0):
        if batch_size < 1 or size < 1:
            raise Invalid(f"batch_size is {batch_size} and the data set has {size} samples; each must be 1 or more")
        self.size, self.batch_size, self.shuffle, self.seed = size, batch_size, shuffle, seed
        self.next_batch = 0  # of this rank, counted over all epochs
        self._pass, self._order = -1, None

    def __len__(self):
        return max(1, self.size // (self.batch_size * current().world_size))

    def __iter__(self):
        here, length = current(), len(self)
        first = self.next_batch
        end = (first // length + 1) * length
        self.next_batch = end
        for batch in range(first, end):
            begin = (batch * here.world_size + here.rank) * self.batch_size
            yield [self._sample(position) for position in range(begin, begin + self.batch_size)]

    def _sample(self, position):
        pass_number, place = divmod(position, self.size)
        if not self.shuffle:
            return place
        if pass_number != self._pass:
            self._pass, self._order = pass_number, permutation(self.seed, pass_number, self.size)
        return self._order[place]


def batch_sampler(dataset, batch_size, shuffle=True, seed=0):
    """batch_size: per worker. Make it after distribute(), or before; it asks for the rank when it is iterated."""
    return BatchSampler(len(dataset), batch_size, shuffle, seed)
