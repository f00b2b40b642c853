#include "worker/data/transform.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/random.h"
#include "common/text.h"

namespace poseidon {
namespace {

// Written here rather than taken from net.cc: the data library needs nothing of the engine but
// headers.
std::size_t count_of(const Shape& shape) {
  std::size_t count = 1;
  for (const std::int64_t dimension : shape) count *= static_cast<std::size_t>(dimension);
  return count;
}

}  // namespace

TransformChoices random_choices(std::uint64_t seed, std::uint64_t position,
                                std::int64_t top_choices, std::int64_t left_choices) {
  SplitMix64 random(mix_seed(seed ^ kTransformStream, position));
  TransformChoices choices;
  choices.top = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(top_choices)));
  choices.left = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(left_choices)));
  choices.mirror = (random.next() >> 63) != 0;
  return choices;
}

std::vector<Transform::Tap> Transform::make_taps(std::int64_t in, std::int64_t out) {
  std::vector<Tap> taps(static_cast<std::size_t>(out));
  const double ratio = static_cast<double>(in) / static_cast<double>(out);
  const auto last = static_cast<std::size_t>(in - 1);
  for (std::size_t i = 0; i < taps.size(); ++i) {
    const double source = std::max(0.0, (static_cast<double>(i) + 0.5) * ratio - 0.5);
    taps[i].first = std::min(static_cast<std::size_t>(source), last);
    taps[i].second = std::min(taps[i].first + 1, last);
    taps[i].second_weight = source - static_cast<double>(taps[i].first);
  }
  return taps;
}

absl::StatusOr<Transform> Transform::make(const TransformSpec& spec, std::uint64_t seed,
                                          const Shape& sample_shape) {
  POSEIDON_CHECK(sample_shape.size() == 3, "a sample has channels, height and width");
  const std::int64_t channels = sample_shape[0];
  Transform made;
  made.seed_ = seed;
  made.mirror_ = spec.mirror;
  made.pad_ = spec.pad;
  made.scale_ = static_cast<float>(spec.scale);
  made.input_shape_ = sample_shape;
  made.resized_shape_ = sample_shape;
  if (!spec.resize.empty()) {
    made.resized_shape_ = {channels, spec.resize[0], spec.resize[1]};
    made.row_taps_ = make_taps(sample_shape[1], spec.resize[0]);
    made.column_taps_ = make_taps(sample_shape[2], spec.resize[1]);
    made.resized_.resize(count_of(made.resized_shape_));
  }
  const std::int64_t height = made.resized_shape_[1] + 2 * spec.pad;
  const std::int64_t width = made.resized_shape_[2] + 2 * spec.pad;
  made.output_shape_ = {channels, height, width};
  if (!spec.random_crop.empty()) {
    made.output_shape_ = {channels, spec.random_crop[0], spec.random_crop[1]};
    if (spec.random_crop[0] > height || spec.random_crop[1] > width) {
      return absl::InvalidArgumentError(
          str_cat("data.transform.random_crop: [", spec.random_crop[0], ", ", spec.random_crop[1],
                  "] is larger than the image of [", height, ", ", width,
                  "] after resize and pad; lower it, or raise resize or pad"));
    }
  }
  if (spec.mean.size() > 1 && spec.mean.size() != static_cast<std::size_t>(channels)) {
    return absl::InvalidArgumentError(str_cat("data.transform.mean: has ", spec.mean.size(),
                                              " values, the samples have ", channels,
                                              " channels; give one value or one per channel"));
  }
  made.mean_.assign(static_cast<std::size_t>(channels), 0.0f);
  for (std::size_t i = 0; i < made.mean_.size() && !spec.mean.empty(); ++i) {
    made.mean_[i] = static_cast<float>(spec.mean[spec.mean.size() == 1 ? 0 : i]);
  }
  return made;
}

