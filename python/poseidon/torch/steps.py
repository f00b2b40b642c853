"""steps(): a loop over data that begins, and after a loss goes on, where the job is. Called by: scripts. Calls: session.py."""

from poseidon.errors import Invalid
from poseidon.torch.distribute import current
from poseidon.torch.sampling import BatchSampler


def steps(loader, epochs, *, batches_per_step=1):
    """The batches of `epochs` passes over `loader`, from the job's position on. One optimizer step per batches_per_step batches.

    A loader with poseidon.batch_sampler begins at any batch; of another one, the batches before the position are read and
    dropped, and it must give the same ones each time. A sampler with set_epoch is told the epoch.
    """
    length = len(loader)
    if length % batches_per_step:
        raise Invalid(f"an epoch has {length} batches, which {batches_per_step} batches per step do not divide")
    session = current()
    position, rewinds = session.iteration * batches_per_step, session.rewinds
    while position < epochs * length:
        for batch in _epoch_from(loader, position, length):
            yield batch
            position += 1
            if position % batches_per_step != 0 or not session.counts_steps:
                continue
            session.settle()
            there = session.iteration * batches_per_step
            if session.rewinds != rewinds:
                position, rewinds = there, session.rewinds
                break
            if there != position:
                raise Invalid(f"steps() needs one optimizer step per {batches_per_step} batches (batches_per_step=...): after {position} "
                              f"batches the job is at step {session.iteration}")


def _epoch_from(loader, position, length):
    epoch, offset = divmod(position, length)
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchSampler):
        sampler.next_batch = position
        yield from loader
        return
    if hasattr(getattr(loader, "sampler", None), "set_epoch"):
        loader.sampler.set_epoch(epoch)
    for i, batch in enumerate(loader):
        if i >= offset:
            yield batch
