"""One rank of compare.py: trains a network with DDP or with Poseidon, and says how long its iterations took, as JSON."""

import argparse
import json
import os
import pathlib
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "torch"))


class Mlp:
    about = "784-2048-2048-10, fully connected"

    def model(self):
        return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))

    def loss(self, model, random, batch):
        return functional.cross_entropy(model(torch.randn(batch, 784, generator=random)), torch.randint(0, 10, (batch,), generator=random))


class Convolutions:
    about = "4 convolutions up to 256 channels, then 1024-128-10"

    def model(self):
        return nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(64, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(),
                             nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss(self, model, random, batch):
        return functional.cross_entropy(model(torch.randn(batch, 1, 28, 28, generator=random)), torch.randint(0, 10, (batch,), generator=random))


class Gpt:
    about = "the GPT of examples/torch, 4 blocks of width 256, clipped"
    letters, length = 96, 64

    def model(self):
        import gpt
        return gpt.Gpt(self.letters, self.length, 256, 4)

    def loss(self, model, random, batch):
        x = torch.randint(0, self.letters, (batch, self.length + 1), generator=random)
        return functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


class Deep:
    """Many small layers: what hooks and calls cost."""
    about = "500 linear layers of width 16: 1,000 parameters"

    def model(self):
        return nn.Sequential(*(nn.Linear(16, 16) for _ in range(500)))

    def loss(self, model, random, batch):
        return model(torch.randn(batch, 16, generator=random)).square().mean()


NETWORKS = {"mlp": Mlp, "conv": Convolutions, "gpt": Gpt, "deep": Deep}


def with_ddp(model, optimizer, hook):
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if hook == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return model, optimizer, clip, lambda: None


def with_poseidon(model, optimizer, wire):
    import poseidon.torch as poseidon
    model, optimizer = poseidon.distribute(model, optimizer, name="bench", wire_dtype=wire)
    return model, optimizer, lambda: poseidon.clip_grad_norm_(model.parameters(), 1.0), lambda: poseidon.wait(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=["alone", "ddp", "ddp-bf16", "ddp-powersgd", "poseidon", "poseidon-bf16"], required=True)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="a file for what it says, in place of stdout")
    parser.add_argument("--coordinator")
    parser.add_argument("--listen", help="not used")
    arguments = parser.parse_args()
    if arguments.coordinator:
        os.environ["POSEIDON_COORDINATOR"] = arguments.coordinator
    torch.set_num_threads(1)
    torch.manual_seed(1)
    network = NETWORKS[arguments.network]()
    model = network.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    engine, _, variant = arguments.engine.partition("-")
    clip, wait = (lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)), (lambda: None)
    if engine == "ddp":
        model, optimizer, clip, wait = with_ddp(model, optimizer, variant)
    elif engine == "poseidon":
        model, optimizer, clip, wait = with_poseidon(model, optimizer, variant or "fp32")
    random = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))

    def train(iterations):
        for _ in range(iterations):
            optimizer.zero_grad(set_to_none=True)
            network.loss(model, random, arguments.batch_size).backward()
            if arguments.network == "gpt":
                clip()
            optimizer.step()
        wait()

    train(arguments.warm_up)
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    train(arguments.iterations)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    said = json.dumps({"seconds": seconds / arguments.iterations, "cpu_seconds": cpu / arguments.iterations,
                       "bytes": 4 * sum(p.numel() for p in model.parameters())})
    if arguments.out:
        arguments.out.write_text(said)
    else:
        print(said, flush=True)


if __name__ == "__main__":
    main()
