#include "worker/data/formats/idx.h"

#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::idx_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kDigits = "tests/data/digits/";

std::string error_of(const std::string& bytes) {
  return std::string(decode_idx(bytes, "f").status().message());
}

TEST(Idx, ReadsPlainAndGzip) {
  const std::string plain = idx_bytes({2, 1, 3}, "abcdef");
  // Whole, and as two gzip members one after the other, which the format allows.
  for (const std::string& bytes :
       {plain, gzip(plain), gzip(plain.substr(0, 9)) + gzip(plain.substr(9))}) {
    const absl::StatusOr<IdxArray> array = decode_idx(bytes, "f");
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_THAT(array->dimensions, ElementsAre(2, 1, 3));
    EXPECT_THAT(array->values, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  }
}

TEST(Idx, ReadsTheRealDigits) {
  const std::string folder = kDigits;
  const auto train = open_idx_dataset(folder + "train-images-idx3-ubyte.gz",
                                      folder + "train-labels-idx1-ubyte.gz", 10);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->size(), 1437);
  EXPECT_EQ((*train)->sample_shape(), (Shape{1, 8, 8}));
  std::vector<std::uint8_t> pixels(64);
  EncodedSample sample;
  std::vector<int> counts(10);
  for (std::int64_t i = 0; i < (*train)->size(); ++i) {
    ASSERT_TRUE((*train)->read(i, sample).ok());
    ++counts.at(static_cast<std::size_t>(sample.label));
  }
  for (const int count : counts) EXPECT_NEAR(count, 144, 30);
  const auto test = open_idx_dataset(folder + "t10k-images-idx3-ubyte.gz",
                                     folder + "t10k-labels-idx1-ubyte.gz", 10);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->size(), 360);
}

TEST(Idx, RefusesBadBytes) {
  const std::string good = idx_bytes({2, 1, 3}, "abcdef");
  EXPECT_THAT(error_of(""), HasSubstr("truncated: 0 of 4"));
  EXPECT_THAT(error_of(good.substr(0, 7)), HasSubstr("truncated"));
  EXPECT_THAT(error_of(good.substr(0, good.size() - 1)), HasSubstr("truncated: 5 of 6"));
  EXPECT_THAT(error_of(good + "x"), HasSubstr("bytes after the 6 elements"));
  EXPECT_THAT(error_of("PK\x03\x04 zip"),
              HasSubstr("is neither IDX (it would begin with two zero bytes) nor gzip"));
  EXPECT_THAT(error_of(std::string("\0\0\x0d\1", 4) + good.substr(4)),
              HasSubstr("is no IDX file of bytes (uint8)"));
  EXPECT_THAT(error_of(std::string("\0\0\x08\0", 4)),
              HasSubstr("neither 1 dimension (labels) nor 3 (images)"));
  EXPECT_THAT(error_of(std::string("\0\0\x08\x05", 4)),
              HasSubstr("neither 1 dimension (labels) nor 3 (images)"));
  EXPECT_THAT(error_of(idx_bytes({0, 8, 8}, "")), HasSubstr("is empty: dimension 0"));
}

TEST(Idx, RefusesLyingHeadersWithoutTheMemory) {
  EXPECT_THAT(error_of(idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, "a")),
              HasSubstr("more than the 4294967296 elements allowed"));
  // Within the bound: 4 GiB are promised, 3 bytes are there. Reading by pieces takes 1 MiB.
  EXPECT_THAT(error_of(idx_bytes({0xffffffff}, "abc")), HasSubstr("truncated: 3 of 4294967295"));
  EXPECT_THAT(error_of(gzip(idx_bytes({0xffffffff}, "abc"))), HasSubstr("truncated: 3 of"));
  // A bomb: much more data than promised is not unpacked.
  std::string bomb;
  bomb.resize(50'000'000, 'x');
  EXPECT_THAT(error_of(gzip(idx_bytes({3}, bomb))), HasSubstr("bytes after the 3"));
}

