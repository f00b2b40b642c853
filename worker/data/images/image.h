#pragma once

// The pixels of a sample.
//
// Called by: the decoders, which fill it, and transform.h, which reads it. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poseidon {

/// A part of an image, in pixels.
struct Region {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const Region&) const = default;
};

/// Pixels owned by another object: value (channel c, row y, column x) is pixels[c * channel_stride
/// + y * row_stride + x * pixel_stride].
struct ImageView {
  const std::uint8_t* pixels = nullptr;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::ptrdiff_t channel_stride = 0;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t pixel_stride = 0;

  static ImageView interleaved(const std::uint8_t* pixels, std::int64_t channels,
                               std::int64_t height, std::int64_t width) {
    return {pixels, channels, height, width, 1, width * channels, channels};
  }
  static ImageView planar(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
    return {pixels, channels, height, width, height * width, width, 1};
  }
  /// The part `region`, which lies inside.
  ImageView part(const Region& region) const {
    ImageView view = *this;
    view.pixels += region.top * row_stride + region.left * pixel_stride;
    view.height = region.height;
    view.width = region.width;
    return view;
  }
};

/// Frees the memory of a huge image instead of keeping it; otherwise every thread of a worker would
/// hold that much in the end.
inline void give_back_much(std::vector<std::uint8_t>& memory, std::size_t needed) {
  constexpr std::size_t kMostKept = std::size_t{64} << 20;
  if (memory.capacity() > kMostKept && needed <= kMostKept)
    std::vector<std::uint8_t>().swap(memory);
}

/// An image with memory of its own, which grows and is used again. Interleaved: RGBRGB... or grey.
struct Image {
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels;

  void reshape(std::int64_t new_channels, std::int64_t new_height, std::int64_t new_width) {
    channels = new_channels;
    height = new_height;
    width = new_width;
    const auto size = static_cast<std::size_t>(channels * height * width);
    give_back_much(pixels, size);
    if (pixels.size() < size) pixels.resize(size);
  }
  std::uint8_t* row(std::int64_t y) { return pixels.data() + y * width * channels; }
  ImageView view() const { return ImageView::interleaved(pixels.data(), channels, height, width); }
};

}  // namespace poseidon
