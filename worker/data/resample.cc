#include "worker/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/check.h"

namespace poseidon {
namespace {

/// 8 bits of pixel, 2 of headroom: the sums fit into 32.
constexpr int kWeightBits = 32 - 8 - 2;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

std::uint8_t clip(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

template <int kChannels>
void narrow_row(const std::uint8_t* in, const ResampleWeights& weights, std::uint8_t* out) {
  for (std::int64_t x = 0; x < weights.out(); ++x, out += kChannels) {
    const ResampleWeights::Taps taps = weights.taps(x);
    const std::uint8_t* pixel = in + taps.first * kChannels;
    std::int32_t sums[kChannels];
    for (std::int32_t& sum : sums) sum = kHalf;
    for (std::int64_t j = 0; j < taps.count; ++j, pixel += kChannels) {
      for (int c = 0; c < kChannels; ++c) sums[c] += pixel[c] * taps.weights[j];
    }
    for (int c = 0; c < kChannels; ++c) out[c] = clip(sums[c]);
  }
}

/// Any number of channels, one after the other.
void narrow_row_any(const std::uint8_t* in, const ResampleWeights& weights, std::int64_t channels,
                    std::uint8_t* out) {
  for (std::int64_t x = 0; x < weights.out(); ++x) {
    const ResampleWeights::Taps taps = weights.taps(x);
    for (std::int64_t c = 0; c < channels; ++c) {
      std::int32_t sum = kHalf;
      for (std::int64_t j = 0; j < taps.count; ++j) {
        sum += in[(taps.first + j) * channels + c] * taps.weights[j];
      }
      *out++ = clip(sum);
    }
  }
}

void narrow(const ImageView& in, const ResampleWeights& weights, Image& out) {
  for (std::int64_t y = 0; y < out.height; ++y) {
    const std::uint8_t* row = in.pixels + y * in.row_stride;
    if (in.channels == 3) {
      narrow_row<3>(row, weights, out.row(y));
    } else if (in.channels == 1) {
      narrow_row<1>(row, weights, out.row(y));
    } else {
      narrow_row_any(row, weights, in.channels, out.row(y));
    }
  }
}

/// One output row out of some rows of `in`, in pieces whose sums stay in the first-level cache.
void shorten_row(const ImageView& in, const ResampleWeights::Taps& taps, std::uint8_t* out,
                 std::int64_t values) {
  constexpr std::int64_t kPiece = 256;
  std::int32_t sums[kPiece];
  for (std::int64_t begin = 0; begin < values; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, values - begin);
    for (std::int64_t i = 0; i < count; ++i) sums[i] = kHalf;
    for (std::int64_t j = 0; j < taps.count; ++j) {
      const std::uint8_t* row = in.pixels + (taps.first + j) * in.row_stride + begin;
      const std::int32_t weight = taps.weights[j];
      for (std::int64_t i = 0; i < count; ++i) sums[i] += row[i] * weight;
    }
    for (std::int64_t i = 0; i < count; ++i) out[begin + i] = clip(sums[i]);
  }
}

void interleave(const ImageView& in, Image& out) {
  out.reshape(in.channels, in.height, in.width);
  std::uint8_t* pixel = out.pixels.data();
  for (std::int64_t y = 0; y < in.height; ++y) {
    for (std::int64_t x = 0; x < in.width; ++x) {
      for (std::int64_t c = 0; c < in.channels; ++c) {
        *pixel++ = in.pixels[c * in.channel_stride + y * in.row_stride + x * in.pixel_stride];
      }
    }
  }
}

}  // namespace

void ResampleWeights::prepare(std::int64_t in, std::int64_t out) {
  POSEIDON_CHECK(in >= 1 && out >= 1, "sizes below 1");
  if (in == in_ && out == out_) return;
  in_ = in;
  out_ = out;
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = std::max(1.0, scale);
  const double support = filter_scale;  // the triangle reaches 1 to either side
  stride_ = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  weights_.assign(static_cast<std::size_t>(out * stride_), 0);
  first_.resize(static_cast<std::size_t>(out));
  count_.resize(static_cast<std::size_t>(out));
  std::vector<double> exact(static_cast<std::size_t>(stride_));
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - support + 0.5));
    const auto end = std::min(in, static_cast<std::int64_t>(centre + support + 0.5));
    double total = 0.0;
    for (std::int64_t j = 0; j < end - first; ++j) {
      const double weight =
          triangle((static_cast<double>(j + first) - centre + 0.5) * (1.0 / filter_scale));
      exact[static_cast<std::size_t>(j)] = weight;
      total += weight;
    }
    for (std::int64_t j = 0; j < end - first; ++j) {
      double weight = exact[static_cast<std::size_t>(j)];
      if (total != 0.0) weight /= total;
      weights_[static_cast<std::size_t>(i * stride_ + j)] =
          static_cast<std::int32_t>(0.5 + weight * (1 << kWeightBits));
    }
    first_[static_cast<std::size_t>(i)] = first;
    count_[static_cast<std::size_t>(i)] = end - first;
  }
}

void Resampler::resize(const ImageView& source, std::int64_t height, std::int64_t width,
                       Image& out) {
  ImageView in = source;
  if (in.channels > 1 && in.channel_stride != 1) {
    interleave(source, interleaved_);
    in = interleaved_.view();
  }
  if (in.width != width) {
    columns_.prepare(in.width, width);
    narrowed_.reshape(in.channels, in.height, width);
    narrow(in, columns_, narrowed_);
    in = narrowed_.view();
  }
  out.reshape(in.channels, height, width);
  const std::int64_t values = width * in.channels;
  if (in.height == height) {
    for (std::int64_t y = 0; y < height; ++y) {
      std::memcpy(out.row(y), in.pixels + y * in.row_stride, static_cast<std::size_t>(values));
    }
    return;
  }
  rows_.prepare(in.height, height);
  for (std::int64_t y = 0; y < height; ++y) {
    shorten_row(in, rows_.taps(y), out.row(y), values);
  }
}

}  // namespace poseidon
