#include "worker/data/formats/cifar.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::cifar_test {
namespace {

using ::testing::HasSubstr;

std::string record(int label, char red, char green, char blue) {
  return std::string(1, static_cast<char>(label)) + std::string(1024, red) +
         std::string(1024, green) + std::string(1024, blue);
}

TEST(Cifar10, ReadsRecordsOfAllFilesInOrder) {
  const TestFolder folder;
  const std::string a = folder.write("a.bin", record(3, 'r', 'g', 'b') + record(0, '0', '1', '2'));
  const std::string b = folder.write("b.bin", record(9, 'x', 'y', 'z'));
  const auto dataset = open_cifar_dataset({a, b}, CifarKind::kCifar10, 10);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 3);
  EXPECT_EQ((*dataset)->sample_shape(), (Shape{3, 32, 32}));
  EXPECT_EQ((*dataset)->name(), a + " and 1 more");
  EncodedSample sample;
  ASSERT_TRUE((*dataset)->read(0, sample).ok());
  EXPECT_EQ(sample.encoding, Encoding::kPixels);
  EXPECT_EQ(sample.label, 3);
  ASSERT_EQ(sample.bytes.size(), 3072u);
  EXPECT_EQ(sample.bytes[0], 'r');
  EXPECT_EQ(sample.bytes[1023], 'r');
  EXPECT_EQ(sample.bytes[1024], 'g');
  EXPECT_EQ(sample.bytes[3071], 'b');
  ASSERT_TRUE((*dataset)->read(2, sample).ok());
  EXPECT_EQ(sample.label, 9);
  EXPECT_EQ(sample.bytes[0], 'x');
}

TEST(Cifar10, RefusesBadFiles) {
  const TestFolder folder;
  const auto error = [&](const std::string& bytes, std::int64_t classes) {
    const std::string path = folder.write("f.bin", bytes);
    return std::string(open_cifar_dataset({path}, CifarKind::kCifar10, classes).status().message());
  };
  const std::string good = record(1, 'a', 'b', 'c');
  EXPECT_EQ(error(good, 10), "");
  EXPECT_THAT(error("", 10), HasSubstr("f.bin: 0 bytes are not one or more records of 3073"));
  EXPECT_THAT(error(good.substr(1), 10), HasSubstr("is it truncated"));
  EXPECT_THAT(error(good + "x", 10), HasSubstr("3074 bytes"));
  EXPECT_THAT(error(gzip(good), 10), HasSubstr("unpack it first"));
  EXPECT_THAT(error(good + record(10, 'a', 'b', 'c'), 10),
              HasSubstr("f.bin: label 1 is not one of 0 to 9; is it CIFAR-10 in binary form?"));
  EXPECT_THAT(error(good + record(2, 'a', 'b', 'c'), 2),
              HasSubstr("label 1 is not one of 0 to 1; the network tells 2 classes apart"));
  EXPECT_THAT(error(record(50, 'a', 'b', 'c'), 100), HasSubstr("is it CIFAR-10 in binary form?"));
  EXPECT_FALSE(open_cifar_dataset({folder.path("none")}, CifarKind::kCifar10, 10).ok());
  EXPECT_FALSE(open_cifar_dataset({}, CifarKind::kCifar10, 10).ok());
}

TEST(Cifar10, ErrorsLeaveWhatWasRead) {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  ASSERT_TRUE(
      decode_cifar(record(1, 'a', 'b', 'c'), "f", CifarKind::kCifar10, 10, pixels, labels).ok());
  EXPECT_FALSE(decode_cifar(record(1, 'a', 'b', 'c') + record(99, 'a', 'b', 'c'), "f",
                            CifarKind::kCifar10, 10, pixels, labels)
                   .ok());
  EXPECT_EQ(labels.size(), 1u);
  EXPECT_EQ(pixels.size(), 3072u);
}

TEST(Cifar100, HasTwoLabels) {
  const TestFolder folder;
  // Coarse label first, then the fine one.
  const std::string bytes = '\x07' + record(93, 'r', 'g', 'b') + '\x13' + record(0, 'x', 'y', 'z');
  const std::string path = folder.write("train.bin", bytes);
  EncodedSample sample;
  const auto fine = open_cifar_dataset({path}, CifarKind::kCifar100Fine, 100);
  ASSERT_TRUE(fine.ok()) << fine.status();
  ASSERT_EQ((*fine)->size(), 2);
  ASSERT_TRUE((*fine)->read(0, sample).ok());
  EXPECT_EQ(sample.label, 93);
  EXPECT_EQ(sample.bytes[0], 'r');
  EXPECT_EQ(sample.bytes[3071], 'b');
  ASSERT_TRUE((*fine)->read(1, sample).ok());
  EXPECT_EQ(sample.label, 0);
  const auto coarse = open_cifar_dataset({path}, CifarKind::kCifar100Coarse, 20);
  ASSERT_TRUE(coarse.ok()) << coarse.status();
  ASSERT_TRUE((*coarse)->read(0, sample).ok());
  EXPECT_EQ(sample.label, 7);
  ASSERT_TRUE((*coarse)->read(1, sample).ok());
  EXPECT_EQ(sample.label, 19);
  EXPECT_EQ(sample.bytes[0], 'x');

  const auto error = [&](const std::string& text, CifarKind kind, std::int64_t classes) {
    return std::string(
        open_cifar_dataset({folder.write("f.bin", text)}, kind, classes).status().message());
  };
  EXPECT_THAT(error(bytes, CifarKind::kCifar100Fine, 50),
              HasSubstr("label 0 is not one of 0 to 49"));
  EXPECT_THAT(error(bytes, CifarKind::kCifar100Coarse, 10),
              HasSubstr("label 1 is not one of 0 to 9"));
  EXPECT_THAT(error(record(1, 'a', 'b', 'c'), CifarKind::kCifar100Fine, 100),
              HasSubstr("not one or more records of 3074"));
  EXPECT_THAT(error('\x01' + record(100, 'a', 'b', 'c'), CifarKind::kCifar100Fine, 1000),
              HasSubstr("label 0 is not one of 0 to 99; is it CIFAR-100 in binary form?"));
}

}  // namespace
}  // namespace poseidon::cifar_test
