#include "worker/data/images/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace poseidon {
namespace {

/// 8 bits of pixel, 2 of headroom: the sums fit into 32.
constexpr int kWeightBits = 32 - 8 - 2;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

/// Towards 0, as Pillow's casts; not std::lround, which rounds ties of negative numbers otherwise.
std::int64_t truncate(double value) { return static_cast<std::int64_t>(value); }

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

#if defined(__SSE2__)
// A sum of products of 8-bit pixels and 22-bit weights, exactly: the products with the higher and
// the lower 11 bits of the weights are summed apart, two taps at a time.

__m128i load_pixel(const std::uint8_t* pixel) {
  std::int32_t four = 0;
  std::memcpy(&four, pixel, 4);
  return _mm_cvtsi32_si128(four);
}

__m128i join(__m128i high, __m128i low) {
  const __m128i sum = _mm_add_epi32(_mm_slli_epi32(high, kWeightBits / 2), low);
  return _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(kHalf)), kWeightBits);
}

/// RGB. Reads up to two pixels beyond the last one that counts: not for an image's last row.
void narrow_row_rgb(const std::uint8_t* in, const ResampleWeights& weights, std::uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  for (std::int64_t x = 0; x < weights.out(); ++x, out += 3) {
    const ResampleWeights::Taps taps = weights.taps(x);
    const std::uint8_t* pixel = in + taps.first * 3;
    __m128i high = zero;
    __m128i low = zero;
    for (std::int64_t j = 0; j < (taps.count + 1) / 2; ++j, pixel += 6) {
      // r0 r1 g0 g1 b0 b1 ? ?, each as 16 bits
      const __m128i pairs =
          _mm_unpacklo_epi8(_mm_unpacklo_epi8(load_pixel(pixel), load_pixel(pixel + 3)), zero);
      high = _mm_add_epi32(high, _mm_madd_epi16(pairs, _mm_set1_epi32(taps.pairs[j].high)));
      low = _mm_add_epi32(low, _mm_madd_epi16(pairs, _mm_set1_epi32(taps.pairs[j].low)));
    }
    const __m128i words = _mm_packs_epi32(join(high, low), zero);
    const std::int32_t rgb = _mm_cvtsi128_si32(_mm_packus_epi16(words, zero));
    std::memcpy(out, &rgb, 3);
  }
}

/// 16 values of an output row; `row` is the first of the rows that count.
__m128i shorten_16(const std::uint8_t* row, std::ptrdiff_t row_stride,
                   const ResampleWeights::Taps& taps) {
  const __m128i zero = _mm_setzero_si128();
  __m128i high[4] = {zero, zero, zero, zero};
  __m128i low[4] = {zero, zero, zero, zero};
  for (std::int64_t j = 0; j < taps.count; j += 2, row += 2 * row_stride) {
    const std::uint8_t* other = j + 1 < taps.count ? row + row_stride : row;
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(other));
    const __m128i left = _mm_unpacklo_epi8(a, b);
    const __m128i right = _mm_unpackhi_epi8(a, b);
    const __m128i pairs[4] = {_mm_unpacklo_epi8(left, zero), _mm_unpackhi_epi8(left, zero),
                              _mm_unpacklo_epi8(right, zero), _mm_unpackhi_epi8(right, zero)};
    const __m128i weight_high = _mm_set1_epi32(taps.pairs[j / 2].high);
    const __m128i weight_low = _mm_set1_epi32(taps.pairs[j / 2].low);
    for (int i = 0; i < 4; ++i) {
      high[i] = _mm_add_epi32(high[i], _mm_madd_epi16(pairs[i], weight_high));
      low[i] = _mm_add_epi32(low[i], _mm_madd_epi16(pairs[i], weight_low));
    }
  }
  return _mm_packus_epi16(_mm_packs_epi32(join(high[0], low[0]), join(high[1], low[1])),
                          _mm_packs_epi32(join(high[2], low[2]), join(high[3], low[3])));
}
#endif

void narrow(const ImageView& in, const ResampleWeights& weights, Image& out) {
  for (std::int64_t y = 0; y < out.height; ++y) {
    const std::uint8_t* row = in.pixels + y * in.row_stride;
#if defined(__SSE2__)
    // What lies behind a row is the next one, of which some pixels may be read and not used.
    if (in.channels == 3 && y + 1 < out.height && in.width >= 2) {
      narrow_row_rgb(row, weights, out.row(y));
      continue;
    }
#endif
    if (in.channels == 3) {
      narrow_row<3>(row, weights, out.row(y));
    } else if (in.channels == 1) {
      narrow_row<1>(row, weights, out.row(y));
    } else {
      narrow_row_any(row, weights, in.channels, out.row(y));
    }
  }
}

/// One output row out of some rows of `in`.
void shorten_row(const ImageView& in, const ResampleWeights::Taps& taps, std::uint8_t* out,
                 std::int64_t values) {
  const std::uint8_t* first_row = in.pixels + taps.first * in.row_stride;
  std::int64_t i = 0;
#if defined(__SSE2__)
  for (; i + 16 <= values; i += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     shorten_16(first_row + i, in.row_stride, taps));
  }
#endif
  for (; i < values; ++i) {
    std::int32_t sum = kHalf;
    for (std::int64_t j = 0; j < taps.count; ++j) {
      sum += first_row[j * in.row_stride + i] * taps.weights[j];
    }
    out[i] = clip(sum);
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
  stride_ = static_cast<std::int64_t>(std::ceil(support)) * 2 + 2;
  weights_.assign(static_cast<std::size_t>(out * stride_), 0);
  first_.resize(static_cast<std::size_t>(out));
  count_.resize(static_cast<std::size_t>(out));
  std::vector<double> exact(static_cast<std::size_t>(stride_));
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, truncate(centre - support + 0.5));
    const auto end = std::min(in, truncate(centre + support + 0.5));
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
          static_cast<std::int32_t>(truncate(0.5 + weight * (1 << kWeightBits)));
    }
    first_[static_cast<std::size_t>(i)] = first;
    count_[static_cast<std::size_t>(i)] = end - first;
  }
  pairs_.resize(weights_.size() / 2);
  constexpr std::int32_t kLowBits = (1 << (kWeightBits / 2)) - 1;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const std::int32_t one = weights_[2 * i];
    const std::int32_t other = weights_[2 * i + 1];
    pairs_[i] = {.high = (one >> (kWeightBits / 2)) | (other >> (kWeightBits / 2) << 16),
                 .low = (one & kLowBits) | ((other & kLowBits) << 16)};
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
