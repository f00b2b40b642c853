#pragma once

// Converts a decoder's colours to the requested ones by Pillow's integer formulas, so that pixels
// equal Pillow's. Pure.
//
// Called by: jpeg_decoder.h and png_decoder.h. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"

namespace poseidon {

/// Pillow's L: ITU-R 601-2 luma in 16-bit fixed point.
inline std::uint8_t luma(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  return static_cast<std::uint8_t>((red * 19595u + green * 38470u + blue * 7471u + 0x8000u) >> 16);
}

/// a * b / 255, rounded.
inline unsigned multiply_divide_255(unsigned a, unsigned b) {
  const unsigned product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

/// One value of RGB out of inverted ink (255: none) and inverted black.
inline std::uint8_t from_inverted_ink(unsigned ink, unsigned black) {
  return static_cast<std::uint8_t>(black - multiply_divide_255(255 - ink, black));
}

/// `width` pixels of 1 (grey), 3 (RGB) or 4 (inverted CMYK) components to `channels` 1 or 3.
inline void convert_row(const std::uint8_t* in, std::int64_t components, std::int64_t width,
                        std::uint8_t* out, std::int64_t channels) {
  POSEIDON_CHECK(channels == 1 || channels == 3, "only grey and RGB");
  if (components == channels) {
    std::memcpy(out, in, static_cast<std::size_t>(width * channels));
    return;
  }
  for (std::int64_t x = 0; x < width; ++x, in += components, out += channels) {
    std::uint8_t rgb[3] = {in[0], in[0], in[0]};
    if (components == 3) {
      rgb[1] = in[1];
      rgb[2] = in[2];
    } else if (components == 4) {
      for (int c = 0; c < 3; ++c) rgb[c] = from_inverted_ink(in[c], in[3]);
    }
    if (channels == 1) {
      out[0] = components == 1 ? rgb[0] : luma(rgb[0], rgb[1], rgb[2]);
    } else {
      for (int c = 0; c < 3; ++c) out[c] = rgb[c];
    }
  }
}

}  // namespace poseidon
