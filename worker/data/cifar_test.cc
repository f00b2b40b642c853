#include "worker/data/cifar.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace poseidon {
namespace {

using testing::HasSubstr;

std::string record(int label, char red, char green, char blue) {
  return std::string(1, static_cast<char>(label)) + std::string(1024, red) +
         std::string(1024, green) + std::string(1024, blue);
}

TEST(Cifar10, ReadsRecordsOfAllFilesInOrder) {
  const TestFolder folder;
  const std::string a = folder.write("a.bin", record(3, 'r', 'g', 'b') + record(0, '0', '1', '2'));
  const std::string b = folder.write("b.bin", record(9, 'x', 'y', 'z'));
  const auto dataset = open_cifar10_dataset({a, b}, 10);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 3);
  EXPECT_EQ((*dataset)->sample_shape(), (Shape{3, 32, 32}));
  EXPECT_EQ((*dataset)->name(), a + " and 1 more");
  std::vector<std::uint8_t> pixels(3072);
  std::int32_t label = -1;
  ASSERT_TRUE((*dataset)->read(0, pixels, label).ok());
  EXPECT_EQ(label, 3);
  EXPECT_EQ(pixels[0], 'r');
  EXPECT_EQ(pixels[1023], 'r');
  EXPECT_EQ(pixels[1024], 'g');
  EXPECT_EQ(pixels[3071], 'b');
  ASSERT_TRUE((*dataset)->read(2, pixels, label).ok());
  EXPECT_EQ(label, 9);
  EXPECT_EQ(pixels[0], 'x');
}

TEST(Cifar10, RefusesBadFiles) {
  const TestFolder folder;
  const auto error = [&](const std::string& bytes, std::int64_t classes) {
    const std::string path = folder.write("f.bin", bytes);
    return std::string(open_cifar10_dataset({path}, classes).status().message());
  };
  const std::string good = record(1, 'a', 'b', 'c');
  EXPECT_EQ(error(good, 10), "");
  EXPECT_THAT(error("", 10), HasSubstr("f.bin: 0 bytes are not one or more records of 3073"));
  EXPECT_THAT(error(good.substr(1), 10), HasSubstr("is it truncated"));
  EXPECT_THAT(error(good + "x", 10), HasSubstr("3074 bytes"));
  EXPECT_THAT(error(gzip(good), 10), HasSubstr("unpack it first"));
  EXPECT_THAT(error(good + record(10, 'a', 'b', 'c'), 10),
              HasSubstr("f.bin: label 1 is 10, expected 0 to 9"));
  EXPECT_THAT(error(good + record(2, 'a', 'b', 'c'), 2),
              HasSubstr("label 1 is 2, expected 0 to 1 (the network tells 2 classes apart"));
  EXPECT_THAT(error(record(50, 'a', 'b', 'c'), 100), HasSubstr("CIFAR-10 has 10"));
  EXPECT_FALSE(open_cifar10_dataset({folder.path("none")}, 10).ok());
  EXPECT_FALSE(open_cifar10_dataset({}, 10).ok());
}

TEST(Cifar10, ErrorsLeaveWhatWasRead) {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  ASSERT_TRUE(decode_cifar10(record(1, 'a', 'b', 'c'), "f", 10, pixels, labels).ok());
  EXPECT_FALSE(
      decode_cifar10(record(1, 'a', 'b', 'c') + record(99, 'a', 'b', 'c'), "f", 10, pixels, labels)
          .ok());
  EXPECT_EQ(labels.size(), 1u);
  EXPECT_EQ(pixels.size(), 3072u);
}

}  // namespace
}  // namespace poseidon
