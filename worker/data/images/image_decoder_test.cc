#include "worker/data/images/image_decoder.h"

#include <cstdio>  // jpeglib.h needs it before
#include <cstdlib>

#include <jpeglib.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/golden_images.h"

namespace poseidon::image_decoder_test {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

/// The part of an interleaved image.
Bytes part_of(const Bytes& pixels, std::int64_t width, std::int64_t channels,
              const Region& region) {
  Bytes part;
  for (std::int64_t y = region.top; y < region.top + region.height; ++y) {
    const auto begin = pixels.begin() + (y * width + region.left) * channels;
    part.insert(part.end(), begin, begin + region.width * channels);
  }
  return part;
}

Bytes pixels_of(const Image& image) {
  return {image.pixels.begin(), image.pixels.begin() + image.channels * image.height * image.width};
}

std::string error_of(const Bytes& file) {
  ImageDecoder decoder;
  const auto size = decoder.open(file);
  if (!size.ok()) {
    EXPECT_EQ(size.status().code(), absl::StatusCode::kDataLoss);
    return std::string(size.status().message());
  }
  Image image;
  const absl::Status status = decoder.decode({0, 0, size->height, size->width}, 3, image);
  EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  return std::string(status.message());
}

TEST(ImageDecoder, GivesPillowsPixels) {
  ImageDecoder decoder;
  Image image;
  for (const auto& golden : golden_images().at("decode")) {
    const Bytes file = from_base64(golden.at("file"));
    for (const std::int64_t channels : {3, 1}) {
      SCOPED_TRACE(golden.at("name").get<std::string>() + " to " + std::to_string(channels));
      const auto size = decoder.open(file);
      ASSERT_TRUE(size.ok()) << size.status();
      EXPECT_EQ(*size, (ImageSize{golden.at("height"), golden.at("width")}));
      const absl::Status status =
          decoder.decode({0, 0, size->height, size->width}, channels, image);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(pixels_of(image) == from_base64(golden.at(channels == 3 ? "rgb" : "grey")));
    }
  }
}

/// What is left out for speed must not show: 4:2:0 looks at neighbours in both directions.
TEST(ImageDecoder, APartIsThatOfTheWhole) {
  ImageDecoder decoder;
  Image image;
  SplitMix64 random(1);
  for (const auto& golden : golden_images().at("decode")) {
    const Bytes file = from_base64(golden.at("file"));
    const Bytes whole = from_base64(golden.at("rgb"));
    const std::int64_t height = golden.at("height");
    const std::int64_t width = golden.at("width");
    for (int i = 0; i < 150; ++i) {
      Region region;
      region.height = 1 + static_cast<std::int64_t>(random.below(height));
      region.width = 1 + static_cast<std::int64_t>(random.below(width));
      region.top = static_cast<std::int64_t>(random.below(height - region.height + 1));
      region.left = static_cast<std::int64_t>(random.below(width - region.width + 1));
      ASSERT_TRUE(decoder.open(file).ok());
      const absl::Status status = decoder.decode(region, 3, image);
      ASSERT_TRUE(status.ok()) << golden.at("name") << ": " << status;
      ASSERT_TRUE(pixels_of(image) == part_of(whole, width, 3, region))
          << golden.at("name") << " top " << region.top << " left " << region.left << " height "
          << region.height << " width " << region.width;
    }
  }
}

TEST(ImageDecoder, NamesWhatIsWrong) {
  EXPECT_EQ(error_of({}), "the file is empty");
  const std::string words = "this is a text, named .jpg";
  EXPECT_EQ(error_of(Bytes(words.begin(), words.end())), "neither JPEG nor PNG");
  EXPECT_THAT(error_of({0xFF, 0xD8, 0xFF}), HasSubstr("not a good JPEG"));
  const Bytes signature = {0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A};
  EXPECT_EQ(error_of(signature), "not a good PNG: it has no header");
}

TEST(ImageDecoder, EveryTruncationIsFound) {
  for (const auto& golden : golden_images().at("decode")) {
    const Bytes file = from_base64(golden.at("file"));
    for (std::size_t size = 0; size < file.size(); size += 1 + size / 50) {
      ASSERT_NE(error_of(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))), "")
          << golden.at("name") << " cut to " << size << " of " << file.size();
    }
    // One byte is missing: the end mark is not whole.
    ASSERT_NE(error_of(Bytes(file.begin(), file.end() - 1)), "") << golden.at("name");
  }
}

