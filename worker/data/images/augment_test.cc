#include "worker/data/images/augment.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/golden_images.h"

namespace poseidon::augment_test {
namespace {

TEST(Augment, CropsArePublished) {
  // tests/data/sampling.py: resized_crop(seed, position, height, width)
  const struct {
    std::uint64_t seed, position;
    std::int64_t height, width;
    Region region;
  } cases[] = {
      {1u, 0, 375, 500, {16, 200, 265, 214}},
      {1u, 1, 375, 500, {19, 71, 356, 414}},
      {1u, 2, 375, 500, {16, 310, 226, 187}},
      {7u, 1000000, 500, 333, {70, 8, 374, 315}},
      {7u, 12, 32, 32, {5, 12, 19, 20}},
      {2u, 5, 1, 9, {0, 1, 1, 2}},
      {2u, 6, 3, 3, {1, 0, 2, 2}},
      {18446744073709551615u, 3, 4000, 6000, {357, 40, 3411, 3319}},
  };
  RandomResizedCropSpec spec;
  for (const auto& test : cases) {
    const Region region =
        choose_resized_crop(spec, test.seed, test.position, test.height, test.width);
    EXPECT_EQ(region, test.region)
        << test.seed << ", " << test.position << ", " << test.height << "x" << test.width << ": "
        << region.top << " " << region.left << " " << region.height << " " << region.width;
  }
}

TEST(Augment, CropsStayInsideAndCoverTheirRange) {
  RandomResizedCropSpec spec;
  std::int64_t tiny = 0, large = 0, wide = 0, tall = 0;
  for (std::uint64_t position = 0; position < 2000; ++position) {
    const std::int64_t height = 1 + static_cast<std::int64_t>(position % 400);
    const std::int64_t width = 1 + static_cast<std::int64_t>(position * 7 % 500);
    const Region any = choose_resized_crop(spec, 3, position, height, width);
    ASSERT_GE(any.top, 0);
    ASSERT_GE(any.left, 0);
    ASSERT_GE(any.height, 1);
    ASSERT_GE(any.width, 1);
    ASSERT_LE(any.top + any.height, height);
    ASSERT_LE(any.left + any.width, width);
    const Region region = choose_resized_crop(spec, 3, position, 300, 300);
    const double share = static_cast<double>(region.height * region.width) / 90000.0;
    ASSERT_GT(share, 0.078);
    tiny += share < 0.2 ? 1 : 0;
    large += share > 0.8 ? 1 : 0;
    wide += region.width > region.height ? 1 : 0;
    tall += region.width < region.height ? 1 : 0;
  }
  EXPECT_GT(tiny, 150);
  EXPECT_GT(large, 150);
  EXPECT_GT(wide, 700);
  EXPECT_GT(tall, 700);
}

TEST(Augment, ExtremeImagesGetTheirLargestAllowedPart) {
  RandomResizedCropSpec spec;
  spec.scale = {1.0, 1.0};  // never fits a strip: the fallback
  EXPECT_EQ(choose_resized_crop(spec, 1, 0, 300, 30), (Region{130, 0, 40, 30}));
  EXPECT_EQ(choose_resized_crop(spec, 1, 0, 30, 300), (Region{0, 130, 30, 40}));
  EXPECT_EQ(choose_resized_crop(spec, 1, 0, 1, 32768).height, 1);
}

TEST(Augment, ColoursAsTorchvision) {
  const auto& golden = golden_images().at("colours");
  const std::vector<std::uint8_t> planes = from_base64(golden.at("planes"));
  for (const auto& test : golden.at("cases")) {
    ColourChoices choices;
    std::vector<ColourStep> order;
    for (const std::string step : test.at("steps")) {
      const double factor = test.at("factors").at(step);
      if (step == "brightness") {
        order.push_back(ColourStep::kBrightness);
        choices.brightness = factor;
      } else if (step == "contrast") {
        order.push_back(ColourStep::kContrast);
        choices.contrast = factor;
      } else if (step == "saturation") {
        order.push_back(ColourStep::kSaturation);
        choices.saturation = factor;
      } else {
        order.push_back(ColourStep::kHue);
        choices.hue = factor;
      }
    }
    // What is not asked for changes nothing, wherever it stands.
    for (const ColourStep step : ColourChoices().order) {
      if (std::find(order.begin(), order.end(), step) == order.end()) order.push_back(step);
    }
    std::copy(order.begin(), order.end(), choices.order.begin());
    std::vector<float> values(planes.begin(), planes.end());
    apply_colours(choices, 3, values);
    const auto expected = test.at("values").get<std::vector<double>>();
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      // Four steps of at most a dozen float32 roundings each, of values up to 6 * 255 (hue in
      // sixths of the circle, times the range of a colour).
      EXPECT_NEAR(values[i], expected[i], 48 * 6 * 255 * 0x1p-24)
          << test.at("steps") << " at " << i;
    }
  }
}

TEST(Augment, ColoursDependOnSeedAndPositionAlone) {
  ColourSpec spec;
  spec.brightness = spec.contrast = spec.saturation = 0.4;
  spec.hue = 0.1;
  const ColourChoices first = choose_colours(spec, 1, 5);
  spec.hue = 0.0;
  spec.lighting = 0.1;
  const ColourChoices other = choose_colours(spec, 1, 5);
  EXPECT_EQ(first.order, other.order);
  EXPECT_EQ(first.brightness, other.brightness) << "switching one on does not move the others";
  EXPECT_EQ(first.contrast, other.contrast);
  EXPECT_EQ(first.saturation, other.saturation);
  EXPECT_NE(first.hue, 0.0);
  EXPECT_EQ(other.hue, 0.0);
  EXPECT_EQ(first.lighting, (std::array<float, 3>{0, 0, 0}));
  EXPECT_NE(other.lighting[0], 0.0f);
  EXPECT_NE(choose_colours(spec, 1, 6).brightness, first.brightness);
  EXPECT_NE(choose_colours(spec, 2, 5).brightness, first.brightness);
  // tests/data/sampling.py: colour_choices(1, 5, 0.4, 0.4, 0.4, 0.1)
  EXPECT_EQ(first.order,
            (std::array<ColourStep, 4>{ColourStep::kHue, ColourStep::kContrast,
                                       ColourStep::kSaturation, ColourStep::kBrightness}));
  EXPECT_DOUBLE_EQ(first.brightness, 0.9377766155358468);
  EXPECT_DOUBLE_EQ(first.contrast, 1.3422476224659827);
  EXPECT_DOUBLE_EQ(first.saturation, 1.1822048577738506);
  EXPECT_DOUBLE_EQ(first.hue, 0.003566155226634976);
}

}  // namespace
}  // namespace poseidon::augment_test
