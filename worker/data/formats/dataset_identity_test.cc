#include "worker/data/formats/dataset_identity.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "worker/data/formats/dataset_around.h"

namespace poseidon::dataset_identity_test {
namespace {

constexpr std::int64_t kSamples = 1000;
const Shape kShape = {1, 2, 3};

using Change =
    std::function<void(std::vector<std::uint8_t>& pixels, std::vector<std::uint8_t>& labels)>;

std::shared_ptr<const Dataset> made(std::int64_t samples = kSamples, const Shape& shape = kShape,
                                    const Change& change = {}) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(samples * element_count(shape)));
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(samples));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
  if (change) change(pixels, labels);
  return std::make_shared<MemoryDataset>("made", shape, std::move(pixels), std::move(labels));
}

DatasetIdentity identity(const Dataset& dataset) {
  const absl::StatusOr<DatasetIdentity> found = identity_of(dataset);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(DatasetIdentity());
}

TEST(DatasetIdentity, IsOneForTheSameSamples) {
  EXPECT_EQ(identity(*made()), identity(*made()));
  EXPECT_EQ(identity(*made()).samples, 1000u);
  EXPECT_NE(identity(*made()).digest, 0u);
  // As it has been since 2026-11-26, in checkpoints.
  EXPECT_EQ(identity(*made()).digest, 14140946553324788053u);
}

TEST(DatasetIdentity, IsAnotherForAnotherSet) {
  std::set<std::uint64_t> digests = {identity(*made()).digest};
  std::size_t sets = 1;
  const auto differs = [&](const std::shared_ptr<const Dataset>& dataset) {
    digests.insert(identity(*dataset).digest);
    EXPECT_EQ(digests.size(), ++sets);
  };
  differs(made(kSamples - 1));
  differs(made(kSamples, {1, 3, 2}));
  for (const std::size_t sample : {std::size_t{0}, std::size_t{999}}) {
    differs(made(kSamples, kShape, [=](auto& /*pixels*/, auto& labels) { labels[sample] ^= 1; }));
    differs(
        made(kSamples, kShape, [=](auto& pixels, auto& /*labels*/) { pixels[sample * 6] ^= 1; }));
  }
  differs(made(kSamples, kShape, [](auto& pixels, auto& labels) {
    std::rotate(pixels.begin(), pixels.begin() + 6, pixels.end());
    std::rotate(labels.begin(), labels.begin() + 1, labels.end());
  }));
  for (const std::int64_t few : {1, 2, 63, 64, 65}) differs(made(few));
}

class Counting final : public DatasetAround {
 public:
  Counting(std::int64_t broken, absl::Status with)
      : DatasetAround(made()), broken_(broken), with_(std::move(with)) {}
  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    read_.insert(index);
    return index == broken_ ? with_ : DatasetAround::read(index, sample);
  }
  const std::set<std::int64_t>& indices() const { return read_; }

 private:
  const std::int64_t broken_;
  const absl::Status with_;
  mutable std::set<std::int64_t> read_;
};

TEST(DatasetIdentity, ReadsFewSamplesFromTheFirstToTheLast) {
  const Counting counting(-1, absl::OkStatus());
  identity(counting);
  EXPECT_EQ(counting.indices().size(), static_cast<std::size_t>(kIdentitySamples));
  EXPECT_EQ(*counting.indices().begin(), 0);
  EXPECT_EQ(*counting.indices().rbegin(), kSamples - 1);
}

TEST(DatasetIdentity, OfASetWithASampleThatCannotBeReadOnlyTheNumberIsKnown) {
  const Counting corrupt(999, absl::DataLossError("a broken file"));
  EXPECT_EQ(identity(corrupt), (DatasetIdentity{.samples = 1000, .digest = 0}));
  const Counting failing(0, absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(identity_of(failing).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace poseidon::dataset_identity_test
