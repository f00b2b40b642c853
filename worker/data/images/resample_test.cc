#include "worker/data/images/resample.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/support/golden_images.h"

namespace poseidon::resample_test {
namespace {

TEST(Resampler, GivesPillowsBytes) {
  Resampler resampler;
  Image out;
  for (const auto& golden : golden_images().at("resample")) {
    const std::int64_t channels = golden.at("channels");
    const std::int64_t height = golden.at("from")[0];
    const std::int64_t width = golden.at("from")[1];
    const std::vector<std::uint8_t> pixels = from_base64(golden.at("pixels"));
    const std::vector<std::uint8_t> expected = from_base64(golden.at("resized"));
    resampler.resize(ImageView::interleaved(pixels.data(), channels, height, width),
                     golden.at("to")[0], golden.at("to")[1], out);
    ASSERT_LE(expected.size(), out.pixels.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.pixels.begin()))
        << golden.at("from") << " to " << golden.at("to");
    // The same values in another layout, and as one of many channels.
    std::vector<std::uint8_t> planar(pixels.size());
    const auto plane = static_cast<std::size_t>(height * width);
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      const auto c = static_cast<std::size_t>(channels);
      planar[i % c * plane + i / c] = pixels[i];
    }
    resampler.resize(ImageView::planar(planar.data(), channels, height, width), golden.at("to")[0],
                     golden.at("to")[1], out);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.pixels.begin())) << "planar";
  }
}

TEST(Resampler, AnyNumberOfChannels) {
  // Five channels, each the same picture: each must come out as that picture alone.
  std::vector<std::uint8_t> one(12 * 17), five(5 * 12 * 17);
  for (std::size_t i = 0; i < one.size(); ++i) {
    one[i] = static_cast<std::uint8_t>(i * 37);
    for (std::size_t c = 0; c < 5; ++c) five[5 * i + c] = one[i];
  }
  Resampler resampler;
  Image single, many;
  resampler.resize(ImageView::interleaved(one.data(), 1, 12, 17), 5, 7, single);
  resampler.resize(ImageView::interleaved(five.data(), 5, 12, 17), 5, 7, many);
  for (std::size_t i = 0; i < 35; ++i) {
    for (std::size_t c = 0; c < 5; ++c) ASSERT_EQ(many.pixels[5 * i + c], single.pixels[i]);
  }
}

}  // namespace
}  // namespace poseidon::resample_test
