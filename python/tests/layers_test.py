"""Layers of a module, their order and declaration (poseidon/torch/layers.py)."""

import unittest

import support
from support import torch

if torch:
    from torch import nn

    from poseidon import Invalid
    from poseidon.torch import layers as layers_of

    class Tied(nn.Module):
        """An embedding that is the head's weight too, and a parameter of the root."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.head = nn.Linear(4, 10, bias=False)
            self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 4))
            self.embedding = nn.Embedding(10, 4)
            self.head.weight = self.embedding.weight
            self.body[3].weight.requires_grad_(False)

        def forward(self, x):
            return self.head(self.body(self.embedding(x)).mul(self.scale))


def layers(model):
    return layers_of.find_layers(model, {id(p) for p in model.parameters()})


@unittest.skipUnless(torch, "torch is not installed")
class LayersTest(unittest.TestCase):
    def test_owner_is_the_first_module(self):
        found = {layer.name: [name for name, _ in layer.tensors] for layer in layers(Tied())}
        self.assertEqual(found, {"scale": [""], "head": ["weight"], "body.0": ["weight", "bias"],
                                 "body.2": ["weight", "bias"], "body.3": ["bias"]})

    def test_full_names_are_those_of_named_parameters(self):
        model = Tied()
        names = [name for layer in layers(model) for name in layer.full_names()]
        self.assertEqual(sorted(names), sorted(name for name, p in model.named_parameters() if p.requires_grad))

    def test_declaration(self):
        model = Tied()
        state = [(name, buffer.shape) for name, buffer in layers_of.find_state(model)]
        self.assertEqual(layers_of.declare("tied.py", layers(model), state), {
            "name": "tied.py",
            "declared": [
                {"name": "scale", "tensors": [{"shape": []}]},
                {"name": "head", "tensors": [{"name": "weight", "shape": [10, 4]}]},
                {"name": "body.0", "tensors": [{"name": "weight", "shape": [8, 4]}, {"name": "bias", "shape": [8]}],
                 "type": "linear", "multiply_adds": 32},
                {"name": "body.2", "tensors": [{"name": "weight", "shape": [8]}, {"name": "bias", "shape": [8]}]},
                {"name": "body.3", "tensors": [{"name": "bias", "shape": [4]}]}],
            "state": [{"name": "body.2.running_mean", "shape": [8]}, {"name": "body.2.running_var", "shape": [8]}]})

    def test_order_of_the_first_forward_pass(self):
        model = Tied()
        before = model.body[2].running_mean.clone()
        random = torch.random.get_rng_state()
        called = layers_of.observed_order(model, (torch.tensor([1, 2, 3]),))
        self.assertTrue(torch.equal(model.body[2].running_mean, before))
        self.assertTrue(torch.equal(torch.random.get_rng_state(), random))
        self.assertEqual([layer.name for layer in layers_of.in_order(layers(model), called)],
                         ["scale", "body.0", "body.2", "body.3", "head"])

    def test_a_module_that_is_not_called_stays_behind_the_one_before_it(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
        ordered = layers_of.in_order(layers(model), [model[2], model[0]])
        self.assertEqual([layer.name for layer in ordered], ["2", "0", "1"])

    def test_refused(self):
        with self.assertRaisesRegex(Invalid, "'a b.weight': a name has"):
            layers(nn.ModuleDict({"a b": nn.Linear(1, 1)}))
        with self.assertRaisesRegex(Invalid, "0.weight is torch.float64"):
            layers(nn.Sequential(nn.Linear(1, 1).double()))
        with self.assertRaisesRegex(Invalid, "0.weight has no elements"):
            layers(nn.Sequential(nn.Embedding(0, 4)))


if __name__ == "__main__":
    support.main()
