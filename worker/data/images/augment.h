#pragma once

// ImageNet's random augmentation of a training image: crop and colours. It depends only on the
// job's data seed and the sample's position in the run. Pure. docs/sampling.md has the draws in
// words and in Python.
//
// Called by: transform.h. Calls: common/base/random.h.

#include <array>
#include <cstdint>
#include <span>

#include "common/job/job.h"
#include "worker/data/images/image.h"

namespace poseidon {

/// "resizecr" and "colourji" in ASCII: each kind of draw has a stream of its own, so that switching
/// one on does not move the others.
inline constexpr std::uint64_t kResizedCropStream = 0x726573697A656372ull;
inline constexpr std::uint64_t kColourStream = 0x636F6C6F75726A69ull;

/// The part of a height x width image that a random resized crop takes, by torchvision's rule
/// (RandomResizedCrop.get_params): up to ten tries of an area and a ratio of width to height, else
/// the largest centred part of an allowed ratio.
Region choose_resized_crop(const RandomResizedCropSpec& spec, std::uint64_t seed,
                           std::uint64_t position, std::int64_t height, std::int64_t width);

enum class ColourStep : std::uint8_t { kBrightness, kContrast, kSaturation, kHue };

struct ColourChoices {
  std::array<ColourStep, 4> order = {ColourStep::kBrightness, ColourStep::kContrast,
                                     ColourStep::kSaturation, ColourStep::kHue};
  double brightness = 1.0;
  double contrast = 1.0;
  double saturation = 1.0;
  double hue = 0.0;                           ///< in turns of the colour circle
  std::array<float, 3> lighting = {0, 0, 0};  ///< added to red, green and blue, of 0 to 255
};
ColourChoices choose_colours(const ColourSpec& spec, std::uint64_t seed, std::uint64_t position);

/// Changes `planes`, 1 (grey) or 3 (red, green, blue) planes of equal size one after the other with
/// values from 0 to 255, by torchvision's formulas for float tensors; then adds the lighting. Each
/// step but the last clamps to 0 to 255. With one plane only brightness and contrast change
/// anything.
void apply_colours(const ColourChoices& choices, std::int64_t channels, std::span<float> planes);

}  // namespace poseidon
