#!/usr/bin/python3
"""Writes losses.json: 50 training losses and the test at the end, by PyTorch. README.md beside it explains."""

import hashlib
import json
import os
import sys

import torch

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(FOLDER, "..", "trajectory"))
sys.path.append(os.path.join(FOLDER, "..", "networks"))
import generate as trajectory  # noqa: E402
import lenet_weights  # noqa: E402
import torch_network  # noqa: E402  (tests/golden/networks)
from small_networks import IMAGES, NETWORKS, cifar_bytes  # noqa: E402

LEARNING_RATES = {"resnet18_small": 0.0002, "vgg_small": 0.0001}


def load_data(job, part):
    file = torch.frombuffer(bytearray(cifar_bytes(part, IMAGES[part])), dtype=torch.uint8).reshape(-1, 3073)
    transform = job["data"]["transform"]
    images = (file[:, 1:].reshape(-1, 3, 32, 32).float() - transform["mean"][0]) * transform["scale"]
    return images, file[:, 0].long()


def initial_weights(wanted, dtype):
    weights = {name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape).to(dtype)
               for name, shape, data in lenet_weights.tensors(wanted)}

    def make(name, shape):
        if name in weights:
            assert tuple(weights[name].shape) == tuple(shape), name
            return weights[name]
        assert "_bn." in name
        return (torch.ones if name.endswith(".weight") else torch.zeros)(shape)

    return torch_network.Tensors(make, dtype)


def train(job, name, dtype):
    network, wanted = NETWORKS[name]()
    images, labels = load_data(job, "train")
    images = images.to(dtype)
    tensors = initial_weights(wanted, dtype)
    with torch.no_grad():
        torch_network.run(network, images[:2], labels[:2], tensors, True)  # makes the tensors
    tensors.statistics.clear()
    rule = job["optimizer"]
    optimizer = torch.optim.SGD(tensors.parameters.values(), lr=LEARNING_RATES[name], momentum=rule["momentum"],
                                weight_decay=rule["weight_decay"])
    numbers = trajectory.sample_numbers(job, len(labels))
    losses = []
    for _ in range(job["iterations"]):
        batch = [next(numbers) for _ in range(job["batch_size"])]
        optimizer.zero_grad()
        loss, _ = torch_network.run(network, images[batch], labels[batch], tensors, True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, test(job, network, tensors, dtype)


def test(job, network, tensors, dtype):
    images, labels = load_data(job, "test")
    with torch.no_grad():
        loss, scores = torch_network.run(network, images.to(dtype), labels, tensors, False)
    return {"loss": loss.item(), "accuracy": (scores.argmax(1) == labels).double().mean().item()}


def main():
    torch.set_num_threads(1)
    with open(os.path.join(FOLDER, "job.json")) as file:
        job = json.load(file)
    cases = []
    for name, make in NETWORKS.items():
        losses, tested = train(job, name, torch.float32)
        if "--sensitivity" in sys.argv:
            exact, exact_test = train(job, name, torch.float64)
            worst = max(abs(a - b) / abs(b) for a, b in zip(losses, exact))
            print(f"{name}: {sum(len(d) for _, _, d in lenet_weights.tensors(make()[1])) // 4} weights, loss "
                  f"{losses[0]:.4f} -> {losses[-1]:.4f}, test {tested}; float32 against float64: {worst:.2e} relative at "
                  f"worst, test {abs(tested['loss'] - exact_test['loss']) / exact_test['loss']:.2e}")
        cases.append({"network": name, "learning_rate": LEARNING_RATES[name], "losses": losses, "test": tested,
                      "weights_sha256": hashlib.sha256(lenet_weights.safetensors_bytes(make()[1])).hexdigest()})
    if "--sensitivity" in sys.argv:
        return
    with open(os.path.join(FOLDER, "losses.json"), "w") as file:
        json.dump({"torch": torch.__version__, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
