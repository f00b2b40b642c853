#include "worker/data/images/transform.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::transform_test {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

/// Applies `spec` to `pixels` and returns the values.
std::vector<float> apply(const TransformSpec& spec, const Shape& shape,
                         const std::vector<std::uint8_t>& pixels, std::uint64_t position = 0,
                         Phase phase = Phase::kTrain, std::uint64_t seed = 1) {
  absl::StatusOr<Transform> transform = Transform::make(spec, seed, shape);
  EXPECT_TRUE(transform.ok()) << transform.status();
  const Shape& out = transform->output_shape();
  // Poisoned: every value must be written.
  std::vector<float> values(static_cast<std::size_t>(out[0] * out[1] * out[2]), std::nanf(""));
  const absl::StatusOr<TransformSteps> steps =
      transform->choose(shape[1], shape[2], position, phase);
  EXPECT_TRUE(steps.ok()) << steps.status();
  const ImageView image = ImageView::planar(pixels.data(), shape[0], shape[1], shape[2]);
  transform->apply(image.part(steps->region), *steps, values);
  return values;
}

TEST(Transform, WithoutStepsCopies) {
  EXPECT_THAT(apply({}, {1, 2, 2}, {0, 1, 128, 255}), ElementsAre(0.0f, 1.0f, 128.0f, 255.0f));
}

TEST(Transform, ResizesLikePyTorch) {
  std::ifstream file("tests/golden/transform/resize.json");
  const Json golden = Json::parse(file);
  ASSERT_EQ(golden.at("cases").size(), 7u);
  for (const Json& test : golden.at("cases")) {
    TransformSpec spec;
    spec.resize = test.at("size").get<std::vector<std::int64_t>>();
    const std::vector<float> values = apply(spec, test.at("shape").get<Shape>(),
                                            test.at("pixels").get<std::vector<std::uint8_t>>());
    const auto expected = test.at("resized").get<std::vector<double>>();
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      // One rounding to float32 (half a unit in the last place of values up to 255) and the nine
      // digits kept.
      EXPECT_NEAR(values[i], expected[i], 255.0 * 0x1p-24 + 1e-8)
          << test.at("shape") << " at " << i;
    }
  }
}

TEST(Transform, MeanComesBeforeScale) {
  TransformSpec spec;
  spec.mean = {10, 20};
  spec.scale = 0.5;
  EXPECT_THAT(apply(spec, {2, 1, 2}, {10, 12, 20, 30}), ElementsAre(0.0f, 1.0f, 0.0f, 5.0f));
  spec.mean = {10};
  EXPECT_THAT(apply(spec, {2, 1, 2}, {10, 12, 20, 30}), ElementsAre(0.0f, 1.0f, 5.0f, 10.0f));
}

TEST(Transform, TestsCutTheCentreAndNeverMirror) {
  TransformSpec spec;
  spec.random_crop = {1, 2};
  spec.mirror = true;
  const std::vector<std::uint8_t> pixels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (std::uint64_t position = 0; position < 20; ++position) {
    // rows (4 - 1) / 2 = 1, columns (4 - 2) / 2 = 1
    EXPECT_THAT(apply(spec, {1, 4, 4}, pixels, position, Phase::kTest), ElementsAre(5.0f, 6.0f));
  }
}

TEST(Transform, PadsWithZeroPixelsBeforeTheMean) {
  TransformSpec spec;
  spec.pad = 1;
  spec.mean = {2};
  spec.scale = 3;
  EXPECT_THAT(apply(spec, {1, 1, 1}, {5}),
              ElementsAre(-6.0f, -6.0f, -6.0f, -6.0f, 9.0f, -6.0f, -6.0f, -6.0f, -6.0f));
  spec.random_crop = {1, 1};
  EXPECT_THAT(apply(spec, {1, 1, 1}, {5}, 0, Phase::kTest), ElementsAre(9.0f));
}

