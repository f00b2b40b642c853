// JPEG and PNG: header, then the whole image or a part of it, grey or in colour; or all the way to
// the network's input, as samples of a set. The first byte chooses.

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "tests/fuzz/input.h"
#include "worker/data/feed/sample_reader.h"
#include "worker/data/formats/dataset.h"
#include "worker/data/images/image.h"
#include "worker/data/images/image_decoder.h"

namespace poseidon::fuzz {
namespace {

/// Larger ones are within our bounds, but would make this slow instead of thorough.
constexpr std::int64_t kMaxPixels = 1 << 16;

/// A set of one image.
class OneImage final : public Dataset {
 public:
  explicit OneImage(const std::vector<std::uint8_t>* file) : file_(file) {}
  std::int64_t size() const override { return 1; }
  const Shape& sample_shape() const override { return shape_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  absl::Status read(std::int64_t /*index*/, EncodedSample& sample) const override {
    sample.encoding = Encoding::kImage;
    sample.bytes = *file_;
    return absl::OkStatus();
  }
  std::string sample_name(std::int64_t /*index*/) const override { return name_; }
  const std::string& name() const override { return name_; }

 private:
  const std::vector<std::uint8_t>* const file_;
  const Shape shape_ = {0, 0, 0};
  const std::vector<std::string> class_names_;
  const std::string name_ = "image";
};

/// ImageNet's way, a plain one, and one that pads.
TransformSpec transform_spec(int which, bool in_colour) {
  TransformSpec spec;
  spec.mean = {120.0};
  spec.deviation = {60.0};
  if (which == 0) {
    spec.random_resized_crop = RandomResizedCropSpec{.size = {12, 16}};
    spec.resize_shorter = 20;
    spec.mirror = true;
    spec.colour = {.brightness = 0.4, .contrast = 0.4};
    if (in_colour) spec.colour.saturation = spec.colour.hue = spec.colour.lighting = 0.1;
  } else if (which == 1) {
    spec.resize_shorter = 16;
    spec.random_crop = {16, 12};
  } else {
    spec.resize = {9, 7};
    spec.pad = 2;
    spec.random_crop = {11, 11};
    spec.mirror = true;
  }
  return spec;
}

void read_as_sample(const std::vector<std::uint8_t>& file, std::uint8_t how) {
  const bool in_colour = how % 2 == 0;
  const Shape shape = {in_colour ? 3 : 1, 0, 0};
  auto transform = Transform::make(transform_spec(how / 8 % 3, in_colour), /*seed=*/1, shape);
  POSEIDON_CHECK(transform.ok(), "these fit images of any size");
  const auto set = std::make_shared<OneImage>(&file);
  const auto corrupt = std::make_shared<CorruptSamples>(set, /*max_share=*/0.0, nullptr, nullptr);
  SampleReader reader(set, *transform, corrupt);
  const Shape& to = transform->output_shape();
  std::vector<float> output(static_cast<std::size_t>(to[0] * to[1] * to[2]));
  std::int32_t label = 0;
  const absl::Status status =
      reader.read(0, /*position=*/how, how % 4 >= 2 ? Phase::kTrain : Phase::kTest, output, label);
  POSEIDON_CHECK(status.ok() || status.code() == absl::StatusCode::kDataLoss,
                 "unreadable, at worst");
  // Colours may leave 0 to 255 in the last step, by little.
  POSEIDON_CHECK(!status.ok() || std::all_of(output.begin(), output.end(),
                                             [](float value) { return std::abs(value) < 10.0F; }),
                 "pixels, less their mean, by their deviation");
}

void decode(const std::vector<std::uint8_t>& file, std::uint8_t how) {
  static ImageDecoder decoder;  // as in use: one image after the other
  const auto opened = decoder.open(file);
  if (!opened.ok()) {
    POSEIDON_CHECK(opened.status().code() == absl::StatusCode::kDataLoss, "as the header says");
    return;
  }
  if (opened->height * opened->width > kMaxPixels) return;
  if (how % 8 >= 4) {
    read_as_sample(file, how);
    return;
  }
  Region region{.top = 0, .left = 0, .height = opened->height, .width = opened->width};
  if (how % 4 >= 2) {
    region = {.top = opened->height / 3,
              .left = opened->width / 3,
              .height = (opened->height + 2) / 3,
              .width = (opened->width + 2) / 3};
  }
  Image image;
  const absl::Status decoded = decoder.decode(region, how % 2 == 0 ? 3 : 1, image);
  POSEIDON_CHECK(decoded.ok() || decoded.code() == absl::StatusCode::kDataLoss,
                 "as the header says");
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  poseidon::fuzz::Input input(data, size);
  const std::uint8_t how = input.byte();
  const std::vector<std::uint8_t> file(input.rest().begin(), input.rest().end());
  poseidon::fuzz::decode(file, how);
  return 0;
}
