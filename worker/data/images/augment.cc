#include "worker/data/images/augment.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"

namespace poseidon {
namespace {

constexpr int kCropTries = 10;
constexpr float kMaxValue = 255.0f;

/// Uniform in [low, high], by 53 bits of one draw.
double uniform(SplitMix64& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random.next() >> 11) * 0x1p-53);
}

/// To the nearest integer, ties to even, as Python's round.
std::int64_t round_even(double value) { return static_cast<std::int64_t>(std::nearbyint(value)); }

float clamp(float value) { return std::clamp(value, 0.0f, kMaxValue); }

float grey(float red, float green, float blue) {
  return 0.2989f * red + 0.587f * green + 0.114f * blue;
}

struct Planes {
  std::int64_t channels;
  std::size_t size;
  float* values;
  float grey_at(std::size_t i) const {
    return channels == 1 ? values[i] : grey(values[i], values[size + i], values[2 * size + i]);
  }
};

void change_brightness(const Planes& planes, float factor) {
  const std::size_t count = planes.size * static_cast<std::size_t>(planes.channels);
  for (std::size_t i = 0; i < count; ++i) planes.values[i] = clamp(planes.values[i] * factor);
}

void change_contrast(const Planes& planes, double factor) {
  double sum = 0.0;
  for (std::size_t i = 0; i < planes.size; ++i) sum += static_cast<double>(planes.grey_at(i));
  const double mean = sum / static_cast<double>(planes.size);
  const auto added = static_cast<float>((1.0 - factor) * mean);
  const auto factor32 = static_cast<float>(factor);
  const std::size_t count = planes.size * static_cast<std::size_t>(planes.channels);
  for (std::size_t i = 0; i < count; ++i) {
    planes.values[i] = clamp(factor32 * planes.values[i] + added);
  }
}

void change_saturation(const Planes& planes, double factor) {
  if (planes.channels != 3) return;
  const auto kept = static_cast<float>(factor);
  const auto taken = static_cast<float>(1.0 - factor);
  for (std::size_t i = 0; i < planes.size; ++i) {
    const float added = taken * planes.grey_at(i);
    for (std::size_t c = 0; c < 3; ++c) {
      float& value = planes.values[c * planes.size + i];
      value = clamp(kept * value + added);
    }
  }
}

/// Turns one colour around the circle: to hue, saturation and value, and back.
void turn_hue(float turn, float& red, float& green, float& blue) {
  const float high = std::max({red, green, blue});
  const float low = std::min({red, green, blue});
  const float range = high - low;
  if (range == 0.0f) return;  // grey has no hue
  float sixth = 0.0f;         // hue in sixths of the circle
  if (high == red) {
    sixth = (green - blue) / range;
  } else if (high == green) {
    sixth = 2.0f + (blue - red) / range;
  } else {
    sixth = 4.0f + (red - green) / range;
  }
  sixth += 6.0f * turn;
  sixth -= 6.0f * std::floor(sixth / 6.0f);
  const auto part = [&](float offset) {
    float place = sixth + offset;
    if (place >= 6.0f) place -= 6.0f;
    return high - range * std::max(0.0f, std::min({place, 4.0f - place, 1.0f}));
  };
  red = part(5.0f);
  green = part(3.0f);
  blue = part(1.0f);
}

void change_hue(const Planes& planes, float turn) {
  if (planes.channels != 3 || turn == 0.0f) return;
  for (std::size_t i = 0; i < planes.size; ++i) {
    float* red = planes.values + i;
    turn_hue(turn, red[0], red[planes.size], red[2 * planes.size]);
  }
}

/// Principal components of ImageNet's colours (Krizhevsky et al., "ImageNet Classification with
/// Deep Convolutional Neural Networks", 4.1), for values from 0 to 1.
constexpr double kEigenvalues[3] = {0.2175, 0.0188, 0.0045};
constexpr double kEigenvectors[3][3] = {
    {-0.5675, 0.7192, 0.4009}, {-0.5808, -0.0045, -0.8140}, {-0.5836, -0.6948, 0.4203}};

}  // namespace

