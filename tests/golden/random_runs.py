#!/usr/bin/python3
"""Random networks and jobs, trained by real processes and by PyTorch, compared. By hand, for what no golden file thinks of:

    tests/golden/random_runs.py --seeds 0-99

Each seed makes a small network (all layer types, branches, auxiliary losses), a job (optimizer, schedule, clipping,
multipliers, parts of a batch, schemes, chunks), data and initial weights, and trains them with `poseidon local`, one to
three workers and servers. PyTorch does the same in float64, worker by worker: samples and dropout's masks by
docs/sampling.md, batch normalisation per part. All losses and tests must agree within 1e-4, or within ten times what
PyTorch's own float32 is apart, for networks that magnify rounding. Needs PyTorch (Debian's python3-torch) and the
release build. What differs is kept in the folder that it names; ends with a line `N agree, N differ`.
"""

import argparse
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("golden/trajectory", "data"):
    sys.path.insert(0, str(ROOT / "tests" / folder))
sys.path.append(str(ROOT / "tests" / "golden" / "networks"))

import torch  # noqa: E402

import torch_network  # noqa: E402
from generate_solver import make_optimizer, rate_at  # noqa: E402
from sampling import Sampler, dropout_keeps  # noqa: E402

CLASSES, ITERATIONS = 10, 10
TOLERANCE, OF_ROUNDING = 1e-4, 10


