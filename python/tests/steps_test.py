"""Loops that begin where the job is: steps(), batch_sampler(), register_state() (poseidon/torch/steps.py, sampling.py)."""

import collections
import copy
import importlib.util
import os
import pathlib
import unittest
from unittest import mock

import support
from support import torch

if torch:
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import poseidon.torch as poseidon
    import twin
    from poseidon import Invalid, Rewound
    from poseidon.torch import registered, sampling

    class RewindingBackend(twin.TwinBackend):
        """A cluster of one that goes back to step BACK once, when it waits after step AT: plain SGD has no other state."""

        AT, BACK = 5, 3

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.kept, self.rewound = None, False

        def wait(self, layer):
            landing = self.sent[layer] is not None
            super().wait(layer)
            if not landing or layer != len(self.memory) - 1:
                return
            if self._steps == self.BACK and self.kept is None:
                self.kept = ([parameters.clone() for parameters, _ in self.memory], self._state.clone())
            if self._steps == self.AT and not self.rewound:
                self.rewound, self._steps = True, self.BACK
                values, state = self.kept
                cluster = self.cluster
                cluster.sent.clear()
                cluster.rates.clear()
                self.sent = [None] * len(values)
                for value, server, (parameters, _) in zip(values, cluster.layers, self.memory):
                    server.values, server.steps = value.clone(), self.BACK
                    server.parameters[0].data = value.clone()
                    parameters.copy_(value)
                self._state.copy_(state)
                raise Rewound("server 0 was lost")


def shipped_sampling():
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/data/sampling.py"
    spec = importlib.util.spec_from_file_location("sampling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dataset(samples=24):
    random = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(samples, 3, generator=random), torch.arange(samples))


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 1, bias=False))


def run(make_backend, seen, register=False):
    model, data = network(), dataset()
    model, optimizer = poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), backend=make_backend)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
    if register:
        poseidon.register_state("scheduler", scheduler)
    loader = DataLoader(data, batch_sampler=poseidon.batch_sampler(data, 4))
    for x, index in poseidon.steps(loader, epochs=2):
        model(x).square().mean().backward()
        seen.append((index.tolist(), optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    state = copy.deepcopy(model.state_dict())
    poseidon.finish()
    return state


@unittest.skipUnless(torch, "torch is not installed")
class SamplingTest(unittest.TestCase):
    def test_permutation_is_the_engine_s(self):
        self.assertEqual(sampling.permutation(1, 0, 10), [1, 4, 3, 5, 9, 0, 6, 7, 8, 2])
        self.assertEqual(sampling.permutation(1, 1, 10), [0, 2, 4, 8, 1, 6, 7, 9, 3, 5])
        shipped = shipped_sampling()
        self.assertEqual(sampling.permutation(7, 3, 100), shipped.permutation(7, 3, 100))

    def test_batches_of_ranks_are_those_of_one_worker(self):
        data = dataset(10)

        def batches(make_backend, rank):
            model = models[rank]
            poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=1), backend=make_backend)
            sampler = poseidon.batch_sampler(data, 2, seed=5)
            result = [batch for _ in range(5) for batch in sampler]
            poseidon.finish()
            return len(sampler), result

        models = [network(), network()]
        (length, first), (_, second) = twin.run(2, batches)[0]
        order = sum((sampling.permutation(5, i, 10) for i in range(2)), [])
        self.assertEqual(length, 2)
        self.assertEqual([a + b for a, b in zip(first, second)][:5], [order[i:i + 4] for i in range(0, 20, 4)])
        self.assertEqual(collections.Counter(sum(first[:5] + second[:5], [])), {i: 2 for i in range(10)})

    def test_without_shuffle(self):
        poseidon.distribute(network(), None)
        self.assertEqual(list(sampling.BatchSampler(5, 2, shuffle=False)), [[0, 1], [2, 3]])
        with self.assertRaisesRegex(Invalid, "batch_size is 0"):
            sampling.BatchSampler(5, 0)


@unittest.skipUnless(torch, "torch is not installed")
class StepsTest(unittest.TestCase):
    def test_alone(self):
        data = dataset(6)
        loader = DataLoader(data, batch_size=2)
        poseidon.distribute(network(), None)
        self.assertEqual([index.tolist() for _, index in poseidon.steps(loader, 2)], [[0, 1], [2, 3], [4, 5]] * 2)
        self.assertEqual((poseidon.rank(), poseidon.world_size()), (0, 1))

    def test_begins_where_the_job_is(self):
        for batch_sampler in (True, False):
            data = dataset(12)
            loader = (DataLoader(data, batch_sampler=sampling.BatchSampler(12, 2, shuffle=False)) if batch_sampler
                      else DataLoader(data, batch_size=2))

            class Later:
                iteration, rewinds, counts_steps, rank, world_size = 7, 0, False, 0, 1

                def settle(self):
                    pass
            with mock.patch("poseidon.torch.steps.current", Later), mock.patch("poseidon.torch.sampling.current", Later):
                self.assertEqual([index.tolist() for _, index in poseidon.steps(loader, 2)], [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]])

    def test_goes_back_with_the_job(self):
        plain, disturbed = [], []
        reference = twin.run(1, lambda make_backend, rank: run(make_backend, plain, True))[0][0]
        state = twin.run(1, lambda make_backend, rank: run(make_backend, disturbed, True), kind=RewindingBackend)[0][0]
        at, back = RewindingBackend.AT, RewindingBackend.BACK
        self.assertEqual(len(plain), 12)
        self.assertEqual(disturbed[:at] + disturbed[at + 1:], plain[:at] + plain[back:], "the iteration in which it was heard of does not count")
        self.assertTrue(torch.equal(state["0.weight"], reference["0.weight"]))

    def test_a_step_too_few_is_said(self):
        def script(make_backend, rank):
            model, data = network(), dataset()
            poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), backend=make_backend)
            for _ in poseidon.steps(DataLoader(data, batch_size=4), 1):
                pass
        with self.assertRaisesRegex(Invalid, "needs one optimizer step per 1 batches"):
            twin.run(1, script)
        with self.assertRaisesRegex(Invalid, "which 4 batches per step do not divide"):
            list(poseidon.steps(DataLoader(dataset(), batch_size=4), 1, batches_per_step=4))


@unittest.skipUnless(torch, "torch is not installed")
class RegisteredTest(unittest.TestCase):
    def test_states_come_back(self):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        schedulers = [torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
                      torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1)]
        states = {str(i): scheduler.state_dict() for i, scheduler in enumerate(schedulers)}
        self.assertEqual(registered.decode(registered.encode(states, 4096)), states)
        self.assertEqual(registered.decode(torch.zeros(16)), {})

    def test_refused(self):
        with self.assertRaisesRegex(Invalid, "take 35 bytes: say distribute\\(..., registered_bytes=...\\), which is 8"):
            registered.encode({"a": {}}, 8)
        with self.assertRaisesRegex(Invalid, "'model': its state_dict\\(\\) can have numbers"):
            registered.encode({"model": network().state_dict()}, 4096)


if __name__ == "__main__":
    support.main()