/// Headers that promise the world. Nothing of that size may be allocated (ASan would tell).
TEST(ImageDecoder, RefusesBombs) {
  Bytes png = golden_file("png rgb");
  for (const std::uint8_t byte : {0x7F, 0x01}) {
    png[16] = png[20] = byte;  // the highest bytes of width and height
    EXPECT_THAT(error_of(png), HasSubstr("pixels; at most"));
  }
  // Nor of the size that a chunk claims which no pixel needs (the fuzzers' corpus has one as well:
  // they see what is allocated).
  png = golden_file("png rgb");
  const Bytes palette = {0x73, 0x73, 0x73, 0x73, 's', 'P', 'L', 'T', 0, 0};
  png.insert(png.begin() + 33, palette.begin(), palette.end());
  EXPECT_THAT(error_of(png), HasSubstr("truncated"));
  Bytes jpeg = golden_file("jpeg 4:2:0");
  std::size_t at = 2;  // segments up to the frame's header
  while (jpeg[at + 1] != 0xC0) at += 2 + std::size_t{jpeg[at + 2]} * 256 + jpeg[at + 3];
  for (const std::size_t i : {5, 7}) jpeg[at + i] = 0x90;  // the higher bytes of height and width
  EXPECT_THAT(error_of(jpeg), HasSubstr("pixels; at most"));
}

/// A progressive JPEG may repeat its scans without limit, each costing a pass over the image.
TEST(ImageDecoder, RefusesTooManyScans) {
  const Bytes file = golden_file("jpeg progressive");
  std::vector<std::size_t> scans;
  for (std::size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == 0xFF && file[i + 1] == 0xDA) scans.push_back(i);
  }
  ASSERT_GE(scans.size(), 2u);
  const auto begin = file.begin() + static_cast<std::ptrdiff_t>(scans[scans.size() - 1]);
  const Bytes last_scan(begin, file.end() - 2);
  Bytes bomb(file.begin(), file.end() - 2);
  for (int i = 0; i < 2 * kMaxJpegScans; ++i) {
    bomb.insert(bomb.end(), last_scan.begin(), last_scan.end());
  }
  bomb.insert(bomb.end(), {0xFF, 0xD9});
  EXPECT_THAT(error_of(bomb), HasSubstr("more than 100 scans"));
}

TEST(ImageDecoder, DamagedDataAreFound) {
  Bytes file = golden_file("jpeg 4:4:4");
  // A marker in the middle of the pixels ends them early.
  file[file.size() / 2] = 0xFF;
  file[file.size() / 2 + 1] = 0xD9;
  EXPECT_THAT(error_of(file), HasSubstr("not a good JPEG"));
}

/// Where the scans of a progressive JPEG lie, each with the tables before it: [i, i + 1) is one.
std::vector<std::size_t> scan_bounds(const Bytes& file) {
  std::vector<std::size_t> bounds;
  std::size_t at = 2;
  bool after_scan = false;
  while (file[at + 1] != 0xD9) {
    const std::uint8_t marker = file[at + 1];
    const bool is_first_table = bounds.empty() && marker == 0xC4;
    if (is_first_table || (after_scan && (marker == 0xC4 || marker == 0xDA))) bounds.push_back(at);
    after_scan = marker == 0xDA;
    at += 2 + std::size_t{file[at + 2]} * 256 + file[at + 3];
    // Entropy-coded data: up to a marker that is neither a stuffed zero nor a restart.
    while (after_scan && (file[at] != 0xFF || file[at + 1] == 0 || (file[at + 1] & 0xF8) == 0xD0)) {
      ++at;
    }
  }
  bounds.push_back(at);
  return bounds;
}