class Network:
    """A random one, as a network file of ours."""

    def __init__(self, choice, channels, height, width):
        self.choice, self.layers = choice, []
        self.values = {"input": torch.randn(2, channels, height, width)}
        self.probe = torch_network.Tensors(lambda name, shape: torch.randn(shape), torch.float32)
        last = "input"
        for _ in range(choice.randint(2, 6)):
            last = self.grow(last)
        if choice.random() < 0.3:
            head = self.add("fully_connected", [last], outputs=CLASSES)
            self.layers.append({"name": "head", "type": "softmax_cross_entropy", "inputs": [head], "auxiliary": True,
                                "loss_weight": choice.choice([0.3, 0.4, 1])})
        if choice.random() < 0.6:
            last = self.add("fully_connected", [last], outputs=choice.choice([16, 33, 64, 130]))
            last = self.add("relu", [last])
            if choice.random() < 0.5:
                last = self.add("dropout", [last])
            if choice.random() < 0.3:
                last = self.add("batch_norm", [last])
        last = self.add("fully_connected", [last], outputs=CLASSES, bias=choice.random() < 0.8)
        loss = {"name": "loss", "type": "softmax_cross_entropy", "inputs": [last]}
        if choice.random() < 0.4:
            loss["label_smoothing"] = 0.1
        if choice.random() < 0.2:
            loss["loss_weight"] = 0.5
        self.layers.append(loss)
        self.file = {"name": "random", "input": [channels, height, width], "layers": self.layers}

    def add(self, kind, inputs, **options):
        layer = {"name": f"{kind}{len(self.layers)}", "type": kind, "inputs": inputs, **options}
        self.values[layer["name"]] = torch_network.apply(layer, [self.values[name] for name in inputs], self.probe,
                                                         kind != "dropout").detach()
        self.layers.append(layer)
        return layer["name"]

    def grow(self, last):
        """What the next block leaves."""
        choice = self.choice
        channels, height, width = self.values[last].shape[1:]
        kind = choice.choice(["convolution", "convolution", "pooling", "lrn", "batch_norm", "branches", "relu",
                              "residual", "dropout"])
        if kind == "convolution":
            return self.convolution(last, channels, height, width)
        if kind == "pooling" and min(height, width) > 3:
            return self.pooling(last)
        if kind == "lrn":
            return self.add("lrn", [last], local_size=choice.choice([1, 3, 5, 7]), alpha=choice.choice([1e-4, 0.1, 1.0]),
                            beta=choice.choice([0.5, 0.75, 1.0]), k=choice.choice([1, 2]))
        if kind == "batch_norm" and height * width > 1:
            return self.add("batch_norm", [last], momentum=choice.choice([0.1, 0.3]), epsilon=choice.choice([1e-5, 1e-3]))
        if kind == "branches":
            ends = [self.add("convolution", [last], outputs=choice.choice([4, 8, 16]), kernel=kernel, pad=kernel // 2)
                    for kernel in (3, 1)]
            return self.add("concat", ends + ([last] if last != "input" and choice.random() < 0.5 else []))
        if kind == "residual" and height * width > 1:
            end = self.add("convolution", [last], outputs=channels, kernel=3, pad=1, bias=False)
            return self.add("add", [self.add("batch_norm", [end]), last])
        if kind == "dropout":
            return self.add("dropout", [last], ratio=choice.choice([0.2, 0.5, 0.7]))
        return self.add("relu", [last])

    def convolution(self, last, channels, height, width):
        choice = self.choice
        kernel = [min(choice.choice([1, 2, 3, 5]), height), min(choice.choice([1, 3, 3, 4]), width)]
        groups = choice.choice([1, 1, 1, 2, channels])
        groups = groups if channels % groups == 0 else 1
        outputs = groups * choice.choice([1, 2, 3, 4]) if groups > 1 else choice.choice([4, 6, 8, 16, 24, 32])
        last = self.add("convolution", [last], outputs=outputs, kernel=kernel, stride=choice.choice([1, 1, 2, [2, 1]]),
                        pad=[choice.randint(0, side // 2) for side in kernel], groups=groups, bias=choice.random() < 0.7)
        return self.add("relu", [last]) if choice.random() < 0.7 else last

    def pooling(self, last):
        choice = self.choice
        pool = choice.choice(["max", "average", "average"])
        if choice.random() < 0.15:
            return self.add("pooling", [last], pool=pool, **{"global": True})
        kernel = [choice.choice([2, 3]), choice.choice([2, 3])]
        padding = {"count_padding": True} if pool == "average" and choice.random() < 0.5 else {}
        return self.add("pooling", [last], pool=pool, kernel=kernel, stride=choice.choice([1, 2, [2, 3]]),
                        pad=[choice.randint(0, side // 2) for side in kernel], ceil_mode=choice.random() < 0.5, **padding)

    def names(self, kind):
        return [layer["name"] for layer in self.layers if layer["type"] == kind]


def random_optimizer(choice, has_bias):
    kind = choice.choice(["sgd", "sgd", "sgd", "adam", "adamw", "lars"])
    rate = {"sgd": 0.002, "adam": 0.0003, "adamw": 0.0003, "lars": 0.05}[kind]
    spec = {"type": kind, "learning_rate": rate * choice.choice([0.5, 1, 2]), "weight_decay": choice.choice([0, 0.001, 0.01])}
    if kind == "sgd":
        spec["momentum"] = choice.choice([0, 0.9])
        spec["nesterov"] = spec["momentum"] > 0 and choice.random() < 0.4
    if kind == "lars":
        spec.update(momentum=0.9, trust_coefficient=0.005)
    if choice.random() < 0.4:
        spec["clip_norm"] = choice.choice([0.1, 0.5, 2.0])
    if choice.random() < 0.5:
        spec["schedule"] = choice.choice([
            {"type": "cosine", "minimum": 1e-5}, {"type": "cosine", "minimum": 0, "warmup_iterations": 3},
            {"type": "polynomial", "power": 2}, {"type": "step", "step_iterations": 3, "gamma": 0.5},
            {"type": "constant", "warmup_iterations": 4}])
    if has_bias and choice.random() < 0.4:
        spec["layers"] = [{"match": "*.bias", "learning_rate_multiplier": 2, "weight_decay_multiplier": 0}]
    return spec


def random_sync(choice, fully_connected):
    sync = choice.choice([{}, {"scheme": "ps"}, {"scheme": "sfb"},
                          {"scheme": {name: choice.choice(["ps", "sfb"]) for name in fully_connected}}])
    if choice.random() < 0.3:
        sync["chunk_bytes"] = choice.choice([4096, 16384, 65536])
    if choice.random() < 0.3:
        sync["local_aggregation"] = "off"
    return sync


def write_data(folder, part, images, labels):
    """CIFAR's form for colours, IDX for grey; the job's entry for it."""
    if images.shape[1] == 3:
        file = folder / f"{part}.bin"
        file.write_bytes(b"".join(bytes([int(label)]) + bytes(image.flatten().tolist())
                                  for image, label in zip(images, labels)))
        return {"format": "cifar10", "files": [file.name]}
    for name, values in (("images", images[:, 0]), ("labels", labels)):
        head = bytes([0, 0, 8, values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape)
        (folder / f"{part}-{name}").write_bytes(head + bytes(values.flatten().tolist()))
    return {"format": "idx", "images": f"{part}-images", "labels": f"{part}-labels"}


def write_weights(path, tensors):
    head, data = {}, b""
    for name, tensor in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{tensor.numel()}f", *tensor.flatten().tolist())
        head[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def initial_value(name, shape):
    if "batch_norm" in name:
        return torch.ones(shape) if name.endswith(".weight") else torch.zeros(shape)
    if name.endswith(".bias"):
        return torch.randn(shape) * 0.01
    return torch.randn(shape) * math.sqrt(1.5 / math.prod(shape[1:]))


class Run:
    """One seed's job, on disk and for PyTorch."""

    def __init__(self, seed, folder):
        choice = random.Random(seed)
        torch.manual_seed(seed)
        channels, height, width = choice.choice([(1, 12, 12), (1, 13, 17), (1, 16, 16), (3, 32, 32)])
        network = Network(choice, channels, height, width)
        self.workers, self.servers = choice.choice([1, 1, 2, 3]), choice.choice([1, 2, 3])
        parts = choice.choice([1, 1, 2, 3])
        self.data = {}
        sources = {}
        pattern = torch.randint(0, 256, (CLASSES, channels, height, width))
        for part, size in (("train", choice.choice([37, 64, 90])), ("test", choice.choice([11, 20, 33]))):
            labels = torch.randint(0, CLASSES, (size,))
            noise = torch.randint(0, 256, (size, channels, height, width))  # equal pixels would make ties
            images = (pattern[labels] + noise) // 2
            sources[part] = write_data(folder, part, images, labels)
            self.data[part] = (images.float(), labels)
        probe = torch_network.Tensors(initial_value, torch.float32, self.keeps)
        self.seed, self.positions = choice.randint(0, 2**63), [0, 1]
        torch_network.run(network.file, self.data["train"][0][:2], self.data["train"][1][:2], probe, True)
        self.weights = {name: tensor.detach() for name, tensor in probe.parameters.items()}
        write_weights(folder / "weights.safetensors", self.weights)
        self.job = {
            "name": "random", "model": network.file, "init": {"seed": self.seed, "weights": "weights.safetensors"},
            "data": {**sources, "shuffle": choice.random() < 0.8, "seed": choice.randint(0, 2**63),
                     "transform": {"mean": 128, "scale": choice.choice([0.01, 0.02])}},
            "batch_size": parts * choice.choice([2, 3, 5, 8]), "micro_batches": parts, "iterations": ITERATIONS,
            "test_every_iterations": choice.choice([3, 5, ITERATIONS]),
            "optimizer": random_optimizer(choice, any(name.endswith(".bias") for name in self.weights)),
            "sync": random_sync(choice, network.names("fully_connected"))}
        (folder / "job.json").write_text(json.dumps(self.job, indent=1))
        self.folder = folder

    def keeps(self, layer, shape):
        elements = math.prod(shape[1:])
        return torch.tensor([dropout_keeps(self.seed, layer["name"], position, elements, layer.get("ratio", 0.5))
                             for position in self.positions]).reshape(shape)

    def pixels(self, part, dtype, which=slice(None)):
        transform = self.job["data"]["transform"]
        images, labels = self.data[part]
        return ((images[which] - transform["mean"]) * torch.tensor(transform["scale"])).to(dtype), labels[which]

    def by_poseidon(self):
        """[(iteration, loss)], [(iteration, test loss, accuracy)]"""
        command = [ROOT / "build/release/bin/poseidon", "local", self.folder / "job.json", "--workers", str(self.workers),
                   "--servers", str(self.servers), "--run-dir", self.folder / "run", "--device", "cpu"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if result.returncode != 0:
            raise RuntimeError(f"exit code {result.returncode}: {(result.stdout + result.stderr)[-800:]}")
        lines = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        return ([(line["iteration"], line["loss"]) for line in lines if "loss" in line],
                [(line["iteration"], line["test_loss"], line["test_accuracy"]) for line in lines if "test_loss" in line])

    def by_torch(self, dtype, tested):
        """The same, with tests at the iterations `tested`."""
        job = self.job
        tensors = torch_network.Tensors(lambda name, shape: self.weights[name].clone(), dtype, self.keeps)
        tensors.parameters = {name: value.to(dtype).requires_grad_() for name, value in self.weights.items()}
        optimizer = make_optimizer(job["optimizer"], tensors.parameters)
        sampler = Sampler(len(self.data["train"][1]), job["data"]["shuffle"], job["data"]["seed"])
        statistics = [{} for _ in range(self.workers)]
        losses, tests = [], []
        for iteration in range(ITERATIONS + 1):
            if iteration in tested:
                tensors.statistics = statistics[0]
                with torch.no_grad():
                    images, labels = self.pixels("test", dtype)
                    loss, scores = torch_network.run(job["model"], images, labels, tensors, False)
                tests.append((iteration, loss.item(), (scores.argmax(1) == labels).double().mean().item()))
            if iteration == ITERATIONS:
                return losses, tests
            for group in optimizer.param_groups:
                group["lr"] = rate_at(job["optimizer"], iteration, ITERATIONS) * group["multiplier"]
            optimizer.zero_grad()
            losses.append((iteration, self.gradients(iteration, tensors, statistics, sampler, dtype)))
            if "clip_norm" in job["optimizer"]:
                torch.nn.utils.clip_grad_norm_(tensors.parameters.values(), job["optimizer"]["clip_norm"])
            optimizer.step()

    def gradients(self, iteration, tensors, statistics, sampler, dtype):
        """Of all workers' parts, added up in the tensors; the mean loss."""
        job, total = self.job, 0.0
        samples = job["batch_size"] // job["micro_batches"]
        for rank in range(self.workers):
            tensors.statistics = statistics[rank]
            for part in range(job["micro_batches"]):
                first = (iteration * self.workers + rank) * job["batch_size"] + part * samples
                self.positions = range(first, first + samples)
                images, labels = self.pixels("train", dtype, [sampler.index_at(p) for p in self.positions])
                loss, _ = torch_network.run(job["model"], images, labels, tensors, True)
                loss = loss / (self.workers * job["micro_batches"])
                loss.backward()
                total += loss.item()
        return total


def distance(got, wanted):
    """The largest relative difference of losses; infinite where something else differs."""
    worst = 0.0
    for one, other in zip(got, wanted):
        if [line[0] for line in one] != [line[0] for line in other]:
            return math.inf
        worst = max([worst, *(abs(a[1] - b[1]) / abs(b[1]) for a, b in zip(one, other))])
    same_accuracy = all(abs(a[2] - b[2]) < 1e-9 for a, b in zip(got[1], wanted[1]))
    return worst if same_accuracy else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-19", help="FIRST-LAST")
    first, last = (int(number) for number in parser.parse_args().seeds.split("-"))
    torch.set_num_threads(1)
    agree, differ = 0, 0
    for seed in range(first, last + 1):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"poseidon-random-{seed}-"))
        run = Run(seed, folder)
        try:
            ours = run.by_poseidon()
            tested = [line[0] for line in ours[1]]
            exact = run.by_torch(torch.float64, tested)
            apart = distance(ours, exact)
            rounding = distance(run.by_torch(torch.float32, tested), exact) if apart > TOLERANCE else 0.0
            good = apart <= max(TOLERANCE, OF_ROUNDING * rounding)
            text = f"{apart:.1e}" + (f", PyTorch's float32 {rounding:.1e}" if rounding > 0 else "")
        except RuntimeError as error:
            good, text = False, str(error)
        agree, differ = agree + good, differ + (not good)
        print(f"seed {seed}: {'agrees' if good else 'DIFFERS'} ({text}); workers {run.workers}, servers {run.servers}, "
              f"{run.job['optimizer']['type']}, {len(run.job['model']['layers'])} layers"
              + ("" if good else f"; kept in {folder}"), flush=True)
        if good:
            subprocess.run(["rm", "-rf", folder], check=True)
    print(f"{agree} agree, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
