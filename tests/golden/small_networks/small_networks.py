"""ResNet-18 and a VGG of fewer channels, for 3x32x32 images: as network files of ours, and the list of their tensors. And
images to train them with. Standard library only: the process test and the golden values' generator both use it."""

import random

CLASSES = 10
DATA_SEED = 42
IMAGES = {"train": 320, "test": 100}


def cifar_bytes(part, images):
    """A file in the binary form of CIFAR-10: each image is half its class's pattern, half noise. Noise everywhere, because
    equal pixels make equal values deep in the network, and a maximum over equal values is anybody's choice."""
    patterns = [random.Random(DATA_SEED + label).randbytes(3072) for label in range(CLASSES)]
    noise = random.Random(f"{DATA_SEED} {part}")
    file = bytearray()
    for i in range(images):
        label = i % CLASSES
        file.append(label)
        file += bytes((a + b) // 2 for a, b in zip(patterns[label], noise.randbytes(3072)))
    return bytes(file)

# The weights' deviation is that of lenet_weights.py times its root: about what He et al. 2015 want before a ReLU.
GAIN = 4


class Builder:
    """Layers and tensors side by side; `channels` and `side` are what the last layer left."""

    def __init__(self, name):
        self.network = {"name": name, "input": [3, 32, 32], "layers": []}
        self.tensors = []  # name, shape, fan-in / GAIN (0: zeros; see lenet_weights.py)
        self.channels, self.side, self.last = 3, 32, "input"

    def add(self, kind, name, inputs=None, **options):
        layer = {"name": name, "type": kind, **options}
        if inputs:
            layer["inputs"] = inputs
        self.network["layers"].append(layer)
        self.last = name
        return name

    def conv(self, name, outputs, kernel, stride=1, bias=True, inputs=None, channels=None):
        fan_in = (channels or self.channels) * kernel * kernel / GAIN
        self.tensors.append((name + ".weight", (outputs, channels or self.channels, kernel, kernel), fan_in))
        options = {} if bias else {"bias": False}
        if bias:
            self.tensors.append((name + ".bias", (outputs,), 0))
        self.channels, self.side = outputs, -(-self.side // stride)
        return self.add("convolution", name, inputs, outputs=outputs, kernel=kernel, stride=stride, pad=kernel // 2,
                        **options)

    def conv_bn(self, name, outputs, kernel, stride=1, **where):
        self.conv(name, outputs, kernel, stride, bias=False, **where)
        # Weight 1, bias 0, as the network file begins; the weights' file need not have them.
        return self.add("batch_norm", name + "_bn")

    def fc(self, name, outputs):
        inputs = self.channels * self.side * self.side
        self.tensors += [(name + ".weight", (outputs, inputs), inputs), (name + ".bias", (outputs,), 0)]
        self.channels, self.side = outputs, 1
        return self.add("fully_connected", name, outputs=outputs)

    def max_pool(self, name):
        self.side //= 2
        return self.add("pooling", name, pool="max", kernel=2)

    def finish(self):
        self.fc("fc", 10)
        self.add("softmax_cross_entropy", "loss")
        return self.network, self.tensors


def resnet18(width=8):
    """He et al. 2015 in the form for 32x32 images: four stages of two basic blocks, projections where the shape changes."""
    b = Builder("resnet18_small")
    b.conv_bn("stem", width, 3)
    b.add("relu", "stem_relu")
    for stage in range(4):
        for block in range(2):
            name, before = f"s{stage + 1}b{block + 1}", b.last
            channels, outputs = b.channels, width << stage
            stride = 2 if stage > 0 and block == 0 else 1
            b.conv_bn(name + "_1", outputs, 3, stride)
            b.add("relu", name + "_relu1")
            main = b.conv_bn(name + "_2", outputs, 3)
            shortcut = before
            if stride > 1:
                side = b.side
                shortcut = b.conv_bn(name + "_down", outputs, 1, stride, inputs=[before], channels=channels)
                b.side = side
            b.add("add", name + "_sum", [main, shortcut])
            b.add("relu", name + "_out")
    b.add("pooling", "mean", pool="average", **{"global": True})
    b.side = 1
    return b.finish()


def vgg(width=16):
    b = Builder("vgg_small")
    for stage in range(3):
        for conv in range(2):
            b.conv(f"conv{stage + 1}_{conv + 1}", width << stage, 3)
            b.add("relu", f"relu{stage + 1}_{conv + 1}")
        b.max_pool(f"pool{stage + 1}")
    b.fc("fc1", 64)
    b.add("relu", "fc1_relu")
    return b.finish()


NETWORKS = {"resnet18_small": resnet18, "vgg_small": vgg}
