#!/usr/bin/env python3
"""Writes optimizer.json: what torch.optim does to a few parameters in a few steps, and what its schedulers give.

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


SCHEDULE_STEPS = 25
SCHEDULES = [
    {"type": "constant"},
    {"type": "step", "step_iterations": 4, "gamma": 0.3},
    {"type": "multistep", "milestones_iterations": [3, 5, 17], "gamma": 0.5},
    {"type": "exponential", "gamma": 0.9},
    {"type": "inverse", "gamma": 0.1, "power": 0.75},
    {"type": "polynomial", "end_iteration": 20, "power": 1.0},
    {"type": "polynomial", "end_iteration": 20, "power": 0.5},
    {"type": "polynomial", "end_iteration": 20, "power": 2.3},
    {"type": "cosine", "end_iteration": 20, "minimum": 0.01},
    {"type": "cosine", "end_iteration": 30, "minimum": 0.0},
]


def make_scheduler(spec, optimizer):
    kinds = torch.optim.lr_scheduler
    kind = spec["type"]
    if kind == "step":
        return kinds.StepLR(optimizer, spec["step_iterations"], spec["gamma"])
    if kind == "multistep":
        return kinds.MultiStepLR(optimizer, spec["milestones_iterations"], spec["gamma"])
    if kind == "exponential":
        return kinds.ExponentialLR(optimizer, spec["gamma"])
    if kind == "polynomial":
        return kinds.PolynomialLR(optimizer, spec["end_iteration"], spec["power"])
    if kind == "cosine":
        return kinds.CosineAnnealingLR(optimizer, spec["end_iteration"], spec["minimum"])
    if kind == "inverse":  # Caffe's; PyTorch has none
        return kinds.LambdaLR(optimizer, lambda i: (1.0 + spec["gamma"] * i) ** -spec["power"])
    return kinds.LambdaLR(optimizer, lambda i: 1.0)


def schedule_case(spec):
    rate = 0.4
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = make_scheduler(spec, optimizer)
    # Beyond its end PyTorch's cosine turns back up; ours stays at the minimum, so it is not asked.
    steps = min(SCHEDULE_STEPS, spec["end_iteration"] + 1) if spec["type"] == "cosine" else SCHEDULE_STEPS
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {**spec, "learning_rate": rate, "rates": rates}


TENSOR_SHAPES = {"weight": 7, "bias": 3}
TENSOR_CASES = [
    {"name": "clip", "type": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.001, "clip_norm": 0.5},
    {"name": "clip_loose", "type": "sgd", "learning_rate": 0.1, "momentum": 0.9, "clip_norm": 1000.0},
    {"name": "clip_adamw", "type": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "clip_norm": 0.5},
    {"name": "lars", "type": "lars", "learning_rate": 0.5, "momentum": 0.9, "weight_decay": 0.01,
     "trust_coefficient": 0.02},
    {"name": "lars_bias_alone", "type": "lars", "learning_rate": 0.5, "momentum": 0.9, "weight_decay": 0.01,
     "trust_coefficient": 0.02,
     "bias": {"learning_rate_multiplier": 0.1, "weight_decay_multiplier": 0.0, "trust_ratio": False}},
    {"name": "lars_clip", "type": "lars", "learning_rate": 0.5, "momentum": 0.5, "weight_decay": 0.01,
     "trust_coefficient": 0.02, "clip_norm": 0.5},
]


class Lars:
    """Algorithm 1 of You, Gitman, Ginsburg 2017, which PyTorch does not have."""

    def __init__(self, case, tensors):
        self.case, self.tensors = case, tensors
        self.momenta = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}

    @torch.no_grad()
    def step(self):
        for name, w in self.tensors.items():
            rule = self.case.get(name, {})
            decay = self.case["weight_decay"] * rule.get("weight_decay_multiplier", 1.0)
            ratio = 1.0
            if rule.get("trust_ratio", True):
                ratio = self.case["trust_coefficient"] * w.norm() / (w.grad.norm() + decay * w.norm())
            rate = self.case["learning_rate"] * rule.get("learning_rate_multiplier", 1.0) * ratio
            m = self.momenta[name]
            m.mul_(self.case["momentum"]).add_(rate * (w.grad + decay * w))
            w.sub_(m)


def tensor_case(case, starts, gradients):
    tensors = {name: torch.nn.Parameter(start.clone()) for name, start in starts.items()}
    if case["type"] == "lars":
        optimizer = Lars(case, tensors)
    elif case["type"] == "sgd":
        optimizer = torch.optim.SGD(tensors.values(), lr=case["learning_rate"], momentum=case["momentum"],
                                    weight_decay=case.get("weight_decay", 0.0))
    else:
        optimizer = torch.optim.AdamW(tensors.values(), lr=case["learning_rate"], weight_decay=case["weight_decay"])
    trajectory = []
    for step in gradients:
        for name, tensor in tensors.items():
            tensor.grad = step[name].clone()
        if "clip_norm" in case:
            torch.nn.utils.clip_grad_norm_(tensors.values(), case["clip_norm"])
        optimizer.step()
        trajectory.append({name: tensor.detach().tolist() for name, tensor in tensors.items()})
    return {**case, "trajectory": trajectory}


def tensors_result():
    torch.manual_seed(2)
    starts = {name: torch.randn(size) for name, size in TENSOR_SHAPES.items()}
    gradients = [{name: torch.randn(size) for name, size in TENSOR_SHAPES.items()} for _ in range(STEPS)]
    return {
        "start": {name: start.tolist() for name, start in starts.items()},
        "gradients": [{name: g.tolist() for name, g in step.items()} for step in gradients],
        "cases": [tensor_case(case, starts, gradients) for case in TENSOR_CASES],
    }


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
        "tensors": tensors_result(),
        "schedules": [schedule_case(spec) for spec in SCHEDULES],
    }
    path = pathlib.Path(__file__).with_name("optimizer.json")
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