void Transform::resize(std::span<const std::uint8_t> pixels) {
  const auto channels = static_cast<std::size_t>(input_shape_[0]);
  const auto height = static_cast<std::size_t>(input_shape_[1]);
  const auto width = static_cast<std::size_t>(input_shape_[2]);
  float* out = resized_.data();
  for (std::size_t c = 0; c < channels; ++c) {
    const std::uint8_t* plane = pixels.data() + c * height * width;
    for (const Tap& row : row_taps_) {
      const std::uint8_t* upper = plane + row.first * width;
      const std::uint8_t* lower = plane + row.second * width;
      for (const Tap& column : column_taps_) {
        const double b = column.second_weight;
        const double above = (1.0 - b) * upper[column.first] + b * upper[column.second];
        const double below = (1.0 - b) * lower[column.first] + b * lower[column.second];
        const double a = row.second_weight;
        *out++ = static_cast<float>((1.0 - a) * above + a * below);
      }
    }
  }
}

TransformChoices Transform::choose(std::uint64_t position, Phase phase) const {
  const std::int64_t spare_rows = resized_shape_[1] + 2 * pad_ - output_shape_[1];
  const std::int64_t spare_columns = resized_shape_[2] + 2 * pad_ - output_shape_[2];
  if (phase == Phase::kTest) {
    return {.top = spare_rows / 2, .left = spare_columns / 2, .mirror = false};
  }
  TransformChoices choices = random_choices(seed_, position, spare_rows + 1, spare_columns + 1);
  choices.mirror = choices.mirror && mirror_;
  return choices;
}

namespace {

/// Pad, crop, mirror, mean and scale of one channel; Pixel is what the image holds before (uint8 or
/// float).
template <typename Pixel>
struct PlaneCut {
  const Pixel* plane;
  std::int64_t height, width;  ///< of `plane`
  std::int64_t top, left;      ///< of the cut, in pixels of `plane`; negative inside the padding
  std::int64_t out_height, out_width;  ///< of the cut
  bool mirror;
  float mean, scale;

  float* write(float* out) const {
    const float padding = (0.0f - mean) * scale;
    for (std::int64_t y = 0; y < out_height; ++y, out += out_width) {
      std::fill_n(out, out_width, padding);
      const std::int64_t row = top + y;
      if (row < 0 || row >= height) continue;
      const Pixel* pixels = plane + row * width;
      const std::int64_t begin = std::max<std::int64_t>(0, -left);
      const std::int64_t end = std::min(out_width, width - left);
      for (std::int64_t x = begin; x < end; ++x) {
        out[mirror ? out_width - 1 - x : x] = (static_cast<float>(pixels[left + x]) - mean) * scale;
      }
    }
    return out;
  }
};

}  // namespace

void Transform::apply(std::span<const std::uint8_t> pixels, std::uint64_t position, Phase phase,
                      std::span<float> output) {
  POSEIDON_CHECK(pixels.size() == count_of(input_shape_), "sample of another shape than made for");
  POSEIDON_CHECK(output.size() == count_of(output_shape_), "output of a wrong size");
  const TransformChoices choices = choose(position, phase);
  const std::int64_t height = resized_shape_[1];
  const std::int64_t width = resized_shape_[2];
  if (!row_taps_.empty()) resize(pixels);
  float* out = output.data();
  const auto cut = [&](const auto* image) {
    for (std::size_t c = 0; c < mean_.size(); ++c, image += height * width) {
      out = PlaneCut<std::decay_t<decltype(*image)>>{.plane = image,
                                                     .height = height,
                                                     .width = width,
                                                     .top = choices.top - pad_,
                                                     .left = choices.left - pad_,
                                                     .out_height = output_shape_[1],
                                                     .out_width = output_shape_[2],
                                                     .mirror = choices.mirror,
                                                     .mean = mean_[c],
                                                     .scale = scale_}
                .write(out);
    }
  };
  if (row_taps_.empty()) {
    cut(pixels.data());
  } else {
    cut(resized_.data());
  }
}

}  // namespace poseidon
