#include "worker/data/feed/sample_reader.h"

#include <array>
#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/golden_images.h"
#include "worker/data/formats/dataset_around.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::sample_reader_test {
namespace {

/// Samples of one value, labelled with their index, some of which cannot be read. One thread.
class BrokenDataset final : public DatasetAround {
 public:
  explicit BrokenDataset(std::uint8_t size) : DatasetAround(numbered(size)) {}
  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    ++reads;
    return broken.count(index) != 0 ? absl::DataLossError("damaged")
                                    : DatasetAround::read(index, sample);
  }

  std::set<std::int64_t> broken;
  mutable int reads = 0;

 private:
  static std::shared_ptr<const Dataset> numbered(std::uint8_t size) {
    std::vector<std::uint8_t> numbers(size);
    std::iota(numbers.begin(), numbers.end(), std::uint8_t{0});
    return std::make_shared<MemoryDataset>("numbers", Shape{1, 1, 1}, numbers, numbers);
  }
};

TEST(SampleReader, TheSearchForAStandInCanBeStopped) {
  const auto set = std::make_shared<BrokenDataset>(20);
  set->broken = {0, 1, 2, 3, 4, 5, 6, 7};
  std::atomic<bool> stop{false};
  int found = 0;
  const auto corrupt = std::make_shared<CorruptSamples>(
      set, 1.0, nullptr, [&](const std::string&) { stop = ++found == 3; });
  SampleReader reader(set, Transform::make({}, 1, set->sample_shape()).value(), corrupt);
  std::vector<float> output(1);
  std::int32_t label = 0;
  EXPECT_EQ(reader.read(0, 0, Phase::kTrain, output, label, &stop).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(set->reads, 3);
  stop = false;
  ASSERT_TRUE(reader.read(0, 0, Phase::kTrain, output, label, &stop).ok());
  EXPECT_EQ(label, 8);
  EXPECT_EQ(set->reads, 9) << "on from where it stopped";
  // From the last one on, and all around.
  set->broken = {8, 9, 19};
  ASSERT_TRUE(reader.read(19, 0, Phase::kTrain, output, label).ok());
  EXPECT_EQ(label, 10);
  EXPECT_EQ(set->reads, 13) << "19, 8, 9 and 10";
}

/// Damage that only some crops reach is found at each position: a worker that reads it later, after
/// a restart, must replace it by the same sample.
TEST(SampleReader, WhatItRemembersChangesNoSample) {
  const TestFolder folder;
  std::vector<std::uint8_t> file = golden_file("jpeg 4:4:4");
  folder.write("b/2.jpg", std::string(file.begin(), file.end()));
  // A marker ends the pixels early, in the last rows.
  const std::size_t damage = file.size() - file.size() / 8;
  file[damage] = 0xFF;
  file[damage + 1] = 0xD9;
  folder.write("a/1.jpg", std::string(file.begin(), file.end()));
  folder.write("a/0.png", "no image");
  DataSpec data;
  data.train = {.format = "image_folder", .path = folder.path("")};
  data.transform.random_resized_crop.emplace().size = {8, 8};
  const std::shared_ptr<const Dataset> set = open_dataset(data.train, 2).value();
  const Transform transform = Transform::make(data.transform, 3, {3, 0, 0}).value();
  const auto new_reader = [&] {
    return SampleReader(set, transform,
                        std::make_shared<CorruptSamples>(set, 1.0, nullptr, nullptr));
  };
  SampleReader old = new_reader();
  std::array<int, 2> of_label = {0, 0};
  for (std::uint64_t position = 0; position < 200; ++position) {
    std::vector<float> image(3 * 8 * 8), expected = image;
    std::int32_t label = 0, expected_label = 0;
    const auto index = static_cast<std::int64_t>(position % 2);
    ASSERT_TRUE(old.read(index, position, Phase::kTrain, image, label).ok());
    ASSERT_TRUE(new_reader().read(index, position, Phase::kTrain, expected, expected_label).ok());
    ASSERT_EQ(label, expected_label) << position;
    ASSERT_EQ(image, expected) << position;
    ++of_label.at(static_cast<std::size_t>(label));
  }
  EXPECT_GT(of_label[0], 10) << "crops above the damage";
  EXPECT_GT(of_label[1], 10) << "and those that reach it";
}

}  // namespace
}  // namespace poseidon::sample_reader_test
