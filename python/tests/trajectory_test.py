"""Scripts on 1, 2 and 4 workers train as one process with the whole batch does: issue 46, "To show" 1, on the twin."""

import copy
import unittest

import support
from support import torch

if torch:
    from torch import nn
    from torch.nn import functional

    import poseidon.torch as poseidon
    import twin
else:
    class nn:
        Module = object

ITERATIONS = 20
BATCH = 8  # of all workers together
RELATIVE = 1e-5


class Script:
    """One script: model() is the same everywhere; batch(i) is that of all workers; train() is what a user writes."""

    clip_norm = None
    parts = 1  # of a batch, for accumulation

    def make(self):
        torch.manual_seed(7)
        return self.model()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)

    def loss(self, model, x, y):
        return functional.cross_entropy(model(x), y)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))

    def batch(self, i):
        random = torch.Generator().manual_seed(i)
        return torch.randn(BATCH, 12, generator=random), torch.randint(0, 5, (BATCH,), generator=random)

    def shares(self, x, y, workers):
        return zip(x.chunk(workers), y.chunk(workers))


class Mlp(Script):
    def model(self):
        return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16, bias=False), nn.Tanh(), nn.Linear(16, 5))


class Accumulating(Mlp):
    parts = 2


class Residual(Script):
    """With batch norm over each worker's share, which the reference does alike."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
            self.conv1, self.norm1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
            self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
            self.head = nn.Linear(6, 5)

        def forward(self, x):
            x = torch.relu(self.norm(self.stem(x)))
            x = torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))
            return self.head(x.mean((2, 3)))

    def model(self):
        return self.Net()

    def batch(self, i):
        random = torch.Generator().manual_seed(i)
        return torch.randn(BATCH, 3, 6, 6, generator=random), torch.randint(0, 5, (BATCH,), generator=random)


class Gpt(Script):
    """Tied embeddings, an attention whose out_proj is never called, clipping, two parameter groups."""

    clip_norm = 0.5

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(11, 8)
            self.places = nn.Parameter(0.1 * torch.randn(6, 8))
            self.blocks = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(8), "attention": nn.MultiheadAttention(8, 2, batch_first=True),
                                                       "up": nn.Linear(8, 16), "down": nn.Linear(16, 8)}) for _ in range(2))
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            x = self.tokens(x) + self.places
            for block in self.blocks:
                h = block["norm"](x)
                x = x + block["attention"](h, h, h, attn_mask=mask, need_weights=False)[0]
                x = x + block["down"](functional.gelu(block["up"](x)))
            return self.head(x)

    def model(self):
        return self.Net()

    def optimizer(self, model):
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 2e-3}], lr=1e-3, eps=1e-4)

    def loss(self, model, x, y):
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def batch(self, i):
        random = torch.Generator().manual_seed(i)
        x = torch.randint(0, 11, (BATCH, 7), generator=random)
        return x[:, :-1], x[:, 1:]


class SparseEmbedding(Script):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.table(x).mean(1))

    def model(self):
        return self.Net()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.5)

    def batch(self, i):
        random = torch.Generator().manual_seed(i)
        return torch.randint(0, 50, (BATCH, 3), generator=random), torch.randint(0, 5, (BATCH,), generator=random)


def whole_batch(script, workers):
    """The reference: plain torch, the mean of the gradients of `workers` shares (one for models without batch norm)."""
    model = script.make()
    optimizer = script.optimizer(model)
    scheduler = script.scheduler(optimizer)
    for i in range(ITERATIONS):
        optimizer.zero_grad()
        shares = list(script.shares(*script.batch(i), workers * script.parts))
        (sum(script.loss(model, x, y) for x, y in shares) / len(shares)).backward()
        if script.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), script.clip_norm)
        optimizer.step()
        scheduler.step()
    return list(model.named_parameters())


def train(script, model, optimizer, rank, workers, scheduler, set_to_none=True):
    """What a user writes. The losses."""
    losses = []
    for i in range(ITERATIONS):
        x, y = list(script.shares(*script.batch(i), workers))[rank]
        optimizer.zero_grad(set_to_none=set_to_none)
        parts = list(script.shares(x, y, script.parts))
        with poseidon.no_sync(model):
            for x, y in parts[:-1]:
                (script.loss(model, x, y) / script.parts).backward()
        loss = script.loss(model, *parts[-1]) / script.parts
        loss.backward()
        if script.clip_norm:
            poseidon.clip_grad_norm_(model.parameters(), script.clip_norm)
        poseidon.report(loss)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def distributed(script, workers, step, set_to_none=True, scheduler_first=False):
    models = [script.make() for _ in range(workers)]  # torch's random state is the process's

    def work(make_backend, rank):
        model = models[rank]
        if rank > 0:  # worker 0's values must become everyone's
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1)
        optimizer = script.optimizer(model)
        scheduler = script.scheduler(optimizer) if scheduler_first else None
        kind = type(optimizer)
        model, optimizer = poseidon.distribute(model, optimizer, step=step, backend=make_backend)
        assert isinstance(optimizer, kind) and (poseidon.rank(), poseidon.world_size()) == (rank, workers)
        losses = train(script, model, optimizer, rank, workers, scheduler or script.scheduler(optimizer), set_to_none)
        state = copy.deepcopy(model.state_dict())
        poseidon.finish()
        return state, losses

    return twin.run(workers, work)[0]


@unittest.skipUnless(torch, "torch is not installed")
class TrajectoryTest(unittest.TestCase):
    def compare(self, script, workers, step, **options):
        reference = whole_batch(script, workers if isinstance(script, Residual) else 1)
        results = distributed(script, workers, step, **options)
        for state, _ in results:
            for name, value in reference:
                error = (state[name] - value).norm() / value.norm()
                self.assertLess(error.item(), RELATIVE, f"{name} on {workers} workers, step {step}")
        for name, _ in reference:
            self.assertTrue(all(torch.equal(results[0][0][name], state[name]) for state, _ in results), name)
        return results

    def each(self, script):
        for step in ("server", "layer", "worker"):
            for workers in (1, 2, 4):
                with self.subTest(step=step, workers=workers):
                    self.compare(script, workers, step)

    def test_mlp(self):
        self.each(Mlp())

    def test_residual_with_batch_norm(self):
        self.each(Residual())

    def test_gpt_with_tied_embeddings_and_clipping(self):
        self.each(Gpt())

    def test_accumulation(self):
        self.each(Accumulating())

    def test_sparse_embedding(self):
        self.each(SparseEmbedding())

    def test_same_bytes_twice(self):
        for step in ("server", "layer", "worker"):
            first, second = (distributed(Gpt(), 4, step) for _ in range(2))
            for (state, losses), (other_state, other_losses) in zip(first, second):
                self.assertEqual(losses, other_losses)
                self.assertTrue(all(torch.equal(state[name], other_state[name]) for name in state))

    def test_zero_grad_that_keeps_the_tensors(self):
        for step in ("server", "layer", "worker"):
            self.compare(Mlp(), 2, step, set_to_none=False)

    def test_scheduler_made_before(self):
        for step in ("server", "layer", "worker"):
            self.compare(Mlp(), 2, step, scheduler_first=True)


if __name__ == "__main__":
    support.main()
