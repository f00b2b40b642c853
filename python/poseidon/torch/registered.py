"""Objects with a state_dict, kept with the job: as JSON, one byte in each number of the declared state.

A number from 0 to 255 is exact in every wire type. A dictionary (or Counter, as MultiStepLR has) is a list of pairs, since
JSON's have texts as keys alone. Called by: session.py. Calls: nothing.
"""

import collections
import json

import torch

from poseidon.errors import Invalid

LENGTH_BYTES = 4


def encode(states, capacity):
    """{name: state_dict} as a float32 tensor of `capacity` bytes."""
    for name, state in states.items():
        try:
            json.dumps(_plain(state))
        except (TypeError, ValueError) as error:
            raise Invalid(f"registered object {name!r}: its state_dict() can have numbers, texts, lists and dictionaries alone ({error})") from error
    text = json.dumps(_plain(states)).encode()
    if LENGTH_BYTES + len(text) > capacity:
        raise Invalid(f"the registered objects {', '.join(map(repr, states))} take {LENGTH_BYTES + len(text)} bytes: say "
                      f"distribute(..., registered_bytes=...), which is {capacity}")
    data = len(text).to_bytes(LENGTH_BYTES, "little") + text
    values = torch.zeros(capacity)
    values[:len(data)] = torch.tensor(list(data), dtype=torch.float32)
    return values


def decode(values):
    """{name: state_dict}; {} where nothing was kept."""
    data = bytes(values.to(torch.uint8).tolist())
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    return _restored(json.loads(data[LENGTH_BYTES:LENGTH_BYTES + length])) if length else {}


def _plain(value):
    if isinstance(value, dict):
        return {type(value).__name__: [[_plain(key), _plain(item)] for key, item in value.items()]}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _restored(value):
    if isinstance(value, dict):
        (kind, pairs), = value.items()
        return (collections.Counter if kind == "Counter" else dict)({_restored(key): _restored(item) for key, item in pairs})
    return [_restored(item) for item in value] if isinstance(value, list) else value