TEST(ImageDecoder, ScansThatDoNotFitTogetherAreFound) {
  const Bytes file = golden_file("jpeg progressive");
  const std::vector<std::size_t> bounds = scan_bounds(file);
  ASSERT_GE(bounds.size(), 5u) << "some scans";
  /// The file with these scans in this order.
  const auto with_scans = [&](const std::vector<std::size_t>& scans) {
    Bytes other(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(bounds.front()));
    for (const std::size_t scan : scans) {
      other.insert(other.end(), file.begin() + static_cast<std::ptrdiff_t>(bounds[scan]),
                   file.begin() + static_cast<std::ptrdiff_t>(bounds[scan + 1]));
    }
    other.insert(other.end(), {0xFF, 0xD9});
    return other;
  };
  std::vector<std::size_t> all;
  for (std::size_t scan = 0; scan + 1 < bounds.size(); ++scan) all.push_back(scan);
  ASSERT_EQ(error_of(with_scans(all)), "");
  // The last scans refine what is there; twice the same one does not continue it.
  std::vector<std::size_t> twice = all;
  twice.push_back(all.back());
  EXPECT_THAT(error_of(with_scans(twice)), HasSubstr("Inconsistent progression sequence"));
  EXPECT_NE(error_of(with_scans({all.begin() + 1, all.end()})), "") << "no first scan";
  EXPECT_EQ(error_of(with_scans({1})), "not a good JPEG: the first scan is missing");
  // Another order that adds up to the same is no damage.
  const Bytes swapped = with_scans({1, 0});
  ASSERT_EQ(error_of(swapped), "");
  ImageDecoder decoder;
  Image one, other;
  const Region region = {0, 0, 8, 8};
  ASSERT_TRUE(decoder.open(swapped).ok());
  ASSERT_TRUE(decoder.decode(region, 3, one).ok());
  const Bytes in_order = with_scans({0, 1});
  ASSERT_TRUE(decoder.open(in_order).ok());
  ASSERT_TRUE(decoder.decode(region, 3, other).ok());
  EXPECT_TRUE(pixels_of(one) == pixels_of(other));
}

/// A grey JPEG with arithmetic in place of Huffman codes.
Bytes arithmetic_jpeg(JDIMENSION side) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = info.image_height = side;
  info.input_components = 1;
  info.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  info.arith_code = TRUE;
  jpeg_start_compress(&info, TRUE);
  SplitMix64 random(3);
  Bytes row(side);
  while (info.next_scanline < side) {
    for (std::uint8_t& pixel : row) pixel = static_cast<std::uint8_t>(random.next());
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&info, &rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes file(out, out + size);
  std::free(out);
  return file;
}

TEST(ImageDecoder, BadArithmeticCodesAreFound) {
  const Bytes good = arithmetic_jpeg(64);
  ASSERT_EQ(error_of(good), "");
  int found = 0;
  for (std::size_t at = good.size() / 4; at < good.size() - 2; at += 3) {
    Bytes file = good;
    file[at] ^= 0x55;
    found += error_of(file) == "not a good JPEG: Corrupt JPEG data: bad arithmetic code" ? 1 : 0;
  }
  EXPECT_GT(found, 5);
}

/// Whatever the bytes: pixels or DATA_LOSS, and the decoder still works afterwards.
TEST(ImageDecoder, SurvivesMutations) {
  SplitMix64 random(7);
  ImageDecoder decoder;
  Image image;
  int refused = 0;
  for (const auto& golden : golden_images().at("decode")) {
    const Bytes good = from_base64(golden.at("file"));
    for (int round = 0; round < 300; ++round) {
      Bytes file = good;
      const std::uint64_t changes = 1 + random.below(8);
      for (std::uint64_t i = 0; i < changes; ++i) {
        // Half of the changes in the headers, where they hurt.
        const std::uint64_t range =
            random.below(2) == 0 ? std::min<std::uint64_t>(700, file.size()) : file.size();
        file[random.below(range)] = static_cast<std::uint8_t>(random.next());
      }
      const auto size = decoder.open(file);
      if (!size.ok()) {
        ++refused;
        ASSERT_EQ(size.status().code(), absl::StatusCode::kDataLoss);
        continue;
      }
      if (size->height * size->width > 1 << 20) continue;  // allowed, but slow under ASan
      const Region region = {size->height / 3, size->width / 4, (size->height + 2) / 3,
                             (size->width + 1) / 2};
      const absl::Status status = decoder.decode(region, 3, image);
      if (!status.ok()) {
        ++refused;
        ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      }
    }
    ASSERT_TRUE(decoder.open(good).ok());
    ASSERT_TRUE(decoder.decode({0, 0, 1, 1}, 3, image).ok());
  }
  EXPECT_GT(refused, 1000);
}

TEST(Image, OneHugeImageLeavesNothingBehind) {
  Image image;
  image.reshape(3, 5000, 5000);
  EXPECT_GE(image.pixels.capacity(), 75'000'000u);
  image.reshape(3, 400, 400);
  EXPECT_LT(image.pixels.capacity(), 1'000'000u);
  EXPECT_GE(image.pixels.size(), 480'000u);
  image.reshape(3, 100, 100);
  EXPECT_GE(image.pixels.size(), 480'000u) << "what is usual is kept";
}

}  // namespace
}  // namespace poseidon::image_decoder_test
