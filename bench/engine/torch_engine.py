"""PyTorch's side of compare.py: one network, forward and backward again and again.

    torch_engine.py --batch K --threads N [--channels-last] [--device cuda:0] [--precision bf16] [--compile]

The first line of standard input is what `poseidon-bench-engine --network NAME --describe` prints. The network is built
from it layer by layer, so that both train the same one; the parameter counts are compared. Each further line is a
number of iterations, answered with a JSON line of figures: the protocol of poseidon-bench-engine --turns.

On a GPU every iteration brings its batch from pinned host memory, as a training loop's does, and the clock is read when
the device has nothing left to do. Others share the GPU: between turns PyTorch's allocator keeps no memory that nothing
lies in, and an iteration that is not timed gets it back.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import sys
import time


def rss_mib(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def loss_of(layer, torch):
    return torch.nn.CrossEntropyLoss(label_smoothing=layer["label_smoothing"])


def module_of(layer, torch):
    """The PyTorch module of one layer; None for those that are written out in Network.forward."""
    nn = torch.nn
    kind, kernel, stride, pad = layer["type"], layer["kernel"], layer["stride"], layer["pad"]
    channels = layer["input_shape"][0]
    if kind == "convolution":
        return nn.Conv2d(channels, layer["output_shape"][0], kernel, stride, pad, groups=layer["groups"],
                         bias=layer["has_bias"])
    if kind == "fully_connected":
        inputs = 1
        for size in layer["input_shape"]:
            inputs *= size
        return nn.Linear(inputs, layer["output_shape"][0], bias=layer["has_bias"])
    if kind == "pooling" and layer["pool"] == "max":
        return nn.MaxPool2d(kernel, stride, pad, ceil_mode=layer["ceil_mode"])
    if kind == "pooling":
        if kernel == layer["input_shape"][1:] and pad == [0, 0]:
            return nn.AdaptiveAvgPool2d(1)
        return nn.AvgPool2d(kernel, stride, pad, ceil_mode=layer["ceil_mode"], count_include_pad=layer["count_padding"])
    if kind == "batch_norm":
        cls = nn.BatchNorm2d if len(layer["input_shape"]) == 3 else nn.BatchNorm1d
        return cls(channels, eps=layer["epsilon"], momentum=layer["momentum"])
    if kind == "relu":
        return nn.ReLU(inplace=True)
    if kind == "lrn":
        return nn.LocalResponseNorm(layer["local_size"], layer["alpha"], layer["beta"], layer["k"])
    if kind == "dropout":
        return nn.Dropout(layer["ratio"])
    if kind == "softmax_cross_entropy":
        return loss_of(layer, torch)
    if kind in ("add", "concat", "accuracy"):
        return None
    sys.exit(f"torch_engine.py knows no layer type {kind!r}: add it to module_of")


def make_network(description, torch):
    layers = description["layers"]
    # ReLU may overwrite its input only where nobody else reads it.
    readers = {}
    for layer in layers:
        for name in layer["inputs"]:
            readers[name] = readers.get(name, 0) + 1

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ops = torch.nn.ModuleList()
            for layer in layers:
                module = module_of(layer, torch)
                if layer["type"] == "relu":
                    module.inplace = readers[layer["inputs"][0]] == 1 and layer["inputs"][0] != "input"
                self.ops.append(module if module is not None else torch.nn.Identity())

        def forward(self, images, labels):
            # Values are let go after their last reader, as in a hand-written forward.
            left = dict(readers)
            values = {"input": images}
            total = None
            for layer, op in zip(layers, self.ops):
                kind = layer["type"]
                if kind == "accuracy":
                    continue
                inputs = [values[name] for name in layer["inputs"]]
                for name in layer["inputs"]:
                    left[name] -= 1
                    if left[name] == 0:
                        del values[name]
                if kind == "add":
                    out = inputs[0]
                    for other in inputs[1:]:
                        out = out + other
                elif kind == "concat":
                    out = torch.cat(inputs, 1)
                elif kind == "fully_connected":
                    out = op(torch.flatten(inputs[0], 1))
                elif kind == "softmax_cross_entropy":
                    loss = layer["loss_weight"] * op(torch.flatten(inputs[0], 1), labels)
                    total = loss if total is None else total + loss
                    continue
                else:
                    out = op(inputs[0])
                del inputs
                values[layer["name"]] = out
                del out
            return total

    return Network()


def parse_args():
    parser = argparse.ArgumentParser(description="PyTorch's side of compare.py.")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="PyTorch's other memory format for images")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N, default %(default)s")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="fp32",
                        help="tf32: of products and convolutions; bf16 and fp16: autocast. Default %(default)s")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    return parser.parse_args()


def set_precision(torch, args):
    """What decides how products are computed; the context in which a forward pass runs."""
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    torch.backends.cudnn.benchmark = True  # its best: the batches are all alike
    if args.precision in ("fp32", "tf32"):
        return contextlib.nullcontext
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    return lambda: torch.autocast(args.device.split(":")[0], dtype=dtype)


class OnDevice:
    """A batch in host memory and the way to the device."""

    def __init__(self, torch, device, images, labels):
        self.torch, self.device, self.is_gpu = torch, device, device != "cpu"
        self.images = images.pin_memory() if self.is_gpu else images
        self.labels = labels.pin_memory() if self.is_gpu else labels

    def batch(self):
        if not self.is_gpu:
            return self.images, self.labels
        return self.images.to(self.device, non_blocking=True), self.labels.to(self.device, non_blocking=True)

    def wait(self):
        if self.is_gpu:
            self.torch.cuda.synchronize(self.device)

    def let_go(self, network):
        if self.is_gpu:
            network.zero_grad(set_to_none=True)
            self.torch.cuda.empty_cache()

    def peak_mib(self):
        return self.torch.cuda.max_memory_reserved(self.device) / 2**20 if self.is_gpu else 0.0


def main():
    args = parse_args()
    # Both ends of the pipe are needed: the description first, then the turns.
    description = json.loads(sys.stdin.readline())
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    import torch  # after OMP_NUM_THREADS; and so that --help works without it

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    base_mib = rss_mib("VmHWM")
    network = make_network(description, torch)
    network.train()
    parameters = sum(p.numel() for p in network.parameters())
    if parameters != description["parameters"]:
        sys.exit(f"{description['name']}: PyTorch has {parameters} parameters, ours {description['parameters']}")
    images = torch.rand([args.batch] + description["input_shape"]) * 2 - 1
    labels = torch.randint(description["classes"], [args.batch])
    if args.channels_last:
        network = network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    precision = set_precision(torch, args)
    network = network.to(args.device)
    data = OnDevice(torch, args.device, images, labels)
    step = torch.compile(network) if args.compile else network
    print(json.dumps({"ready": True, "torch": torch.__version__, "import_only_mib": base_mib}), flush=True)

    def iterate():
        # The faster way: backward then has nothing to add to.
        network.zero_grad(set_to_none=True)
        with precision():
            loss = step(*data.batch())
        loss.backward()
        return loss.detach()

    for line in sys.stdin:
        if data.is_gpu:
            iterate()
        data.wait()
        begin, begin_cpu = time.monotonic(), sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        for _ in range(int(line)):
            loss = iterate()
        value = float(loss)
        data.wait()
        images_done = int(line) * args.batch
        print(json.dumps({
            "images_per_s": images_done / (time.monotonic() - begin),
            "cpu_seconds_per_image": (sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - begin_cpu) / images_done,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "device_peak_mib": data.peak_mib(),
            "loss": value}), flush=True)
        data.let_go(network)


if __name__ == "__main__":
    main()
