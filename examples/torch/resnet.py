"""ResNet-18 on images of CIFAR-10's binary format, with Poseidon.

    poseidon run --workers 2 --servers 1 -- python examples/torch/resnet.py FOLDER

ddp.py is the same for DistributedDataParallel; `diff examples/torch/ddp.py examples/torch/resnet.py` shows what a script changes.
"""

import argparse
import pathlib

import torch
import torchvision
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import poseidon.torch as poseidon


def images(folder):
    """Of all data_batch files: a label and 3 x 32 x 32 bytes each."""
    raw = b"".join(path.read_bytes() for path in sorted(pathlib.Path(folder).glob("data_batch*.bin")))
    rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3073)
    return TensorDataset(rows[:, 1:].view(-1, 3, 32, 32).float() / 255 - 0.5, rows[:, 0].long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of one worker")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    data = images(arguments.folder)
    model = torchvision.models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    model, optimizer = poseidon.distribute(model, optimizer)
    rank, size = poseidon.rank(), poseidon.world_size()
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, seed=1)
    loader = DataLoader(data, arguments.batch_size, sampler=sampler, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(loader))
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {loss.item():.3f}", flush=True)
    poseidon.save("resnet18.safetensors", model)


if __name__ == "__main__":
    main()
