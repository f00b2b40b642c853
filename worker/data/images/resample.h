#pragma once

// Smooth resizing of photographs: Pillow's BILINEAR, bit for bit. Pure.
//
// Called by: transform.h, for the decoded and cropped image. Calls: nothing.
//
// A triangle filter whose width grows with the reduction, so that every source pixel contributes
// (antialiasing); first along the rows, then along the columns, each rounded to 8 bits. Weights are
// integers of 22 fractional bits, hence the same bytes on every machine. Reference: Pillow's
// src/libImaging/Resample.c; torchvision's Resize and RandomResizedCrop do the same to PIL images.

#include <cstdint>
#include <vector>

#include "worker/data/images/image.h"

namespace poseidon {

/// Two neighbouring weights of 22 fractional bits, as the processor's multiply-and-add of 16-bit
/// pairs takes them: 11 higher and 11 lower bits of the one, and of the other above them.
struct WeightPair {
  std::int32_t high = 0;
  std::int32_t low = 0;
};

/// Weights for one size in and one size out: output i is the sum over j < count of source[first +
/// j] * weights[j], in units of 2^-22. An odd count's last pair has a weight of 0.
class ResampleWeights {
 public:
  /// Both >= 1. Costs little beside an image's rows; does nothing when the sizes are as before.
  void prepare(std::int64_t in, std::int64_t out);

  struct Taps {
    const std::int32_t* weights;
    const WeightPair* pairs;
    std::int64_t first;
    std::int64_t count;
  };
  Taps taps(std::int64_t i) const {
    const auto index = static_cast<std::size_t>(i);
    return {weights_.data() + i * stride_, pairs_.data() + i * stride_ / 2, first_[index],
            count_[index]};
  }
  std::int64_t in() const { return in_; }
  std::int64_t out() const { return out_; }

 private:
  std::int64_t in_ = 0;
  std::int64_t out_ = 0;
  std::int64_t stride_ = 0;  ///< weights kept per output, an even number
  std::vector<std::int32_t> weights_;
  std::vector<WeightPair> pairs_;
  std::vector<std::int64_t> first_;
  std::vector<std::int64_t> count_;
};

/// Resizes with scratch memory that it keeps. One thread.
class Resampler {
 public:
  /// `source` may be interleaved or planar; `out` gets height x width pixels of as many channels,
  /// interleaved, and must not be where `source` lies.
  void resize(const ImageView& source, std::int64_t height, std::int64_t width, Image& out);

 private:
  ResampleWeights columns_;
  ResampleWeights rows_;
  Image interleaved_;  ///< of a planar source
  Image narrowed_;     ///< after the first pass
};

}  // namespace poseidon
