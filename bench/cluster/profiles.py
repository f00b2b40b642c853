"""How long cards take for networks: profiles for the emulated device (device_profile.h) and for peers.

    profiles.py vgg19 --device titan-x    prints the profile

A card's rate for a whole network (images/s of training, at the papers' batch size) is split over the layers by their
multiply-adds, the backward pass at twice the forward pass. Layers without multiply-adds take nothing.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys


@dataclasses.dataclass(frozen=True)
class Network:
    batch_size: int
    titan_x_images_per_s: float
    about: str


# Images/s of one Titan X: what "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU
# Clusters" (USENIX ATC'17), section 5.1, reports for one machine.
NETWORKS = {
    "vgg19": Network(32, 35.5, "VGG19"),
    "vgg19_22k": Network(32, 34.6, "VGG19-22K"),
    "googlenet": Network(128, 257.0, "GoogLeNet"),
    "inception_v3": Network(32, 43.0, "Inception-V3"),
    # Assumed: as many multiply-adds a second as VGG19 would give 60, as Inception-V3 21.
    "resnet152": Network(32, 40.0, "ResNet-152"),
}


@dataclasses.dataclass(frozen=True)
class Device:
    speed: float           # times a Titan X
    flops: float           # of a large product
    bytes_per_s: float     # of its memory


TITAN_X_FLOPS = 6e12
TITAN_X_BYTES_PER_S = 336e9

DEVICES = {
    "titan-x": Device(1, TITAN_X_FLOPS, TITAN_X_BYTES_PER_S),
    "modern-10x": Device(10, 10 * TITAN_X_FLOPS, 10 * TITAN_X_BYTES_PER_S),
    "modern-50x": Device(50, 50 * TITAN_X_FLOPS, 50 * TITAN_X_BYTES_PER_S),
}


def describe(poseidon, network):
    """What `poseidon models NETWORK --json` says."""
    done = subprocess.run([str(poseidon), "models", network, "--json"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{poseidon} models {network}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def tensors(layer):
    """Shapes of a parameter layer's tensors, the last of which is as long as the layer has outputs."""
    outputs = layer["output_shape"][0]
    if layer["type"] == "batch_norm":
        return [[outputs], [outputs]]
    weights, rest = divmod(layer["parameters"], outputs)
    if rest:
        raise ValueError(f"layer {layer['name']}: {layer['parameters']} parameters for {outputs} outputs")
    inputs = 1
    for size in layer["input_shape"]:
        inputs *= size
    # With a bias there is one parameter more for each output than a weight can have.
    if layer["type"] == "fully_connected":
        return [[outputs, inputs]] + ([[outputs]] if weights == inputs + 1 else [])
    kernel = layer["multiply_adds"] // (outputs * layer["output_shape"][1] * layer["output_shape"][2])
    return [[outputs, kernel]] + ([[outputs]] if weights == kernel + 1 else [])


def split(described, iteration_s):
    """Parameter layers with their share of an iteration, a third of which is forward."""
    layers = []
    pending = 0
    for layer in described["layers"]:
        if not layer["parameters"]:
            if layers:
                layers[-1]["multiply_adds"] += layer["multiply_adds"]
            else:
                pending += layer["multiply_adds"]
            continue
        layers.append({"name": layer["name"], "type": layer["type"], "tensors": tensors(layer),
                       "multiply_adds": layer["multiply_adds"] + pending})
        pending = 0
    total = sum(layer["multiply_adds"] for layer in layers)
    for layer in layers:
        share = layer.pop("multiply_adds") / total
        layer["forward_s"] = share * iteration_s / 3
        layer["backward_s"] = share * iteration_s * 2 / 3
    return layers


def make(poseidon, network, device):
    about, card = NETWORKS[network], DEVICES[device]
    iteration_s = about.batch_size / (about.titan_x_images_per_s * card.speed)
    return {"network": network, "batch_size": about.batch_size, "device": device, "device_flops": card.flops,
            "device_bytes_per_s": card.bytes_per_s, "layers": split(describe(poseidon, network), iteration_s)}


def compute_s(profile):
    """Of one iteration on one device, nothing else."""
    return sum(layer["forward_s"] + layer["backward_s"] for layer in profile["layers"])


def parameters(profile):
    total = 0
    for layer in profile["layers"]:
        for shape in layer["tensors"]:
            count = 1
            for size in shape:
                count *= size
            total += count
    return total


def main():
    parser = argparse.ArgumentParser(description="Prints the profile of a network on a device.")
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--device", choices=DEVICES, default="titan-x")
    parser.add_argument("--poseidon", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "poseidon")
    arguments = parser.parse_args()
    json.dump(make(arguments.poseidon, arguments.network, arguments.device), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
