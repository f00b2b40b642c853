#!/usr/bin/python3
"""Writes solver.json: what the solver's options do to the golden trajectory, by PyTorch. README.md explains."""

import json
import math
import os

import torch
import torch.nn.functional as F

import lenet_weights
from generate import FOLDER, POOLS, forward, load_data, sample_numbers
from sampling import dropout_keeps

ITERATIONS = 60

# The rule that matches first counts. LARS leaves biases alone, as its authors do.
BIASES = {"match": "*.bias", "learning_rate_multiplier": 2, "weight_decay_multiplier": 0}
CASES = [
    {
        "name": "clipping, multipliers, cosine",
        "optimizer": {
            "type": "sgd", "learning_rate": 0.005, "momentum": 0.9, "nesterov": True, "weight_decay": 0.001,
            "clip_norm": 1.0, "layers": [BIASES, {"match": "conv1.weight", "learning_rate_multiplier": 0.5}],
            "schedule": {"type": "cosine", "warmup_iterations": 10, "minimum": 0.0002},
        },
    },
    {
        "name": "LARS, polynomial",
        "optimizer": {
            "type": "lars", "learning_rate": 0.2, "momentum": 0.9, "weight_decay": 0.001, "trust_coefficient": 0.005,
            "layers": [dict(BIASES, learning_rate_multiplier=0.005, trust_ratio=False)],
            "schedule": {"type": "polynomial", "power": 2},
        },
    },
    {
        "name": "LARS, clipping, a frozen layer",
        "optimizer": {
            "type": "lars", "learning_rate": 0.2, "momentum": 0.9, "weight_decay": 0.001, "trust_coefficient": 0.005,
            "clip_norm": 1.0, "layers": [{"match": "conv1.*", "learning_rate_multiplier": 0}],
        },
    },
    {
        "name": "Adam, weight decay, step",
        "optimizer": {
            "type": "adam", "learning_rate": 0.0003, "beta1": 0.85, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.01,
            "layers": [BIASES], "schedule": {"type": "step", "step_iterations": 25, "gamma": 0.5},
        },
    },
    {
        "name": "AdamW, clipping, warm-up",
        "optimizer": {
            "type": "adamw", "learning_rate": 0.0005, "weight_decay": 0.1, "clip_norm": 0.5,
            "layers": [BIASES, {"match": "conv1.*", "learning_rate_multiplier": 0}],
            "schedule": {"type": "constant", "warmup_iterations": 20},
        },
    },
    {
        "name": "dropout",
        "dropout": 0.4,
        "optimizer": {"type": "sgd", "learning_rate": 0.005, "momentum": 0.9, "weight_decay": 0.001},
    },
]


def rule_of(name, rules):
    for rule in rules:
        match = rule["match"]
        if match == name or (match.startswith("*") and name.endswith(match[1:])) or (
            match.endswith("*") and name.startswith(match[:-1])
        ):
            return rule
    return {}


def rate_at(spec, iteration, iterations=ITERATIONS):
    rate = spec["learning_rate"]
    schedule = spec.get("schedule", {"type": "constant"})
    done = iteration / iterations
    if schedule["type"] == "cosine":
        low = schedule["minimum"]
        rate = low + (rate - low) * (1 + math.cos(math.pi * done)) / 2
    elif schedule["type"] == "polynomial":
        rate *= (1 - done) ** schedule["power"]
    elif schedule["type"] == "step":
        rate *= schedule["gamma"] ** (iteration // schedule["step_iterations"])
    warmup = schedule.get("warmup_iterations", 0)
    return rate * (iteration + 1) / warmup if iteration < warmup else rate


class Lars(torch.optim.Optimizer):
    """Algorithm 1 of You, Gitman, Ginsburg 2017; groups with trust_ratio False have a ratio of 1."""

    def __init__(self, groups, lr, momentum, weight_decay, trust):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust,
                                  "trust_ratio": True})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                ratio = 1.0
                weights, gradient = w.norm().item(), w.grad.norm().item()
                if group["trust_ratio"] and weights > 0 and gradient > 0:
                    ratio = group["trust"] * weights / (gradient + group["weight_decay"] * weights)
                rate = group["lr"] * ratio
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                m.mul_(group["momentum"]).add_(w.grad + group["weight_decay"] * w, alpha=rate)
                w.sub_(m)


