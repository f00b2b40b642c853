#!/usr/bin/env python3
"""Writes images.json: what Pillow and torchvision make of small images.

  decode    files (JPEG, PNG of many kinds) -> Image.convert("RGB"), .convert("L")
  resample  pixels -> Image.resize(BILINEAR)
  colours   pixels -> torchvision's adjust_* on float64 tensors

Run with a Python that has Pillow, PyTorch and torchvision (Debian: python3-pil, python3-torch, python3-torchvision);
the result is checked in, so no test needs them:
    /usr/bin/python3 tests/golden/images/generate.py
"""

import base64
import io
import json
import pathlib
import struct
import zlib

import numpy as np
import PIL
import torch
import torchvision
import torchvision.transforms.functional as F
from PIL import Image


def text(data):
    return base64.b64encode(bytes(data)).decode()


def photograph(height, width, seed=0):
    """Smooth waves and some noise: what JPEG is made for, with colours everywhere."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 90 * np.sin(x / (5 + c) + c) * np.cos(y / (7 - c)) + random.normal(0, 12, (height, width))
              for c in range(3)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def saved(image, format_, **options):
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def png(width, height, bits, colour_type, interlaced, rows):
    """Of what Pillow does not write. `rows`: each with its filter's byte, here 0."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def png_of_16_bits(pixels):
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + (pixels[y].astype(">u2") * 257 // 2 + 77).astype(">u2").tobytes() for y in range(height))
    return png(width, height, 16, 2, False, rows)


def interlaced_png(pixels):
    """By Adam7: seven passes, each of every so many rows and columns."""
    height, width = pixels.shape[:2]
    rows = b""
    for top, left, down, right in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        rows += b"".join(b"\0" + pixels[y, left::right].tobytes() for y in range(top, height, down) if left < width)
    return png(width, height, 8, 2, True, rows)


def decode_cases():
    pixels = photograph(29, 43)
    rgb = Image.fromarray(pixels)
    grey = rgb.convert("L")
    cmyk = Image.fromarray(np.dstack([pixels, photograph(29, 43, 5)[..., 0]]), "CMYK")
    rgba = Image.fromarray(np.dstack([pixels, photograph(29, 43, 6)[..., 0]]), "RGBA")
    files = {
        "jpeg 4:2:0": saved(rgb, "JPEG", quality=80, subsampling=2),
        "jpeg 4:2:2": saved(rgb, "JPEG", quality=80, subsampling=1),
        "jpeg 4:4:4": saved(rgb, "JPEG", quality=95, subsampling=0),
        "jpeg progressive": saved(rgb, "JPEG", quality=80, progressive=True),
        "jpeg grey": saved(grey, "JPEG", quality=80),
        "jpeg cmyk": saved(cmyk, "JPEG", quality=90),
        "jpeg 1x1": saved(rgb.crop((0, 0, 1, 1)), "JPEG"),
        "png rgb": saved(rgb, "PNG"),
        "png rgba": saved(rgba, "PNG"),
        "png grey": saved(grey, "PNG"),
        "png grey alpha": saved(rgba.convert("LA"), "PNG"),
        "png palette": saved(rgb.quantize(16), "PNG"),
        "png 1 bit": saved(grey.convert("1"), "PNG"),
        "png 16 bits": png_of_16_bits(pixels),
        "png interlaced": interlaced_png(pixels),
        "png one colour transparent": saved(rgb, "PNG", transparency=tuple(int(v) for v in pixels[3, 5])),
        "jpeg 4:2:0, many rows of blocks": saved(Image.fromarray(photograph(83, 61, 9)), "JPEG", quality=70, subsampling=2),
    }
    cases = []
    for name, file in files.items():
        image = Image.open(io.BytesIO(file))
        image.load()
        cases.append({"name": name, "height": image.height, "width": image.width, "file": text(file),
                      "rgb": text(np.asarray(image.convert("RGB")).tobytes()),
                      "grey": text(np.asarray(image.convert("RGB").convert("L")).tobytes())})
    return cases


def resample_cases():
    cases = []
    for channels, (height, width), (new_height, new_width) in [
            (3, (31, 41), (17, 13)), (3, (31, 41), (64, 50)), (1, (40, 30), (7, 9)), (3, (20, 20), (20, 9)),
            (3, (20, 20), (11, 20)), (1, (1, 1), (3, 4)), (3, (50, 3), (1, 1)), (3, (9, 64), (9, 64)),
            (1, (33, 70), (32, 69))]:
        pixels = photograph(height, width, height * width)
        pixels = pixels if channels == 3 else pixels[..., 0]
        resized = Image.fromarray(pixels).resize((new_width, new_height), Image.BILINEAR)
        cases.append({"channels": channels, "from": [height, width], "to": [new_height, new_width],
                      "pixels": text(pixels.tobytes()), "resized": text(np.asarray(resized).tobytes())})
    return cases


def colour_cases():
    pixels = photograph(9, 11, 3)
    pixels[0, :3] = [[0, 0, 0], [255, 255, 255], [77, 77, 77]]
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).double() / 255
    steps = {"brightness": F.adjust_brightness, "contrast": F.adjust_contrast, "saturation": F.adjust_saturation,
             "hue": F.adjust_hue}
    cases = []
    for order in (["brightness"], ["contrast"], ["saturation"], ["hue"], ["hue", "contrast", "saturation", "brightness"]):
        for factors in ({"brightness": 1.3, "contrast": 0.6, "saturation": 1.4, "hue": -0.2},
                        {"brightness": 0.7, "contrast": 1.5, "saturation": 0.0, "hue": 0.45}):
            out = tensor
            for step in order:
                out = steps[step](out, factors[step])
            cases.append({"steps": order, "factors": factors,
                          "values": [round(v, 6) for v in (out * 255).flatten().tolist()]})
    return {"height": 9, "width": 11, "planes": text((tensor * 255).round().byte().numpy().tobytes()), "cases": cases}


def main():
    result = {"generator": f"tests/golden/images/generate.py, Pillow {PIL.__version__}, torch {torch.__version__}, "
                           f"torchvision {torchvision.__version__}",
              "decode": decode_cases(), "resample": resample_cases(), "colours": colour_cases()}
    path = pathlib.Path(__file__).with_name("images.json")
    path.write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
