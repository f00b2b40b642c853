"""Runs a network file of ours (models/README.md) in PyTorch, for golden values. Written from that description and
PyTorch's, not from our engine: the two meet in the tests alone.

Knows flat networks: a list of layers, nothing repeated by rule. Dropout must have ratio 0 unless the masks are given.
"""

import torch
import torch.nn.functional as F


def pair(value):
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


class Tensors:
    """Parameters by name, made when they are first asked for; running statistics likewise. `keeps(layer, shape)`: what its
    dropout keeps of a batch."""

    def __init__(self, make, dtype, keeps=None):
        self.make, self.dtype, self.keeps = make, dtype, keeps
        self.parameters, self.statistics = {}, {}

    def parameter(self, name, *shape):
        if name not in self.parameters:
            self.parameters[name] = self.make(name, shape).to(self.dtype).requires_grad_()
        return self.parameters[name]

    def running(self, name, channels):
        if name not in self.statistics:
            first = torch.ones if name.endswith("running_var") else torch.zeros
            self.statistics[name] = first(channels, dtype=self.dtype)
        return self.statistics[name]


def convolution(layer, x, tensors):
    kernel, groups = pair(layer["kernel"]), layer.get("groups", 1)
    weight = tensors.parameter(layer["name"] + ".weight", layer["outputs"], x.shape[1] // groups, *kernel)
    bias = tensors.parameter(layer["name"] + ".bias", layer["outputs"]) if layer.get("bias", True) else None
    return F.conv2d(x, weight, bias, pair(layer.get("stride", 1)), pair(layer.get("pad", 0)), 1, groups)


def pooling(layer, x):
    if layer.get("global"):
        return F.adaptive_max_pool2d(x, 1) if layer["pool"] == "max" else F.adaptive_avg_pool2d(x, 1)
    kernel = pair(layer["kernel"])
    window = (kernel, pair(layer.get("stride", kernel)), pair(layer.get("pad", 0)))
    ceil_mode = layer.get("ceil_mode", False)
    if layer["pool"] == "max":
        return F.max_pool2d(x, *window, ceil_mode=ceil_mode)
    return F.avg_pool2d(x, *window, ceil_mode=ceil_mode, count_include_pad=layer.get("count_padding", False))


def fully_connected(layer, x, tensors):
    x = x.flatten(1)
    weight = tensors.parameter(layer["name"] + ".weight", layer["outputs"], x.shape[1])
    bias = tensors.parameter(layer["name"] + ".bias", layer["outputs"]) if layer.get("bias", True) else None
    return F.linear(x, weight, bias)


def batch_norm(layer, x, tensors, training):
    name, channels = layer["name"], x.shape[1]
    weight, bias = tensors.parameter(name + ".weight", channels), tensors.parameter(name + ".bias", channels)
    mean, var = tensors.running(name + ".running_mean", channels), tensors.running(name + ".running_var", channels)
    return F.batch_norm(x, mean, var, weight, bias, training, layer.get("momentum", 0.1), layer.get("epsilon", 1e-5))


def apply(layer, inputs, tensors, training):
    kind, x = layer["type"], inputs[0]
    if kind == "convolution":
        return convolution(layer, x, tensors)
    if kind == "pooling":
        return pooling(layer, x)
    if kind == "fully_connected":
        return fully_connected(layer, x, tensors)
    if kind == "batch_norm":
        return batch_norm(layer, x, tensors, training)
    if kind == "relu":
        return F.relu(x)
    if kind == "lrn":
        return F.local_response_norm(x, layer.get("local_size", 5), layer.get("alpha", 1e-4), layer.get("beta", 0.75),
                                     layer.get("k", 1.0))
    if kind == "dropout":
        ratio = layer.get("ratio", 0.5)
        return x * tensors.keeps(layer, x.shape).to(x.dtype) / (1 - ratio) if training and ratio > 0 else x
    if kind == "add":
        return sum(inputs[1:], inputs[0])
    if kind == "concat":
        return torch.cat(inputs, 1)
    raise ValueError(kind)


def run(network, x, labels, tensors, training):
    """(loss, scores): in training the weighted sum of all mean losses, else the one that is not auxiliary."""
    outputs, last, total, main_scores = {"input": x}, "input", 0.0, None
    for layer in network["layers"]:
        inputs = [outputs[name] for name in layer.get("inputs", [last])]
        last = layer["name"]
        if layer["type"] == "accuracy":
            continue
        if layer["type"] != "softmax_cross_entropy":
            outputs[last] = apply(layer, inputs, tensors, training)
            continue
        scores = inputs[0].flatten(1)
        if not layer.get("auxiliary"):
            main_scores = scores
        elif not training:
            continue
        loss = F.cross_entropy(scores, labels, label_smoothing=layer.get("label_smoothing", 0.0))
        total = total + layer.get("loss_weight", 1.0) * loss
    return total, main_scores
