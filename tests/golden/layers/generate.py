#!/usr/bin/env python3
"""Writes layers.json and lenet.json of this folder with PyTorch: outputs and gradients of single layers and
of a whole LeNet, in double precision. PyTorch is used here only; the C++ tests read the files.

    sudo apt-get install python3-torch && python3 tests/golden/layers/generate.py

Inputs are not stored: both sides draw them from SplitMix64 (common/base/random.h), see values() below.
"""
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
MASK = (1 << 64) - 1


def splitmix64(seed, count):
    """The first `count` draws of SplitMix64(seed)."""
    z = np.uint64(seed & MASK) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mix_seed(a, b):
    first = int(splitmix64(a, 1)[0])
    return int(splitmix64(first ^ ((b + 0x9E3779B97F4A7C15) & MASK), 1)[0])


def fnv1a_64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def uniform(seed, count):
    """Uniform in [0, 1) with 24 bits: exact in float32."""
    return (splitmix64(seed, count) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def values(seed, *shape):
    """Uniform in [-1, 1), exact in float32."""
    return torch.tensor(2.0 * uniform(seed, math.prod(shape)) - 1.0).reshape(*shape)


def listed(tensor):
    return [float(f"{v:.9g}") for v in tensor.detach().flatten().tolist()]


def pair(value):
    return value if isinstance(value, list) else [value, value]


def apply(layer, x, weight, bias, labels):
    kind = layer["type"]
    if kind == "convolution":
        return F.conv2d(x, weight, bias, pair(layer.get("stride", 1)), pair(layer.get("pad", 0)),
                        1, layer.get("groups", 1))
    if kind == "pooling" and layer.get("global"):
        return F.adaptive_max_pool2d(x, 1) if layer["pool"] == "max" else F.adaptive_avg_pool2d(x, 1)
    if kind == "pooling":
        kernel = pair(layer["kernel"])
        args = (x, kernel, pair(layer.get("stride", kernel)), pair(layer.get("pad", 0)))
        if layer["pool"] == "max":
            return F.max_pool2d(*args, ceil_mode=layer.get("ceil_mode", False))
        return F.avg_pool2d(*args, ceil_mode=layer.get("ceil_mode", False),
                            count_include_pad=layer.get("count_padding", False))
    if kind == "fully_connected":
        return F.linear(x.flatten(1), weight, bias)
    if kind == "relu":
        return F.relu(x)
    if kind == "lrn":
        return F.local_response_norm(x, layer.get("local_size", 5), layer.get("alpha", 1e-4),
                                     layer.get("beta", 0.75), layer.get("k", 1.0))
    if kind == "softmax_cross_entropy":
        return F.cross_entropy(x.flatten(1), labels, reduction="none", label_smoothing=layer.get("label_smoothing", 0.0))
    if kind == "add":
        return x + x
    if kind == "concat":
        return torch.cat([x, x], 1)
    raise ValueError(kind)


def batch_norm_case(seed, batch, shape, **layer):
    """Training: output, gradients and running statistics; then the output with the statistics as they were before."""
    x = values(mix_seed(seed, 0), batch, *shape).requires_grad_()
    weight, bias = (values(mix_seed(seed, 1 + i), shape[0]).requires_grad_() for i in range(2))
    statistics = values(mix_seed(seed, 5), 2, shape[0]) + 1.5
    options = dict(momentum=layer.get("momentum", 0.1), eps=layer.get("epsilon", 1e-5))
    tested = F.batch_norm(x, statistics[0], statistics[1], weight, bias, training=False, **options)
    y = F.batch_norm(x, statistics[0], statistics[1], weight, bias, training=True, **options)
    y.backward(values(mix_seed(seed, 3), *y.shape))
    return {"seed": seed, "batch": batch, "input": shape, "layer": dict(layer, type="batch_norm"), "output": listed(y),
            "input_gradient": listed(x.grad), "weight_gradient": listed(weight.grad), "bias_gradient": listed(bias.grad),
            "statistics": listed(statistics), "tested": listed(tested)}


def case(seed, batch, shape, **layer):
    x = values(mix_seed(seed, 0), batch, *shape).requires_grad_()
    weight = bias = labels = None
    if layer["type"] == "convolution":
        weight = values(mix_seed(seed, 1), layer["outputs"], shape[0] // layer.get("groups", 1), *pair(layer["kernel"]))
    if layer["type"] == "fully_connected":
        weight = values(mix_seed(seed, 1), layer["outputs"], math.prod(shape))
    if weight is not None:
        weight.requires_grad_()
        if layer.get("bias", True):
            bias = values(mix_seed(seed, 2), layer["outputs"]).requires_grad_()
    if layer["type"] == "softmax_cross_entropy":
        labels = torch.tensor([int(v * shape[0]) for v in uniform(mix_seed(seed, 4), batch)])
    y = apply(layer, x, weight, bias, labels)
    if layer["type"] == "softmax_cross_entropy":
        (y.mean() * layer.get("loss_weight", 1.0)).backward()  # the gradient that training starts from
    else:
        y.backward(values(mix_seed(seed, 3), *y.shape))
    result = {"seed": seed, "batch": batch, "input": shape, "layer": layer, "output": listed(y),
              "input_gradient": listed(x.grad)}
    if weight is not None:
        result["weight_gradient"] = listed(weight.grad)
    if bias is not None:
        result["bias_gradient"] = listed(bias.grad)
    return result


def layer_cases():
    conv = {"type": "convolution"}
    fc = {"type": "fully_connected"}
    lrn = {"type": "lrn"}
    top = {"type": "pooling", "pool": "max"}
    mean = {"type": "pooling", "pool": "average"}
    return [
        case(101, 2, [3, 7, 6], **conv, outputs=4, kernel=3),
        case(102, 1, [2, 5, 5], **conv, outputs=3, kernel=5, pad=2),
        case(103, 3, [4, 6, 7], **conv, outputs=6, kernel=[3, 2], stride=[2, 1], pad=[1, 0], groups=2),
        case(104, 2, [3, 5, 4], **conv, outputs=5, kernel=1, stride=2, bias=False),
        case(105, 2, [4, 5, 5], **conv, outputs=4, kernel=3, pad=1, groups=4),
        case(106, 2, [3, 4, 5], **conv, outputs=4, kernel=1, pad=1),
        case(107, 1, [2, 3, 4], **conv, outputs=3, kernel=2, stride=2, pad=3),
        case(111, 3, [7], **fc, outputs=5),
        case(112, 1, [2, 3, 5], **fc, outputs=4, bias=False),
        case(121, 2, [2, 6, 6], **top, kernel=2, stride=2),
        case(122, 2, [3, 7, 6], **top, kernel=3, stride=2, ceil_mode=True),
        case(123, 1, [2, 5, 7], **top, kernel=3, stride=1, pad=1),
        case(124, 1, [2, 9, 8], **top, kernel=[2, 3], stride=[3, 2]),
        case(125, 2, [3, 2, 2], **top, kernel=3, stride=2, ceil_mode=True),
        case(126, 1, [2, 2, 6], **top, kernel=[4, 3], stride=3, ceil_mode=True),
        case(131, 2, [2, 6, 6], **mean, kernel=2, stride=2),
        case(132, 2, [3, 8, 8], **mean, kernel=3, stride=2, ceil_mode=True),
        case(133, 1, [2, 5, 7], **mean, kernel=3, stride=1, pad=1),
        case(134, 1, [2, 9, 8], **mean, kernel=[2, 3], stride=[3, 2]),
        case(135, 1, [3, 5, 4], **mean, kernel=[5, 4]),
        case(136, 2, [3, 2, 2], **mean, kernel=3, stride=2, ceil_mode=True),
        case(137, 1, [2, 2, 6], **mean, kernel=5, stride=4, pad=1, ceil_mode=True),
        case(141, 2, [3, 4, 5], type="relu"),
        case(142, 2, [11], type="relu"),
        case(151, 2, [8, 3, 4], **lrn, local_size=5, alpha=0.5, beta=0.75, k=2.0),
        case(152, 1, [4, 2, 3], **lrn, local_size=3, alpha=1.0, beta=0.5, k=1.0),
        case(153, 2, [2, 3, 3], **lrn, local_size=5, alpha=0.3, beta=0.75),
        case(161, 5, [10], type="softmax_cross_entropy"),
        case(162, 1, [2], type="softmax_cross_entropy"),
        case(163, 4, [7], type="softmax_cross_entropy", label_smoothing=0.1),
        case(164, 3, [5], type="softmax_cross_entropy", label_smoothing=0.25, loss_weight=0.4),
        case(171, 2, [3, 5, 4], **mean, **{"global": True}),
        case(172, 2, [3, 5, 4], **top, **{"global": True}),
        case(173, 1, [2, 5, 7], **mean, kernel=3, stride=1, pad=1, count_padding=True),
        case(174, 2, [2, 6, 5], **mean, kernel=3, stride=2, pad=1, ceil_mode=True, count_padding=True),
        case(175, 2, [3, 2, 2], **mean, kernel=3, stride=2, ceil_mode=True, count_padding=True),
        case(176, 1, [2, 2, 6], **mean, kernel=5, stride=4, pad=1, ceil_mode=True, count_padding=True),
        batch_norm_case(181, 3, [4, 5, 3]),
        batch_norm_case(182, 8, [6], epsilon=0.001, momentum=0.3),
        batch_norm_case(183, 1, [2, 4, 4], momentum=1.0),
    ]


def lenet():
    """Xavier weights as initialise_parameters draws them with seed 7; gradients of the mean loss of 4 samples."""
    shapes = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "ip1": (500, 800), "ip2": (10, 500)}
    weights, biases = {}, {}
    for name, shape in shapes.items():
        bound = math.sqrt(3.0 / math.prod(shape[1:]))
        draws = (2.0 * uniform(mix_seed(7, fnv1a_64(name + ".weight")), math.prod(shape)) - 1.0) * bound
        weights[name] = torch.tensor(draws.astype(np.float32).astype(np.float64)).reshape(shape).requires_grad_()
        biases[name] = torch.zeros(shape[0], dtype=torch.float64, requires_grad=True)
    x = values(mix_seed(8, 0), 4, 1, 28, 28)
    labels = torch.tensor([3, 0, 9, 3])
    h = F.max_pool2d(F.conv2d(x, weights["conv1"], biases["conv1"]), 2)
    h = F.max_pool2d(F.conv2d(h, weights["conv2"], biases["conv2"]), 2)
    h = F.relu(F.linear(h.flatten(1), weights["ip1"], biases["ip1"]))
    scores = F.linear(h, weights["ip2"], biases["ip2"])
    loss = F.cross_entropy(scores, labels)
    loss.backward()
    layers = []
    for name in shapes:
        gradient = torch.cat([weights[name].grad.flatten(), biases[name].grad])
        step = max(1, gradient.numel() // 199)
        layers.append({"name": name, "first_weight": float(f"{weights[name].flatten()[0].item():.9g}"),
                       "norm": gradient.norm().item(), "largest": gradient.abs().max().item(), "step": step,
                       "gradient_every_step": listed(gradient[::step]), "bias_gradient": listed(biases[name].grad)})
    return {"init_seed": 7, "input_seed": 8, "labels": labels.tolist(), "loss": loss.item(),
            "scores": listed(scores), "layers": layers}


def write(name, content):
    (HERE / name).write_text(json.dumps(content, indent=1).replace("\n    ", " ").replace("\n   ", " ") + "\n")


if __name__ == "__main__":
    np.seterr(over="ignore")
    write("layers.json", layer_cases())
    write("lenet.json", lenet())