Region choose_resized_crop(const RandomResizedCropSpec& spec, std::uint64_t seed,
                           std::uint64_t position, std::int64_t height, std::int64_t width) {
  SplitMix64 random(mix_seed(seed ^ kResizedCropStream, position));
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int attempt = 0; attempt < kCropTries; ++attempt) {
    const double wanted = area * uniform(random, spec.scale[0], spec.scale[1]);
    const double ratio =
        std::exp(uniform(random, std::log(spec.ratio[0]), std::log(spec.ratio[1])));
    const std::int64_t w = round_even(std::sqrt(wanted * ratio));
    const std::int64_t h = round_even(std::sqrt(wanted / ratio));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const auto top = random.below(static_cast<std::uint64_t>(height - h + 1));
    const auto left = random.below(static_cast<std::uint64_t>(width - w + 1));
    return {static_cast<std::int64_t>(top), static_cast<std::int64_t>(left), h, w};
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  std::int64_t w = width;
  std::int64_t h = height;
  if (ratio < spec.ratio[0]) {
    h = round_even(static_cast<double>(w) / spec.ratio[0]);
  } else if (ratio > spec.ratio[1]) {
    w = round_even(static_cast<double>(h) * spec.ratio[1]);
  }
  // Rounding may reach nothing, or a pixel too far, in images a few pixels small.
  h = std::clamp<std::int64_t>(h, 1, height);
  w = std::clamp<std::int64_t>(w, 1, width);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

ColourChoices choose_colours(const ColourSpec& spec, std::uint64_t seed, std::uint64_t position) {
  SplitMix64 random(mix_seed(seed ^ kColourStream, position));
  ColourChoices choices;
  for (std::size_t i = choices.order.size() - 1; i >= 1; --i) {
    std::swap(choices.order[i], choices.order[random.below(i + 1)]);
  }
  const auto factor = [&](double strength) {
    return uniform(random, std::max(0.0, 1.0 - strength), 1.0 + strength);
  };
  choices.brightness = factor(spec.brightness);
  choices.contrast = factor(spec.contrast);
  choices.saturation = factor(spec.saturation);
  choices.hue = uniform(random, -spec.hue, spec.hue);
  double shares[3];
  for (int j = 0; j < 3; ++j) shares[j] = spec.lighting * random.normal() * kEigenvalues[j];
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0.0;
    for (int j = 0; j < 3; ++j) sum += kEigenvectors[c][j] * shares[j];
    choices.lighting[c] = static_cast<float>(255.0 * sum);
  }
  return choices;
}

void apply_colours(const ColourChoices& choices, std::int64_t channels, std::span<float> values) {
  POSEIDON_CHECK(channels == 1 || channels == 3, "only grey and RGB have colours");
  const Planes planes{.channels = channels,
                      .size = values.size() / static_cast<std::size_t>(channels),
                      .values = values.data()};
  for (const ColourStep step : choices.order) {
    switch (step) {
      case ColourStep::kBrightness:
        if (choices.brightness != 1.0)
          change_brightness(planes, static_cast<float>(choices.brightness));
        break;
      case ColourStep::kContrast:
        if (choices.contrast != 1.0) change_contrast(planes, choices.contrast);
        break;
      case ColourStep::kSaturation:
        if (choices.saturation != 1.0) change_saturation(planes, choices.saturation);
        break;
      case ColourStep::kHue:
        change_hue(planes, static_cast<float>(choices.hue));
        break;
    }
  }
  if (channels != 3) return;
  for (std::size_t c = 0; c < 3; ++c) {
    if (choices.lighting[c] == 0.0f) continue;
    for (std::size_t i = 0; i < planes.size; ++i) {
      planes.values[c * planes.size + i] += choices.lighting[c];
    }
  }
}

}  // namespace poseidon
