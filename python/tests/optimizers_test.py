"""What of torch's optimizers the servers take, and how it is told to them (poseidon/torch/optimizers.py)."""

import unittest

import support
from support import torch

if torch:
    from torch import optim

    from poseidon.torch import optimizers


def parameters(count=2):
    return [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]


@unittest.skipUnless(torch, "torch is not installed")
class OptimizersTest(unittest.TestCase):
    def test_sgd(self):
        sgd = optim.SGD(parameters(), lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.25)
        self.assertEqual(optimizers.server_optimizer(sgd),
                         {"type": "sgd", "rates": "program", "learning_rate": 0.5, "momentum": 0.9, "nesterov": True})
        self.assertEqual(optimizers.server_optimizer(optim.SGD(parameters(), lr=0.5)),
                         {"type": "sgd", "rates": "program", "learning_rate": 0.5, "momentum": 0.0})

    def test_adam(self):
        expected = {"type": "adam", "rates": "program", "learning_rate": 0.5, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6}
        options = {"lr": 0.5, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.25}
        self.assertEqual(optimizers.server_optimizer(optim.Adam(parameters(), **options)), expected)
        self.assertEqual(optimizers.server_optimizer(optim.AdamW(parameters(), **options)), expected | {"type": "adamw"})

    def test_rates_are_those_of_the_groups(self):
        first, second = parameters()
        sgd = optim.SGD([{"params": [first]}, {"params": [second], "lr": torch.tensor(0.0)}], lr=0.5, weight_decay=0.1)
        self.assertEqual(optimizers.rates_of(sgd), ((0.5, 0.1), (0.0, 0.1)))

    def test_what_the_servers_do_not_take(self):
        first, second = parameters()
        cases = [
            (optim.SGD(parameters(), lr=1, momentum=0.9, dampening=0.5), "no dampening=0.5"),
            (optim.SGD(parameters(), lr=1, maximize=True), "no maximize=True"),
            (optim.Adam(parameters(), amsgrad=True), "no amsgrad=True"),
            (optim.SGD([{"params": [first]}, {"params": [second], "momentum": 0.5}], lr=1), "one momentum for all.*group 0 has 0, group 1 has 0.5"),
            (optim.RMSprop(parameters()), "not torch.optim.rmsprop.RMSprop"),
            (type("Mine", (optim.SGD,), {})(parameters(), lr=1), "Mine")]
        for optimizer, word in cases:
            self.assertRegex(optimizers.why_not_on_servers(optimizer), word)
        stepped = optim.Adam([first])
        first.grad = torch.ones(2)
        stepped.step()
        self.assertRegex(optimizers.why_not_on_servers(stepped), "has stepped already")

    def test_default_step(self):
        class Mine(optim.Optimizer):
            def step(self, closure=None):
                pass

        for optimizer, step in [(optim.AdamW(parameters()), "server"), (optim.Adam(parameters(), amsgrad=True), "layer"),
                                (optim.RMSprop(parameters()), "layer"), (optim.LBFGS(parameters()), "worker"),
                                (Mine(parameters(), {}), "worker")]:
            self.assertEqual(optimizers.default_step(optimizer), step, type(optimizer).__name__)


if __name__ == "__main__":
    support.main()
