#include "worker/data/images/transform.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "worker/data/images/image_decoder.h"

namespace poseidon {
namespace {

/// ImageNet's habit: 256 for a crop of 224.
std::int64_t default_shorter(const std::vector<std::int64_t>& crop) {
  return (std::max(crop[0], crop[1]) * 256 + 112) / 224;
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

void Transform::Taps::prepare(std::int64_t size_in, std::int64_t size_out) {
  if (in == size_in) return;
  in = size_in;
  taps.resize(static_cast<std::size_t>(size_out));
  const double ratio = static_cast<double>(size_in) / static_cast<double>(size_out);
  const auto last = static_cast<std::size_t>(size_in - 1);
  for (std::size_t i = 0; i < taps.size(); ++i) {
    const double source = std::max(0.0, (static_cast<double>(i) + 0.5) * ratio - 0.5);
    taps[i].first = std::min(static_cast<std::size_t>(source), last);
    taps[i].second = std::min(taps[i].first + 1, last);
    taps[i].second_weight = source - static_cast<double>(taps[i].first);
  }
}

absl::StatusOr<Transform> Transform::make(const TransformSpec& spec, std::uint64_t seed,
                                          const Shape& sample_shape) {
  POSEIDON_CHECK(sample_shape.size() == 3, "a sample has channels, height and width");
  Transform made;
  made.spec_ = spec;
  made.seed_ = seed;
  made.channels_ = sample_shape[0];
  made.shorter_ = spec.resize_shorter;
  if (spec.random_resized_crop && made.shorter_ == 0) {
    made.shorter_ = default_shorter(spec.random_resized_crop->size);
  }
  POSEIDON_RETURN_IF_ERROR(made.set_output_shape(sample_shape));
  POSEIDON_RETURN_IF_ERROR(made.check_channels());
  made.set_values();
  return made;
}

absl::Status Transform::set_output_shape(const Shape& sample_shape) {
  if (spec_.random_resized_crop) {
    const std::vector<std::int64_t>& size = spec_.random_resized_crop->size;
    output_shape_ = {channels_, size[0], size[1]};
    return absl::OkStatus();
  }
  std::int64_t height = sample_shape[1];
  std::int64_t width = sample_shape[2];
  const bool is_any_size = height == 0;
  if (!spec_.resize.empty()) {
    height = spec_.resize[0];
    width = spec_.resize[1];
  } else if (shorter_ != 0) {
    // Of images of any size the shorter side alone is known; it bounds a crop from both sides.
    const std::int64_t shorter = std::min(height, width);
    height = is_any_size ? shorter_ : shorter_ * height / shorter;
    width = is_any_size ? shorter_ : shorter_ * width / shorter;
  }
  if (is_any_size && spec_.resize.empty() && (shorter_ == 0 || spec_.random_crop.empty())) {
    return absl::InvalidArgumentError(
        "data.transform: images may have any size; give all one size by resize, by "
        "resize_shorter with random_crop, or by random_resized_crop");
  }
  height += 2 * spec_.pad;
  width += 2 * spec_.pad;
  output_shape_ = {channels_, height, width};
  if (spec_.random_crop.empty()) return absl::OkStatus();
  output_shape_ = {channels_, spec_.random_crop[0], spec_.random_crop[1]};
  if (spec_.random_crop[0] <= height && spec_.random_crop[1] <= width) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("data.transform.random_crop: [", spec_.random_crop[0], ", ", spec_.random_crop[1],
              "] is larger than the image of [", height, ", ", width,
              "] after resize and pad; lower it, or raise resize or pad"));
}

absl::Status Transform::check_channels() const {
  const auto channels = static_cast<std::size_t>(channels_);
  const auto fits = [&](const std::vector<double>& values) {
    return values.size() <= 1 || values.size() == channels;
  };
  const char* key = !fits(spec_.mean) ? "mean" : !fits(spec_.deviation) ? "std" : nullptr;
  if (key != nullptr) {
    const std::size_t values = fits(spec_.mean) ? spec_.deviation.size() : spec_.mean.size();
    return absl::InvalidArgumentError(str_cat("data.transform.", key, ": has ", values,
                                              " values, the samples have ", channels_,
                                              " channels; give one value or one per channel"));
  }
  const ColourSpec& colour = spec_.colour;
  const bool needs_rgb = colour.saturation != 0 || colour.hue != 0 || colour.lighting != 0;
  if ((colour.is_on() && channels_ != 1 && channels_ != 3) || (needs_rgb && channels_ != 3)) {
    return absl::InvalidArgumentError(
        str_cat("data.transform: samples of ", channels_, " channels have no ",
                needs_rgb ? "saturation, hue or lighting" : "color_jitter", "; remove it"));
  }
  return absl::OkStatus();
}

void Transform::set_values() {
  const std::size_t differing = std::max(spec_.mean.size(), spec_.deviation.size());
  for (std::size_t c = 0; c < std::max<std::size_t>(differing, 1); ++c) {
    const auto of_channel = [c](const std::vector<double>& values, double otherwise) {
      return values.empty() ? otherwise : values[values.size() == 1 ? 0 : c];
    };
    mean_.push_back(static_cast<float>(of_channel(spec_.mean, 0.0)));
    factor_.push_back(static_cast<float>(spec_.scale / of_channel(spec_.deviation, 1.0)));
    for (int pixel = 0; pixel < 256; ++pixel) {
      values_.push_back((static_cast<float>(pixel) - mean_[c]) * factor_[c]);
    }
  }
}

absl::StatusOr<TransformSteps> Transform::choose(std::int64_t height, std::int64_t width,
                                                 std::uint64_t position, Phase phase) const {
  const bool is_training = phase == Phase::kTrain;
  TransformSteps steps;
  steps.region = {.top = 0, .left = 0, .height = height, .width = width};
  if (spec_.random_resized_crop && is_training) {
    steps.region = choose_resized_crop(*spec_.random_resized_crop, seed_, position, height, width);
    steps.height = output_shape_[1];
    steps.width = output_shape_[2];
  } else if (shorter_ != 0) {
    const std::int64_t shorter = std::min(height, width);
    steps.height = shorter_ * height / shorter;
    steps.width = shorter_ * width / shorter;
    if (steps.height * steps.width > kMaxImagePixels) {
      return absl::DataLossError(str_cat("is too narrow: ", height, "x", width,
                                         " pixels with a shorter side of ", shorter_, " would be ",
                                         steps.height, "x", steps.width));
    }
  } else if (!spec_.resize.empty()) {
    steps.height = spec_.resize[0];
    steps.width = spec_.resize[1];
  } else {
    steps.height = height;
    steps.width = width;
  }
  const std::int64_t spare_rows = steps.height + 2 * spec_.pad - output_shape_[1];
  const std::int64_t spare_columns = steps.width + 2 * spec_.pad - output_shape_[2];
  POSEIDON_CHECK(spare_rows >= 0 && spare_columns >= 0, "an image smaller than make was told");
  if (!is_training) {
    steps.cut = {.top = spare_rows / 2, .left = spare_columns / 2, .mirror = false};
    return steps;
  }
  steps.cut = random_choices(seed_, position, spare_rows + 1, spare_columns + 1);
  steps.cut.mirror = steps.cut.mirror && spec_.mirror;
  steps.has_colours = spec_.colour.is_on();
  if (steps.has_colours) steps.colours = choose_colours(spec_.colour, seed_, position);
  return steps;
}

void Transform::resize(const ImageView& image) {
  row_taps_.prepare(image.height, spec_.resize[0]);
  column_taps_.prepare(image.width, spec_.resize[1]);
  resized_.resize(static_cast<std::size_t>(channels_ * spec_.resize[0] * spec_.resize[1]));
  float* out = resized_.data();
  const auto pixel_stride = static_cast<std::size_t>(image.pixel_stride);
  for (std::int64_t c = 0; c < channels_; ++c) {
    const std::uint8_t* plane = image.pixels + c * image.channel_stride;
    for (const Tap& row : row_taps_.taps) {
      const std::uint8_t* upper = plane + static_cast<std::ptrdiff_t>(row.first) * image.row_stride;
      const std::uint8_t* lower =
          plane + static_cast<std::ptrdiff_t>(row.second) * image.row_stride;
      for (const Tap& column : column_taps_.taps) {
        const std::size_t left = column.first * pixel_stride;
        const std::size_t right = column.second * pixel_stride;
        const double b = column.second_weight;
        const double above = (1.0 - b) * upper[left] + b * upper[right];
        const double below = (1.0 - b) * lower[left] + b * lower[right];
        const double a = row.second_weight;
        *out++ = static_cast<float>((1.0 - a) * above + a * below);
      }
    }
  }
}

/// Steps 2 to 4, and 6 at once when there are no colours in between. `shape`: strides of `pixels`.
template <typename Pixel>
void Transform::cut(const Pixel* pixels, const ImageView& shape, const TransformSteps& steps,
                    std::span<float> output) const {
  const std::int64_t rows = output_shape_[1];
  const std::int64_t columns = output_shape_[2];
  const std::int64_t top = steps.cut.top - spec_.pad;
  const std::int64_t left = steps.cut.left - spec_.pad;
  const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, columns);
  const std::int64_t end = std::clamp<std::int64_t>(shape.width - left, begin, columns);
  float* out = output.data();
  for (std::int64_t c = 0; c < channels_; ++c) {
    const auto channel = static_cast<std::size_t>(c);
    const std::size_t kind = kind_of(channel);
    const float* values = values_.data() + 256 * kind;
    const float mean = mean_[kind];
    const float factor = factor_[kind];
    const auto convert = [&](Pixel pixel) {
      if (steps.has_colours) return static_cast<float>(pixel);
      if constexpr (std::is_same_v<Pixel, std::uint8_t>) return values[pixel];
      return (static_cast<float>(pixel) - mean) * factor;
    };
    const float padding = convert(0);
    for (std::int64_t y = 0; y < rows; ++y, out += columns) {
      const std::int64_t row = top + y;
      if (row < 0 || row >= shape.height) {
        std::fill_n(out, columns, padding);
        continue;
      }
      if (begin != 0 || end != columns) std::fill_n(out, columns, padding);
      if (begin == end) continue;
      const Pixel* in = pixels + c * shape.channel_stride + row * shape.row_stride +
                        (left + begin) * shape.pixel_stride;
      float* first = steps.cut.mirror ? out + columns - 1 - begin : out + begin;
      const std::ptrdiff_t step = steps.cut.mirror ? -1 : 1;
      for (std::int64_t x = begin; x < end; ++x, in += shape.pixel_stride, first += step) {
        *first = convert(*in);
      }
    }
  }
}

void Transform::apply(const ImageView& image, const TransformSteps& steps,
                      std::span<float> output) {
  POSEIDON_CHECK(image.channels == channels_ && image.height == steps.region.height &&
                     image.width == steps.region.width,
                 "an image of another shape than chosen for");
  POSEIDON_CHECK(output.size() == static_cast<std::size_t>(element_count(output_shape_)),
                 "output of a wrong size");
  if (!spec_.resize.empty()) {
    resize(image);
    cut(resized_.data(), ImageView::planar(nullptr, channels_, steps.height, steps.width), steps,
        output);
  } else if (steps.height != image.height || steps.width != image.width) {
    resampler_.resize(image, steps.height, steps.width, resampled_);
    cut(resampled_.pixels.data(), resampled_.view(), steps, output);
  } else {
    cut(image.pixels, image, steps, output);
  }
  if (!steps.has_colours) return;
  apply_colours(steps.colours, channels_, output);
  const std::size_t plane = output.size() / static_cast<std::size_t>(channels_);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const std::size_t kind = kind_of(i / plane);
    output[i] = (output[i] - mean_[kind]) * factor_[kind];
  }
}

}  // namespace poseidon
