"""A state_dict as a safetensors file (a length, a JSON header, the tensors end to end). Called by: save(). Calls: torch."""

import json
import os
import pathlib

import torch

from poseidon.errors import Invalid

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
         torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def write(path, tensors):
    """Replaces `path` at once: a reader sees the old file or the new one. tensors: {name: tensor}."""
    header, begin = {}, 0
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in TYPES:
            raise Invalid(f"{name} is {tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor)}, which a safetensors file cannot have")
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target = pathlib.Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(_bytes(tensor))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _bytes(tensor):
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