/// A cut done the slow way, pixel by pixel from the definition.
std::vector<float> reference_cut(const std::vector<std::uint8_t>& pixels, std::int64_t height,
                                 std::int64_t width, std::int64_t pad, std::int64_t crop_height,
                                 std::int64_t crop_width, const TransformChoices& choices) {
  std::vector<float> out;
  for (std::int64_t y = 0; y < crop_height; ++y) {
    for (std::int64_t x = 0; x < crop_width; ++x) {
      const std::int64_t column = choices.mirror ? crop_width - 1 - x : x;
      const std::int64_t row_in = choices.top + y - pad;
      const std::int64_t column_in = choices.left + column - pad;
      const bool inside = row_in >= 0 && row_in < height && column_in >= 0 && column_in < width;
      out.push_back(inside ? pixels[static_cast<std::size_t>(row_in * width + column_in)] : 0.0f);
    }
  }
  return out;
}

TEST(Transform, RandomCutsAreTheDocumentedOnes) {
  std::vector<std::uint8_t> pixels(5 * 7);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{1});
  TransformSpec spec;
  spec.pad = 3;
  spec.mirror = true;
  for (const auto& [crop_height, crop_width] :
       {std::pair<std::int64_t, std::int64_t>{4, 5}, {1, 1}, {11, 13}, {2, 12}}) {
    spec.random_crop = {crop_height, crop_width};
    std::set<std::pair<std::int64_t, std::int64_t>> corners;
    int mirrored = 0;
    for (std::uint64_t position = 0; position < 200; ++position) {
      const TransformChoices choices =
          random_choices(7, position, 5 + 6 - crop_height + 1, 7 + 6 - crop_width + 1);
      EXPECT_EQ(apply(spec, {1, 5, 7}, pixels, position, Phase::kTrain, 7),
                reference_cut(pixels, 5, 7, 3, crop_height, crop_width, choices));
      corners.insert({choices.top, choices.left});
      mirrored += choices.mirror ? 1 : 0;
    }
    EXPECT_GT(corners.size(), static_cast<std::size_t>((12 - crop_height) * (14 - crop_width)) / 2);
    EXPECT_NEAR(mirrored, 100, 35);  // five standard deviations
  }
}

TEST(Transform, ChoicesAreThePublishedOnes) {
  // tests/data/sampling.py: transform_choices(1, position, 9, 9)
  const std::vector<std::pair<std::uint64_t, std::pair<int, int>>> expected = {
      {0, {6, 1}}, {1, {7, 1}}, {2, {1, 8}}, {1'000'000, {3, 2}}};
  for (const auto& [position, corner] : expected) {
    const TransformChoices choices = random_choices(1, position, 9, 9);
    EXPECT_EQ(choices.top, corner.first);
    EXPECT_EQ(choices.left, corner.second);
    EXPECT_FALSE(choices.mirror);
  }
}

TEST(Transform, MirrorDoesNotMoveTheCrop) {
  std::vector<std::uint8_t> pixels(64);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
  TransformSpec spec;
  spec.random_crop = {4, 4};
  TransformSpec with_mirror = spec;
  with_mirror.mirror = true;
  for (std::uint64_t position = 0; position < 50; ++position) {
    std::vector<float> plain = apply(spec, {1, 8, 8}, pixels, position);
    std::vector<float> other = apply(with_mirror, {1, 8, 8}, pixels, position);
    std::sort(plain.begin(), plain.end());
    std::sort(other.begin(), other.end());
    EXPECT_EQ(plain, other);
  }
}

TEST(Transform, RefusesWhatDoesNotFitTheSamples) {
  const auto error = [](const TransformSpec& spec) {
    return std::string(Transform::make(spec, 1, {3, 8, 8}).status().message());
  };
  TransformSpec crop;
  crop.pad = 1;
  crop.random_crop = {10, 11};
  EXPECT_EQ(error(crop),
            "data.transform.random_crop: [10, 11] is larger than the image of [10, 10] after "
            "resize and pad; lower "
            "it, or raise resize or pad");
  TransformSpec colour;
  colour.colour.hue = 0.1;
  EXPECT_THAT(std::string(Transform::make(colour, 1, {1, 8, 8}).status().message()),
              ::testing::HasSubstr("samples of 1 channels have no saturation, hue or lighting"));
  TransformSpec mean;
  mean.mean = {1, 2};
  EXPECT_EQ(error(mean),
            "data.transform.mean: has 2 values, the samples have 3 channels; give one value or one "
            "per channel");
}

