"""The jobs: networks that are slow because of the network. Inline, so that results say what ran."""

import dataclasses
import pathlib

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "digits"


@dataclasses.dataclass(frozen=True)
class Network:
    about: str
    model: dict
    iterations: dict  # measured, per scheme: slow ones need fewer


def _fully_connected(name, outputs):
    return {"name": name, "type": "fully_connected", "outputs": outputs, "init": {"weight": {"type": "he"}}}


def _convolution(name, outputs, kernel, pad=0):
    return {"name": name, "type": "convolution", "outputs": outputs, "kernel": kernel, "pad": pad,
            "init": {"weight": {"type": "he"}}}


def _pooling(name):
    return {"name": name, "type": "pooling", "pool": "max", "kernel": 2, "stride": 2}


def mlp(width):
    return {"name": "mlp", "input": [1, 28, 28], "layers": [
        _fully_connected("fc1", width), {"name": "relu1", "type": "relu"},
        _fully_connected("fc2", width), {"name": "relu2", "type": "relu"},
        _fully_connected("fc3", 10), {"name": "loss", "type": "softmax_cross_entropy"}]}


def _convolutional(channels, hidden):
    """Like LeNet, with more channels where the images are small already: many bytes, little to compute."""
    return {"name": "convolutional", "input": [1, 28, 28], "layers": [
        _convolution("conv1", channels // 16, 5), {"name": "relu1", "type": "relu"}, _pooling("pool1"),      # 12 x 12
        _convolution("conv2", channels // 4, 5), {"name": "relu2", "type": "relu"}, _pooling("pool2"),       # 4 x 4
        _convolution("conv3", channels, 3, pad=1), {"name": "relu3", "type": "relu"}, _pooling("pool3"),     # 2 x 2
        _convolution("conv4", channels, 3, pad=1), {"name": "relu4", "type": "relu"},
        _fully_connected("fc1", hidden), {"name": "relu5", "type": "relu"},
        _fully_connected("fc2", 10), {"name": "loss", "type": "softmax_cross_entropy"}]}


NETWORKS = {
    "fc": Network("784-2048-2048-10, fully connected", mlp(2048), {"ps": 4, "sfb": 30, "auto": 30, "planned": 30}),
    "conv": Network("4 convolutions up to 256 channels, then 1024-128-10", _convolutional(256, 128),
                    {"ps": 12, "sfb": 12, "auto": 12, "planned": 12}),
    "tiny": Network("784-64-64-10, fully connected", mlp(64), {"ps": 3, "sfb": 3, "auto": 3, "planned": 3}),
}


def job(network, scheme, batch_size, iterations, chunk_kib, plan=None):
    """A whole job file. It trains the digits slowly; what matters is the time."""
    sync = {"chunk_bytes": chunk_kib * 1024, **({"plan": str(plan)} if plan else {"scheme": scheme})}
    return {
        "name": f"{network}-{scheme}",
        "model": NETWORKS[network].model,
        "data": {"train": {"format": "idx", "images": str(DIGITS / "train-images-idx3-ubyte.gz"),
                           "labels": str(DIGITS / "train-labels-idx1-ubyte.gz")},
                 "shuffle": True, "seed": 1, "transform": {"resize": [28, 28], "scale": 1 / 255}},
        "batch_size": batch_size,
        "iterations": iterations,
        "optimizer": {"type": "sgd", "learning_rate": 0.001, "momentum": 0.9},
        "sync": sync,
        "test_every_iterations": 0,
    }
