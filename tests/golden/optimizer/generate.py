#!/usr/bin/env python3
"""Writes optimizer.json: what torch.optim does to a few parameters in a few steps.

Run with a Python that has PyTorch (Debian: python3-torch); the result is checked in, so no test needs it:
    /usr/bin/python3 tests/golden/optimizer/generate.py
"""

import json
import pathlib

import torch

STEPS = 6
SIZE = 7
CASES = [
    {"name": "sgd", "type": "sgd", "learning_rate": 0.1},
    {"name": "sgd_decay", "type": "sgd", "learning_rate": 0.1, "weight_decay": 0.01},
    {"name": "momentum", "type": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    {"name": "momentum_decay", "type": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0005},
    {"name": "nesterov_decay", "type": "sgd", "learning_rate": 0.05, "momentum": 0.9, "nesterov": True,
     "weight_decay": 0.01},
    {"name": "adam", "type": "adam", "learning_rate": 0.001},
    {"name": "adam_decay", "type": "adam", "learning_rate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6,
     "weight_decay": 0.1},
    {"name": "adamw", "type": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
]


def learning_rate(case, iteration):
    """The step schedule of the test: a third after every two iterations."""
    return case["learning_rate"] * (1.0 / 3.0) ** (iteration // 2)


def make_optimizer(case, parameter):
    decay = case.get("weight_decay", 0.0)
    if case["type"] == "sgd":
        return torch.optim.SGD([parameter], lr=case["learning_rate"], momentum=case.get("momentum", 0.0),
                               nesterov=case.get("nesterov", False), weight_decay=decay)
    kind = torch.optim.Adam if case["type"] == "adam" else torch.optim.AdamW
    betas = (case.get("beta1", 0.9), case.get("beta2", 0.999))
    return kind([parameter], lr=case["learning_rate"], betas=betas, eps=case.get("epsilon", 1e-8),
                weight_decay=decay)


def main():
    torch.manual_seed(1)
    start = torch.randn(SIZE)
    gradients = [torch.randn(SIZE) for _ in range(STEPS)]
    cases = []
    for case in CASES:
        parameter = torch.nn.Parameter(start.clone())
        optimizer = make_optimizer(case, parameter)
        trajectory = []
        for iteration, gradient in enumerate(gradients):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(case, iteration)
            parameter.grad = gradient.clone()
            optimizer.step()
            trajectory.append(parameter.detach().tolist())
        cases.append({**case, "trajectory": trajectory})
    result = {
        "generator": "tests/golden/optimizer/generate.py, torch " + torch.__version__,
        "start": start.tolist(),
        "gradients": [gradient.tolist() for gradient in gradients],
        "cases": cases,
    }
    path = pathlib.Path(__file__).with_name("optimizer.json")
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
