"""What one network costs on one kind of device: the file that everything on the emulated cluster plays from.

{"network": "vgg19", "batch_size": 32, "device": "titan-x", "device_flops": 6e12, "device_bytes_per_s": 3.36e11,
 "layers": [{"name": "conv1_1", "type": "convolution", "forward_s": 0.001, "backward_s": 0.002,
             "tensors": [[64, 3, 3, 3], [64]]}, ...]}

The layers are those with parameters, in forward order; what layers without parameters take is in the times of the one
before them. Times are seconds per batch as the device takes them, not slowed down. `tensors` are the shapes of the
layer's parameter tensors.
"""

import dataclasses
import json
import math
import pathlib

ELEMENT_BYTES = 4

# SGD with momentum reads gradient, parameter and momentum and writes the last two: five times four bytes.
OPTIMIZER_BYTES_PER_PARAMETER = 20


class ProfileError(Exception):
    """The file is no profile; the message names the key and its value."""


@dataclasses.dataclass(frozen=True)
class Layer:
    name: str
    type: str
    forward_s: float
    backward_s: float
    tensors: tuple  # of shapes, each a tuple of whole numbers

    @property
    def elements(self):
        """Of each tensor."""
        return [math.prod(shape) for shape in self.tensors]


@dataclasses.dataclass(frozen=True)
class Profile:
    network: str
    batch_size: int
    device: str
    device_flops: float
    device_bytes_per_s: float
    layers: tuple

    @property
    def parameters(self):
        return sum(sum(layer.elements) for layer in self.layers)

    @property
    def parameter_bytes(self):
        return self.parameters * ELEMENT_BYTES

    @property
    def compute_s(self):
        """Forward and backward of one batch."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    @property
    def optimizer_s(self):
        """The step of all parameters on the device: as long as its memory takes to move what the step touches."""
        return OPTIMIZER_BYTES_PER_PARAMETER * self.parameters / self.device_bytes_per_s

    def write(self, path):
        path.write_text(json.dumps(dataclasses.asdict(self)) + "\n")


def load(path):
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    try:
        return parse(json.loads(text))
    except ValueError as error:
        raise ProfileError(f"{path} is no JSON: {error}") from None
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def parse(data):
    """The profile in what JSON's decoder made of the file."""
    _check_keys(data, "the profile", Profile)
    if not isinstance(data["layers"], list) or not data["layers"]:
        raise ProfileError(f"layers is {_shown(data['layers'])}; a list of at least one layer")
    layers = tuple(_layer(number, layer) for number, layer in enumerate(data["layers"]))
    names = [layer.name for layer in layers]
    for number, name in enumerate(names):
        if names.index(name) != number:
            raise ProfileError(f"layers[{number}].name is '{name}', as of layers[{names.index(name)}]; each has its own")
    return Profile(network=_word(data["network"], "network"), batch_size=_count(data["batch_size"], "batch_size"),
                   device=_word(data["device"], "device"), device_flops=_rate(data["device_flops"], "device_flops"),
                   device_bytes_per_s=_rate(data["device_bytes_per_s"], "device_bytes_per_s"), layers=layers)


def _layer(number, data):
    where = f"layers[{number}]"
    _check_keys(data, where, Layer)
    tensors = data["tensors"]
    if not isinstance(tensors, list) or not tensors or not all(isinstance(shape, list) and shape for shape in tensors):
        raise ProfileError(f"{where}.tensors is {_shown(tensors)}; a list of shapes, such as [[64, 3, 3, 3], [64]]")
    return Layer(name=_word(data["name"], f"{where}.name"), type=_word(data["type"], f"{where}.type"),
                 forward_s=_seconds(data["forward_s"], f"{where}.forward_s"),
                 backward_s=_seconds(data["backward_s"], f"{where}.backward_s"),
                 tensors=tuple(tuple(_count(size, f"{where}.tensors") for size in shape) for shape in tensors))


def _shown(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_keys(data, where, of):
    known = [field.name for field in dataclasses.fields(of)]
    if not isinstance(data, dict):
        raise ProfileError(f"{where} is {_shown(data)}; an object with {', '.join(known)}")
    for key in known:
        if key not in data:
            raise ProfileError(f"{where} has no '{key}'")
    for key in data:
        if key not in known:
            raise ProfileError(f"{where} has '{key}', which is none of {', '.join(known)}")


def _word(value, where):
    if not isinstance(value, str) or not value:
        raise ProfileError(f"{where} is {_shown(value)}; a name")
    return value


def _count(value, where):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProfileError(f"{where} is {_shown(value)}; a whole number above 0")
    return value


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _seconds(value, where):
    if not _number(value) or value < 0:
        raise ProfileError(f"{where} is {_shown(value)}; a number of seconds, 0 or more")
    return float(value)


def _rate(value, where):
    if not _number(value) or value <= 0:
        raise ProfileError(f"{where} is {_shown(value)}; a number above 0, per second")
    return float(value)