def make_optimizer(spec, weights):
    groups = []
    for name, weight in weights.items():
        rule = rule_of(name, spec.get("layers", []))
        multiplier = rule.get("learning_rate_multiplier", 1)
        if multiplier == 0:
            weight.requires_grad_(False)
            continue
        decay = spec["weight_decay"] * rule.get("weight_decay_multiplier", 1)
        group = {"params": [weight], "weight_decay": decay, "multiplier": multiplier}
        if spec["type"] == "lars":
            group["trust_ratio"] = rule.get("trust_ratio", True)
        groups.append(group)
    if spec["type"] == "lars":
        return Lars(groups, spec["learning_rate"], spec["momentum"], 0.0, spec["trust_coefficient"])
    if spec["type"] in ("adam", "adamw"):
        make = torch.optim.AdamW if spec["type"] == "adamw" else torch.optim.Adam
        return make(groups, lr=spec["learning_rate"], betas=(spec.get("beta1", 0.9), spec.get("beta2", 0.999)),
                    eps=spec.get("epsilon", 1e-8))
    return torch.optim.SGD(groups, lr=spec["learning_rate"], momentum=spec["momentum"],
                           nesterov=spec.get("nesterov", False))


def forward_with_dropout(weights, x, keeps, ratio):
    """generate.forward with dropout behind relu1; `keeps`: per sample and element, by docs/sampling.md."""
    x = F.avg_pool2d(F.conv2d(x, weights["conv1.weight"], weights["conv1.bias"]), 2)
    x = F.avg_pool2d(F.conv2d(x, weights["conv2.weight"], weights["conv2.bias"]), 2)
    x = F.relu(F.linear(x.flatten(1), weights["ip1.weight"], weights["ip1.bias"]))
    x = x * torch.tensor(keeps).to(x.dtype) / (1 - ratio)
    return F.linear(x, weights["ip2.weight"], weights["ip2.bias"])


def train(job, case, dtype):
    spec, ratio = case["optimizer"], case.get("dropout", 0)
    images, labels = load_data(job)
    images = images.to(dtype)
    weights = {
        name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape).to(dtype).requires_grad_()
        for name, shape, data in lenet_weights.tensors()
    }
    optimizer = make_optimizer(spec, weights)
    numbers = sample_numbers(job, len(labels))
    losses, clipped = [], 0
    for iteration in range(ITERATIONS):
        batch = [next(numbers) for _ in range(job["batch_size"])]
        for group in optimizer.param_groups:
            group["lr"] = rate_at(spec, iteration) * group["multiplier"]
        optimizer.zero_grad()
        if ratio:
            first = iteration * job["batch_size"]
            keeps = [dropout_keeps(job["init"]["seed"], "drop", first + k, len(weights["ip1.bias"]), ratio)
                     for k in range(len(batch))]
            scores = forward_with_dropout(weights, images[batch], keeps, ratio)
        else:
            scores = forward(weights, images[batch], POOLS["average"])
        loss = F.cross_entropy(scores, labels[batch])
        loss.backward()
        if "clip_norm" in spec:
            trained = [w for w in weights.values() if w.grad is not None]
            clipped += torch.nn.utils.clip_grad_norm_(trained, spec["clip_norm"]).item() > spec["clip_norm"]
        optimizer.step()
        losses.append(loss.item())
    return losses, clipped


def main():
    torch.set_num_threads(1)
    with open(os.path.join(FOLDER, "job.json")) as file:
        job = json.load(file)
    for case in CASES:
        case["losses"], case["clipped_iterations"] = train(job, case, torch.float32)
        exact, _ = train(job, case, torch.float64)
        worst = max(abs(a - b) / abs(b) for a, b in zip(case["losses"], exact))
        print(f"{case['name']}: loss {case['losses'][0]:.4f} -> {case['losses'][-1]:.6f}, clipped in "
              f"{case['clipped_iterations']} iterations; float32 against float64: {worst:.2e} relative at worst")
    with open(os.path.join(FOLDER, "solver.json"), "w") as file:
        json.dump({"torch": torch.__version__, "iterations": ITERATIONS, "cases": CASES}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
