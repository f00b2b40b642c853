#pragma once

// Draws which elements dropout keeps (Srivastava et al.: "Dropout", JMLR 2014; outputs are scaled
// in training, so tests need no change). Pure; every device draws the same.
//
// Called by: the dropout operators of all devices. Calls: common/base/random.h.

#include <cstdint>
#include <string_view>

#include "common/base/random.h"

namespace poseidon {

/// The mask of one sample in one dropout layer: element e is kept iff the e-th draw of
/// SplitMix64(dropout_seed(...)) is at least the ratio. A function of the job's seed, the layer's
/// name and the sample's number in the run alone, so it does not depend on how many workers share a
/// batch, on threads, or on the device.
constexpr std::uint64_t dropout_seed(std::uint64_t seed, std::string_view layer,
                                     std::uint64_t sample) {
  return mix_seed(mix_seed(seed, fnv1a_64(layer)), sample);
}

/// Applies the mask with inverted scaling: out = kept ? in / (1 - ratio) : 0. `in` may be `out`.
inline void apply_dropout(std::uint64_t sample_seed, double ratio, std::int64_t elements,
                          const float* in, float* out) {
  SplitMix64 random(sample_seed);
  const auto scale = static_cast<float>(1.0 / (1.0 - ratio));
  for (std::int64_t i = 0; i < elements; ++i) {
    const bool kept = random.uniform() >= ratio;
    out[i] = kept ? in[i] * scale : 0.0f;
  }
}

}  // namespace poseidon
