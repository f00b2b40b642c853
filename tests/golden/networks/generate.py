#!/usr/bin/python3
"""Writes blocks.json: small networks made of the blocks of the large ones, by PyTorch in double precision.
block_golden_test.cc runs the same on our devices.

    sudo apt-get install python3-torch && /usr/bin/python3 tests/golden/networks/generate.py

Per network: a training pass (loss, gradients of all parameters, running statistics after it), then a test pass (loss,
hits). Inputs and parameters are not stored: both sides draw them from SplitMix64 (tests/golden/layers/generate.py).
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch

import torch_network

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "layers"))
import generate as layers  # noqa: E402

SAMPLES_OF_GRADIENT = 61


def conv(name, outputs, kernel, **options):
    return {"name": name, "type": "convolution", "outputs": outputs, "kernel": kernel, **options}


def conv_bn_relu(name, outputs, kernel, inputs=None, **options):
    first = conv(name, outputs, kernel, bias=False, **options)
    if inputs:
        first["inputs"] = inputs
    return [first, {"name": name + "_bn", "type": "batch_norm", "epsilon": 0.001}, relu(name + "_relu")]


def relu(name):
    return {"name": name, "type": "relu"}


def fc(name, outputs, **options):
    return {"name": name, "type": "fully_connected", "outputs": outputs, **options}


def pool(name, kind, kernel, stride, **options):
    return {"name": name, "type": "pooling", "pool": kind, "kernel": kernel, "stride": stride, **options}


def loss(name="loss", **options):
    return {"name": name, "type": "softmax_cross_entropy", **options}


def residual():
    """ResNet: a basic block with projection, then a bottleneck whose shortcut is the identity; global average."""
    return {"name": "residual", "input": [3, 9, 8], "layers": [
        conv("stem", 8, 3, pad=1, bias=False),
        {"name": "stem_bn", "type": "batch_norm"}, relu("stem_relu"),
        conv("a1", 12, 3, stride=2, pad=1, bias=False), {"name": "a1_bn", "type": "batch_norm"}, relu("a1_relu"),
        conv("a2", 12, 3, pad=1, bias=False), {"name": "a2_bn", "type": "batch_norm"},
        conv("a_down", 12, 1, stride=2, bias=False, inputs=["stem_relu"]), {"name": "a_down_bn", "type": "batch_norm"},
        {"name": "a_sum", "type": "add", "inputs": ["a2_bn", "a_down_bn"]}, relu("a_out"),
        conv("b1", 4, 1, bias=False), {"name": "b1_bn", "type": "batch_norm"}, relu("b1_relu"),
        conv("b2", 4, 3, pad=1, bias=False), {"name": "b2_bn", "type": "batch_norm"}, relu("b2_relu"),
        conv("b3", 12, 1, bias=False), {"name": "b3_bn", "type": "batch_norm"},
        {"name": "b_sum", "type": "add", "inputs": ["b3_bn", "a_out"]}, relu("b_out"),
        {"name": "mean", "type": "pooling", "pool": "average", "global": True},
        fc("fc", 5), loss()]}


def googlenet():
    """GoogLeNet in Caffe's form: LRN, pooling that rounds up, an inception block, an auxiliary head."""
    return {"name": "googlenet_block", "input": [3, 11, 12], "layers": [
        conv("stem", 8, 3, pad=1), relu("stem_relu"),
        pool("pool1", "max", 3, 2, ceil_mode=True),
        {"name": "norm1", "type": "lrn", "alpha": 0.5},
        conv("b1", 4, 1, inputs=["norm1"]), relu("b1_relu"),
        conv("b3_reduce", 3, 1, inputs=["norm1"]), relu("b3_reduce_relu"), conv("b3", 6, 3, pad=1), relu("b3_relu"),
        conv("b5_reduce", 2, 1, inputs=["norm1"]), relu("b5_reduce_relu"), conv("b5", 3, 5, pad=2), relu("b5_relu"),
        dict(pool("bp_pool", "max", 3, 1, pad=1), inputs=["norm1"]), conv("bp", 3, 1), relu("bp_relu"),
        {"name": "block", "type": "concat", "inputs": ["b1_relu", "b3_relu", "b5_relu", "bp_relu"]},
        pool("aux_pool", "average", 3, 3), conv("aux_conv", 4, 1), relu("aux_conv_relu"), fc("aux_fc1", 9),
        relu("aux_relu"), {"name": "aux_drop", "type": "dropout", "ratio": 0.0}, fc("aux_fc2", 6),
        loss("aux_loss", auxiliary=True, loss_weight=0.3),
        dict(pool("pool2", "average", [5, 6], 1), inputs=["block"]),
        {"name": "drop", "type": "dropout", "ratio": 0.0}, fc("fc", 6), loss(),
        {"name": "top1", "type": "accuracy", "inputs": ["fc"]}]}


def inception_v3():
    """Inception-V3: factorised convolutions, average pooling that counts padding, a reduction, label smoothing."""
    branch_pool = dict(pool("p_pool", "average", 3, 1, pad=1, count_padding=True), inputs=["stem_relu"])
    return {"name": "inception_v3_block", "input": [2, 10, 9], "layers": [
        *conv_bn_relu("stem", 6, 3, stride=1),
        *conv_bn_relu("f1", 4, 1, ["stem_relu"]), *conv_bn_relu("f2", 4, [1, 7], pad=[0, 3]),
        *conv_bn_relu("f3", 5, [7, 1], pad=[3, 0]),
        branch_pool, *conv_bn_relu("p", 3, 1),
        {"name": "mixed", "type": "concat", "inputs": ["f3_relu", "p_relu"]},
        *conv_bn_relu("aux", 4, 3, ["mixed"]), fc("aux_fc", 7),
        loss("aux_loss", auxiliary=True, loss_weight=0.4, label_smoothing=0.1),
        *conv_bn_relu("r", 6, 3, ["mixed"], stride=2),
        dict(pool("r_pool", "max", 3, 2), inputs=["mixed"]),
        {"name": "reduced", "type": "concat", "inputs": ["r_relu", "r_pool"]},
        {"name": "mean", "type": "pooling", "pool": "average", "global": True},
        fc("fc", 7), loss(label_smoothing=0.1)]}


