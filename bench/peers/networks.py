"""Parameter tensors of the compared networks, from their architecture.

    networks.py resnet50    prints one line per layer: NAME ELEMENTS ELEMENTS ... (a number per tensor), in forward order

Layers and tensors are those of the usual PyTorch definitions (torchvision): what a framework synchronises.
"""

import sys


def resnet50():
    """He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; bottlenecks of 3, 4, 6 and 3 blocks."""
    layers = []

    def convolution(name, inputs, outputs, kernel):
        layers.append((f"{name}.conv", [outputs * inputs * kernel * kernel]))
        layers.append((f"{name}.bn", [outputs, outputs]))

    convolution("stem", 3, 64, 7)
    inputs = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            convolution(f"{name}.reduce", inputs, width, 1)
            convolution(f"{name}.middle", width, width, 3)
            convolution(f"{name}.expand", width, 4 * width, 1)
            if block == 0:
                convolution(f"{name}.shortcut", inputs, 4 * width, 1)
            inputs = 4 * width
    layers.append(("fc", [inputs * 1000, 1000]))
    return layers


def vgg19():
    """Simonyan, Zisserman, "Very Deep Convolutional Networks", ICLR 2015, configuration E; 224 x 224 inputs."""
    layers = []
    inputs = 3
    for stage, (convolutions, outputs) in enumerate(((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)), start=1):
        for number in range(1, convolutions + 1):
            layers.append((f"conv{stage}_{number}", [outputs * inputs * 9, outputs]))
            inputs = outputs
    inputs *= 7 * 7
    for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        layers.append((name, [outputs * inputs, outputs]))
        inputs = outputs
    return layers


def tiny():
    """For a quick check that everything runs: several chunks, buckets and very small tensors."""
    return [("conv", [9408]), ("bn", [64, 64]), ("fc1", [1_500_000, 1000]), ("fc2", [10_000, 10])]


NETWORKS = {"resnet50": resnet50, "vgg19": vgg19, "tiny": tiny}


def tensors(layers):
    """All tensor sizes, in forward order."""
    return [elements for _, sizes in layers for elements in sizes]


def sizes_text(name):
    return "".join(f"{layer} {' '.join(map(str, sizes))}\n" for layer, sizes in NETWORKS[name]())


# The published totals: a formula above that is off by anything shows here.
for _name, _count, _total in (("resnet50", 161, 25_557_032), ("vgg19", 38, 143_667_240)):
    _sizes = tensors(NETWORKS[_name]())
    assert (len(_sizes), sum(_sizes)) == (_count, _total), (_name, len(_sizes), sum(_sizes))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in NETWORKS:
        sys.exit(f"usage: networks.py {'|'.join(NETWORKS)}")
    sys.stdout.write(sizes_text(sys.argv[1]))