TEST(Transform, StdDividesBeforeRounding) {
  TransformSpec spec;
  spec.mean = {10};
  spec.scale = 0.5;
  spec.deviation = {2, 4};
  EXPECT_THAT(apply(spec, {2, 1, 2}, {10, 12, 20, 30}), ElementsAre(0.0f, 0.5f, 1.25f, 2.5f));
}

/// A pipeline of photographs in tests: shorter side, then the centre, by hand.
TEST(Transform, TestsOfResizedCropsCutTheCentreOfTheShorterSide) {
  TransformSpec spec;
  spec.random_resized_crop.emplace().size = {4, 6};
  spec.resize_shorter = 8;
  spec.mirror = true;
  spec.colour.brightness = 1.0;
  std::vector<std::uint8_t> pixels(20 * 30);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7);
  const std::vector<float> values = apply(spec, {1, 20, 30}, pixels, 3, Phase::kTest);
  Resampler resampler;
  Image small;
  resampler.resize(ImageView::interleaved(pixels.data(), 1, 20, 30), 8, 12, small);
  std::vector<float> expected;
  for (std::size_t y = 2; y < 6; ++y) {
    for (std::size_t x = 3; x < 9; ++x) expected.push_back(small.pixels[12 * y + x]);
  }
  EXPECT_EQ(values, expected);
}

TEST(Transform, ResizedCropsAreThoseOfAugment) {
  TransformSpec spec;
  spec.random_resized_crop.emplace().size = {5, 5};
  spec.mirror = true;
  std::vector<std::uint8_t> pixels(3 * 20 * 30);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 11);
  const ImageView image = ImageView::planar(pixels.data(), 3, 20, 30);
  Resampler resampler;
  Image small;
  for (std::uint64_t position = 0; position < 50; ++position) {
    const Region region = choose_resized_crop(*spec.random_resized_crop, 9, position, 20, 30);
    resampler.resize(image.part(region), 5, 5, small);
    const bool mirror = random_choices(9, position, 1, 1).mirror;
    std::vector<float> expected;
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t y = 0; y < 5; ++y) {
        for (std::size_t x = 0; x < 5; ++x) {
          const std::size_t column = mirror ? 4 - x : x;
          expected.push_back(small.pixels[3 * (5 * y + column) + c]);
        }
      }
    }
    EXPECT_EQ(apply(spec, {3, 20, 30}, pixels, position, Phase::kTrain, 9), expected);
  }
}

TEST(Transform, ImagesOfAnySizeNeedOne) {
  const auto make = [](const TransformSpec& spec) { return Transform::make(spec, 1, {3, 0, 0}); };
  TransformSpec spec;
  EXPECT_THAT(std::string(make(spec).status().message()), ::testing::HasSubstr("any size"));
  spec.resize_shorter = 8;
  EXPECT_FALSE(make(spec).ok()) << "the longer side is still open";
  spec.random_crop = {8, 9};
  EXPECT_FALSE(make(spec).ok()) << "a square has no nine columns";
  spec.random_crop = {8, 8};
  auto transform = make(spec);
  ASSERT_TRUE(transform.ok()) << transform.status();
  EXPECT_EQ(transform->output_shape(), (Shape{3, 8, 8}));
  EXPECT_EQ(transform->choose(1, 32768, 0, Phase::kTest)->width, 8 * 32768);
  spec.resize_shorter = 64;
  EXPECT_TRUE(absl::IsDataLoss(make(spec)->choose(1, 32768, 0, Phase::kTest).status()))
      << "a strip would become 64 x 2097152";
}

}  // namespace
}  // namespace poseidon::transform_test