def vgg():
    return {"name": "vgg_block", "input": [3, 8, 8], "layers": [
        conv("c1", 8, 3, pad=1), relu("r1"), conv("c2", 8, 3, pad=1), relu("r2"), pool("p1", "max", 2, 2),
        conv("c3", 12, 3, pad=1), relu("r3"), conv("c4", 12, 3, pad=1), relu("r4"), pool("p2", "max", 2, 2),
        fc("fc1", 20), relu("r5"), {"name": "d1", "type": "dropout", "ratio": 0.0},
        fc("fc2", 16), relu("r6"), {"name": "d2", "type": "dropout", "ratio": 0.0}, fc("fc3", 9), loss()]}


def alexnet():
    return {"name": "alexnet_block", "input": [3, 15, 15], "layers": [
        conv("c1", 8, 5, stride=2), relu("r1"), {"name": "n1", "type": "lrn", "alpha": 0.5},
        pool("p1", "max", 3, 2, ceil_mode=True),
        conv("c2", 12, 3, pad=1, groups=2), relu("r2"), pool("p2", "max", 3, 2, ceil_mode=True), fc("fc", 5), loss()]}


def vectors():
    """Batch normalisation and concatenation of vectors; one layer read by several; the data read again."""
    return {"name": "vectors", "input": [10], "layers": [
        fc("f1", 8, bias=False), {"name": "n1", "type": "batch_norm", "momentum": 0.25}, relu("r1"),
        fc("f2", 8, bias=False, inputs=["r1"]),
        {"name": "sum", "type": "add", "inputs": ["r1", "f2", "r1"]},
        {"name": "all", "type": "concat", "inputs": ["sum", "input", "r1"]},
        {"name": "n2", "type": "batch_norm"}, fc("fc", 4), loss(loss_weight=0.5)]}


def make_tensor(seed):
    """Weights uniform with deviation sqrt(2 / fan-in); of batch normalisation about 1; biases small."""

    def make(name, shape):
        draws = layers.values(layers.mix_seed(seed, layers.fnv1a_64(name)), *shape)
        if len(shape) > 1:
            scaled = draws * math.sqrt(6.0 / math.prod(shape[1:]))
        elif name.endswith(".weight"):
            scaled = 1.0 + 0.5 * draws
        else:
            scaled = 0.25 * draws
        return scaled.float().double()

    return make


def passes(network, seed, batch, dtype):
    tensors = torch_network.Tensors(make_tensor(seed), dtype)
    x = layers.values(layers.mix_seed(seed, 0), batch, *network["input"]).to(dtype)
    classes = [layer for layer in network["layers"] if layer["type"] == "fully_connected"][-1]["outputs"]
    labels = torch.tensor([int(v * classes) for v in layers.uniform(layers.mix_seed(seed, 4), batch)])
    trained, _ = torch_network.run(network, x, labels, tensors, True)
    trained.backward()
    with torch.no_grad():
        tested, scores = torch_network.run(network, x, labels, tensors, False)
    return {"loss": trained.item(), "tested_loss": tested.item(), "hits": (scores.argmax(1) == labels).sum().item(),
            "labels": labels.tolist()}, tensors


def case(network, seed, batch):
    result, tensors = passes(network, seed, batch, torch.float64)
    rounded, rounded_tensors = passes(network, seed, batch, torch.float32)
    # A maximum or a ReLU that float32 decides otherwise would make the comparison worthless: choose another seed.
    for name, tensor in tensors.parameters.items():
        error = (tensor.grad - rounded_tensors.parameters[name].grad.double()).norm() / tensor.grad.norm()
        assert error < 1e-5, f"{network['name']} {name}: float32 differs by {error}"
    assert abs(result["loss"] - rounded["loss"]) < 1e-5 and result["hits"] == rounded["hits"]
    gradients = []
    for name, tensor in tensors.parameters.items():
        gradient = tensor.grad.flatten()
        step = max(1, gradient.numel() // SAMPLES_OF_GRADIENT)
        gradients.append({"name": name, "norm": gradient.norm().item(), "largest": gradient.abs().max().item(),
                          "step": step, "values": layers.listed(gradient[::step])})
    return {"network": network, "seed": seed, "batch": batch, **result, "gradients": gradients,
            "statistics": {name: layers.listed(value) for name, value in tensors.statistics.items()}}


if __name__ == "__main__":
    np.seterr(over="ignore")
    torch.set_num_threads(1)
    CASES = [case(residual(), 11, 4), case(googlenet(), 12, 3), case(inception_v3(), 13, 4), case(vgg(), 14, 3),
             case(alexnet(), 15, 2), case(vectors(), 16, 9)]
    text = json.dumps(CASES, indent=1)
    for depth in range(8, 2, -1):
        text = text.replace("\n" + " " * depth, " ")
    (HERE / "blocks.json").write_text(text + "\n")
