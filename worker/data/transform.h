#pragma once

// From a sample's uint8 pixels to the network's float32 input. Pure. Before: Dataset::read. After:
// Batch.
//
// The steps, in this order (common/job.h, TransformSpec):
//  1. resize: bilinear, as PyTorch's F.interpolate(mode="bilinear", align_corners=False,
//     antialias=False): output row y looks at s = max(0, (y + 0.5) * in / out - 0.5), i =
//     floor(s), at rows i and min(i + 1, in - 1) with weights 1 - (s - i) and s - i; columns
//     alike. Coordinates and sums in double, the result rounded to float32 once.
//  2. pad: pixels of value 0 (in file units, so before the mean is subtracted) on every side.
//  3. crop: random in training; in tests the centre, top = (height - crop) / 2 rounded down,
//     left alike.
//  4. mirror: left and right exchanged with probability 1/2; training only.
//  5. (pixel - mean) * scale in float32, with mean and scale rounded to float32 first.
//
// What is random depends on the data seed and on the sample's position in the run alone
// (random_choices), so one worker with batch 128 and four with batch 32 see the same pixels.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job.h"
#include "worker/engine/executor.h"
#include "worker/engine/net.h"

namespace poseidon {

/// Where to cut and whether to mirror.
struct TransformChoices {
  std::int64_t top = 0;  ///< in pixels of the padded image
  std::int64_t left = 0;
  bool mirror = false;
};

/// Three draws from SplitMix64(mix_seed(seed ^ kTransformStream, position)), always all of them, so
/// that switching one option on does not move the others: top = below(top_choices), left =
/// below(left_choices), mirror = the highest bit of next().
TransformChoices random_choices(std::uint64_t seed, std::uint64_t position,
                                std::int64_t top_choices, std::int64_t left_choices);

/// "transform" in ASCII: keeps these draws apart from the permutation's, which use the same seed.
inline constexpr std::uint64_t kTransformStream = 0x7472616E73666F72ull;

/// A TransformSpec made ready for samples of one shape. apply() uses scratch memory of its own: one
/// thread.
class Transform {
 public:
  /// INVALID_ARGUMENT naming the key: a crop larger than the padded image, a number of means that
  /// is neither 1 nor the number of channels.
  static absl::StatusOr<Transform> make(const TransformSpec& spec, std::uint64_t seed,
                                        const Shape& sample_shape);

  /// {channels, height, width} after all steps.
  const Shape& output_shape() const { return output_shape_; }

  /// `pixels`: one sample, C x H x W as given to make; `output`: element_count(output_shape())
  /// floats.
  void apply(std::span<const std::uint8_t> pixels, std::uint64_t position, Phase phase,
             std::span<float> output);

 private:
  /// One output coordinate of the resize: two source coordinates and the weight of the second.
  struct Tap {
    std::size_t first = 0;
    std::size_t second = 0;
    double second_weight = 0.0;
  };

  Transform() = default;
  static std::vector<Tap> make_taps(std::int64_t in, std::int64_t out);
  void resize(std::span<const std::uint8_t> pixels);
  TransformChoices choose(std::uint64_t position, Phase phase) const;

  std::uint64_t seed_ = 0;
  bool mirror_ = false;
  std::int64_t pad_ = 0;
  float scale_ = 1.0f;
  std::vector<float> mean_;  ///< one per channel
  Shape input_shape_;
  Shape resized_shape_;
  Shape output_shape_;
  std::vector<Tap> row_taps_;  ///< empty: no resize
  std::vector<Tap> column_taps_;
  std::vector<float> resized_;  ///< scratch: C x resized height x resized width
};

}  // namespace poseidon