TEST(Idx, RefusesCorruptGzip) {
  const std::string good = gzip(idx_bytes({2, 1, 3}, "abcdef"));
  std::string bytes = good;
  bytes[bytes.size() - 6] ^= 1;  // the checksum is 8 to 5 bytes before the end
  EXPECT_THAT(error_of(bytes), HasSubstr("f: corrupt gzip data: incorrect data check"));
  bytes = good;
  bytes.back() ^= 1;  // the length
  EXPECT_THAT(error_of(bytes), HasSubstr("incorrect length check"));
  EXPECT_THAT(error_of(good.substr(0, good.size() - 1)), HasSubstr("gzip data are truncated"));
  EXPECT_THAT(error_of(good.substr(0, 12)), HasSubstr("gzip data are truncated"));
  EXPECT_THAT(error_of(good + "junk"), HasSubstr("4 bytes after the end of the gzip data"));
  const std::string zeros(700, '\0');
  EXPECT_EQ(error_of(good + zeros), "") << "as gzip and Python take it";
  EXPECT_THAT(error_of(good + zeros + "junk"), HasSubstr("4 bytes after the end of the gzip data"));
}

TEST(Idx, OpenNamesFileAndPlace) {
  const TestFolder folder;
  const std::string images = folder.write("images", idx_bytes({2, 1, 2}, "abcd"));
  const std::string labels = folder.write("labels", idx_bytes({2}, std::string_view("\0\x09", 2)));
  const auto error = [](const std::string& image_path, const std::string& label_path,
                        std::int64_t classes) {
    return std::string(open_idx_dataset(image_path, label_path, classes).status().message());
  };
  EXPECT_EQ(error(images, labels, 10), "");
  EXPECT_EQ(error(images, labels, 9),
            labels + ": label 1 is 9, the network tells 9 classes apart (0 to 8)");
  EXPECT_EQ(error(labels, labels, 10),
            labels + ": has 1 dimensions; images have 3 (count, height, width)");
  EXPECT_EQ(error(images, images, 10), images + ": has 3 dimensions; labels have 1 (count)");
  const std::string three = folder.write("three", idx_bytes({3}, "\1\2\3"));
  EXPECT_EQ(error(images, three, 10), images + ": has 2 images, but " + three + " has 3 labels");
  EXPECT_THAT(error(folder.path("none"), labels, 10),
              StartsWith(folder.path("none") + ": cannot open"));
  const std::string packed = folder.write("packed.gz", gzip(idx_bytes({2, 1, 2}, "abcd")));
  EXPECT_EQ(error(packed, labels, 10), "");
  EXPECT_THAT(error(folder.path("packed"), labels, 10), HasSubstr("there is " + packed));
  EXPECT_THAT(error(images + ".gz", labels, 10), HasSubstr("there is " + images));
  // The name says nothing: plain bytes in a .gz file.
  EXPECT_EQ(error(images, folder.write("x.gz", idx_bytes({2}, "\1\2")), 10), "");
}

/// Seeded damage to plain and packed bytes: no crash, and either an error with the file's name or
/// an array that fits its dimensions.
TEST(Idx, SurvivesDamage) {
  const std::string plain = idx_bytes({5, 3, 4}, std::string(60, 'p'));
  const std::string packed = gzip(plain);
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    SplitMix64 random(seed);
    std::string bytes = random.below(2) == 0 ? plain : packed;
    for (std::uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
      switch (random.below(4)) {
        case 0:
          bytes.resize(random.below(bytes.size() + 1));
          break;
        case 1:
          bytes.insert(random.below(bytes.size() + 1), 1, static_cast<char>(random.next()));
          break;
        default:
          if (!bytes.empty()) {
            bytes[random.below(bytes.size())] ^= static_cast<char>(1u << random.below(8));
          }
      }
    }
    const absl::StatusOr<IdxArray> array = decode_idx(bytes, "f");
    if (!array.ok()) {
      ++refused;
      ASSERT_THAT(std::string(array.status().message()), StartsWith("f: ")) << "seed " << seed;
      continue;
    }
    std::int64_t count = 1;
    for (const std::int64_t dimension : array->dimensions) count *= dimension;
    ASSERT_EQ(static_cast<std::size_t>(count), array->values.size()) << "seed " << seed;
  }
  EXPECT_GT(refused, 5000);
  EXPECT_LT(refused, 10'000) << "damaged pixels of a plain file cannot be noticed";
}

}  // namespace
}  // namespace poseidon::idx_test
