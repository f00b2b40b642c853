#pragma once

// Transforms a sample's uint8 pixels to the network's float32 input in a Batch. Pure.
//
// Called by: worker/data/feed/sample_reader.h, after Dataset::read and, for encoded samples, the
// image decoder. Calls: augment.h, resample.h.
//
// The steps, in this order (common/job/data_spec.h, TransformSpec; docs/sampling.md):
//  1. one of
//     - resize: bilinear, as PyTorch's F.interpolate(mode="bilinear", align_corners=False,
//       antialias=False): output row y looks at s = max(0, (y + 0.5) * in / out - 0.5), i =
//       floor(s), at rows i and min(i + 1, in - 1) with weights 1 - (s - i) and s - i; columns
//       alike. Coordinates and sums in double, the result rounded to float32 once.
//     - resize_shorter: Pillow's smooth bilinear (resample.h); the longer side is shorter * long /
//       short, rounded down.
//     - random_resized_crop: in training a random part (augment.h), brought to its size by the same
//       filter; in tests resize_shorter, then the centre.
//  2. pad: pixels of value 0 (in file units, so before the mean is subtracted) on every side.
//  3. crop: random in training; in tests the centre, top = (height - crop) / 2 rounded down,
//     left alike.
//  4. mirror: left and right exchanged with probability 1/2; training only.
//  5. colours (augment.h); training only.
//  6. (pixel - mean) * (scale / std) in float32, with mean and the quotient rounded to float32
//     first.
//
// Random choices depend only on the data seed and on the sample's position in the run
// (random_choices), so one worker with batch 128 and four with batch 32 see the same pixels.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data_spec.h"
#include "models/net/net.h"
#include "worker/data/batch.h"
#include "worker/data/images/augment.h"
#include "worker/data/images/image.h"
#include "worker/data/images/resample.h"

namespace poseidon {

/// The place of the crop, and whether to mirror.
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

/// The choices for one sample.
struct TransformSteps {
  Region region;  ///< the part of the image that is needed
  /// To what it is resized: region's size when it is not.
  std::int64_t height = 0;
  std::int64_t width = 0;
  TransformChoices cut;
  bool has_colours = false;
  ColourChoices colours;
};

/// A TransformSpec made ready for samples of one shape, or of any. Uses scratch memory of its own:
/// one thread; copy it for others.
class Transform {
 public:
  /// `sample_shape`: {channels, height, width}, height and width 0 for images of any size.
  /// INVALID_ARGUMENT naming the key: a crop larger than the padded image, a number of means that
  /// is neither 1 nor the number of channels, images of any size without a step that brings them to
  /// one size.
  static absl::StatusOr<Transform> make(const TransformSpec& spec, std::uint64_t seed,
                                        const Shape& sample_shape);

  /// {channels, height, width} after all steps.
  const Shape& output_shape() const { return output_shape_; }

  /// The steps for a height x width image at a position of the run. DATA_LOSS,
  /// at every position, for an image so narrow that resizing it would take more than
  /// kMaxImagePixels.
  absl::StatusOr<TransformSteps> choose(std::int64_t height, std::int64_t width,
                                        std::uint64_t position, Phase phase) const;

  /// `image`: steps.region of the sample; `output`: element_count(output_shape()) floats.
  void apply(const ImageView& image, const TransformSteps& steps, std::span<float> output);

 private:
  /// One output coordinate of the resize: two source coordinates and the weight of the second.
  struct Tap {
    std::size_t first = 0;
    std::size_t second = 0;
    double second_weight = 0.0;
  };
  /// The taps for one size in and one size out.
  struct Taps {
    std::int64_t in = 0;
    std::vector<Tap> taps;
    void prepare(std::int64_t size_in, std::int64_t size_out);
  };

  Transform() = default;
  absl::Status check_channels() const;
  absl::Status set_output_shape(const Shape& sample_shape);
  void set_values();
  void resize(const ImageView& image);
  template <typename Pixel>
  void cut(const Pixel* pixels, const ImageView& shape, const TransformSteps& steps,
           std::span<float> output) const;

  TransformSpec spec_;
  std::uint64_t seed_ = 0;
  std::int64_t channels_ = 0;
  std::int64_t shorter_ = 0;  ///< of resize_shorter, or what tests of random_resized_crop use
  Shape output_shape_;
  /// Of these three: a channel's own, or the one of all.
  std::size_t kind_of(std::size_t channel) const { return mean_.size() == 1 ? 0 : channel; }
  std::vector<float> mean_;
  std::vector<float> factor_;  ///< scale / std
  std::vector<float> values_;  ///< results of step 6 for the 256 pixel values

  Taps row_taps_;
  Taps column_taps_;
  std::vector<float> resized_;  ///< scratch: planar, after step 1 as resize
  Resampler resampler_;
  Image resampled_;  ///< scratch: after step 1 otherwise
};

}  // namespace poseidon
