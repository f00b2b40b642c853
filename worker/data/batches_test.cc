#include "worker/data/batches.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/sampler.h"
#include "worker/data/test_files.h"

namespace poseidon {
namespace {

using testing::HasSubstr;

constexpr Milliseconds kLong{20'000};

/// `size` samples of 1 x 2 x 2 whose pixels and label tell their index (below 64).
std::shared_ptr<const Dataset> numbered(std::int64_t size, Shape shape = {1, 2, 2}) {
  std::vector<std::uint8_t> pixels, labels;
  const std::int64_t values = shape[0] * shape[1] * shape[2];
  for (std::int64_t i = 0; i < size; ++i) {
    for (std::int64_t j = 0; j < values; ++j)
      pixels.push_back(static_cast<std::uint8_t>(4 * i + j));
    labels.push_back(static_cast<std::uint8_t>(i));
  }
  return std::make_shared<MemoryDataset>("numbered", std::move(shape), std::move(pixels),
                                         std::move(labels));
}

/// A data set whose reads wait until the test lets them through, and fail where it says.
class GatedDataset final : public Dataset {
 public:
  explicit GatedDataset(std::int64_t size) : inner_(numbered(size)) {}
  std::int64_t size() const override { return inner_->size(); }
  const Shape& sample_shape() const override { return inner_->sample_shape(); }
  const std::string& name() const override { return inner_->name(); }
  absl::Status read(std::int64_t index, std::span<std::uint8_t> pixels,
                    std::int32_t& label) const override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLong, [this] { return reads_ < allowed_; });
    ++reads_;
    changed_.notify_all();
    if (index == broken_index_) return absl::DataLossError("sample 5 of numbered: cannot be read");
    return inner_->read(index, pixels, label);
  }
  void allow(std::int64_t reads) {
    const std::lock_guard lock(mutex_);
    allowed_ = reads;
    changed_.notify_all();
  }
  /// Waits until `reads` have been made; false if they do not come.
  bool wait_for_reads(std::int64_t reads, Milliseconds timeout = kLong) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return reads_ >= reads; });
  }
  std::int64_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  void break_at(std::int64_t index) { broken_index_ = index; }

 private:
  const std::shared_ptr<const Dataset> inner_;
  std::int64_t broken_index_ = -1;  // set before the first read
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::int64_t reads_ = 0;
  std::int64_t allowed_ = 1'000'000'000;
};

DataSpec shuffled() {
  DataSpec data;
  data.seed = 3;
  return data;
}

BatchPlacement placement(std::uint32_t workers, std::uint32_t rank, std::int64_t batch_size,
                         Iteration first_iteration = 0) {
  return {.workers = workers,
          .rank = rank,
          .batch_size = batch_size,
          .first_iteration = first_iteration};
}

const Shape kShape = {1, 2, 2};

TEST(TrainBatches, FollowsTheSamplingRule) {
  const DataSpec data = shuffled();
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    auto batches = TrainBatches::start(numbered(20), data, kShape, placement(3, rank, 4, 5));
    ASSERT_TRUE(batches.ok()) << batches.status();
    Sampler sampler(20, true, 3);
    for (Iteration iteration = 5; iteration < 40; ++iteration) {
      const absl::StatusOr<const Batch*> batch = (*batches)->next(kLong);
      ASSERT_TRUE(batch.ok()) << batch.status();
      const std::uint64_t first = static_cast<std::uint64_t>(iteration) * 12 + rank * 4;
      EXPECT_EQ((*batch)->first_sample, first);
      EXPECT_EQ((*batch)->samples, 4);
      EXPECT_EQ((*batch)->valid_samples, 4);
      for (std::size_t i = 0; i < 4; ++i) {
        const std::int64_t index = sampler.index_at(first + i);
        EXPECT_EQ((*batch)->labels[i], index);
        for (std::size_t j = 0; j < 4; ++j) {
          EXPECT_EQ((*batch)->images[4 * i + j],
                    static_cast<float>(4 * index) + static_cast<float>(j));
        }
      }
    }
  }
}

/// One worker with batch 12 and three with batch 4 see the same bytes, random transforms included.
TEST(TrainBatches, ShareOneRunWhateverTheNumberOfWorkers) {
  DataSpec data = shuffled();
  data.transform.pad = 2;
  data.transform.random_crop = {3, 3};
  data.transform.mirror = true;
  data.transform.resize = {4, 4};
  data.transform.mean = {3.5};
  const Shape shape = {1, 3, 3};
  auto whole = TrainBatches::start(numbered(30), data, shape, placement(1, 0, 12)).value();
  std::vector<std::unique_ptr<TrainBatches>> parts;
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    parts.push_back(TrainBatches::start(numbered(30), data, shape, placement(3, rank, 4)).value());
  }
  for (int iteration = 0; iteration < 20; ++iteration) {
    const Batch& all = **whole->next(kLong);
    std::vector<float> images;
    std::vector<std::int32_t> labels;
    for (auto& part : parts) {
      const Batch& batch = **part->next(kLong);
      images.insert(images.end(), batch.images.begin(), batch.images.end());
      labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    }
    ASSERT_EQ(all.labels, labels);
    ASSERT_EQ(std::memcmp(all.images.data(), images.data(), images.size() * sizeof(float)), 0);
  }
}

TEST(TrainBatches, RecyclesItsBuffers) {
  auto batches = TrainBatches::start(numbered(20), shuffled(), kShape, placement(1, 0, 4)).value();
  std::set<const Batch*> objects;
  std::set<const float*> buffers;
  for (int i = 0; i < 50; ++i) {
    const Batch* batch = *batches->next(kLong);
    objects.insert(batch);
    buffers.insert(batch->images.data());
  }
  EXPECT_EQ(objects.size(), kPrefetchBatches + 1);
  EXPECT_EQ(buffers.size(), kPrefetchBatches + 1);
}

TEST(TrainBatches, ReadsAheadOnlySoFarAndKeepsTheCallersBatch) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  auto batches = TrainBatches::start(dataset, shuffled(), kShape, placement(1, 0, 2)).value();
  const std::int64_t all_slots = static_cast<std::int64_t>(kPrefetchBatches + 1) * 2;
  ASSERT_TRUE(dataset->wait_for_reads(all_slots));
  const Batch* batch = *batches->next(kLong);
  const std::vector<float> images = batch->images;
  // The thread could only go on by writing into the caller's batch: give it the time to do wrong.
  EXPECT_FALSE(dataset->wait_for_reads(all_slots + 1, Milliseconds(50)));
  EXPECT_EQ(batch->images, images);
  ASSERT_TRUE(batches->next(kLong).ok());
  ASSERT_TRUE(dataset->wait_for_reads(all_slots + 2)) << "the slot given back must be filled";
  EXPECT_EQ(dataset->reads(), all_slots + 2);
}

TEST(TrainBatches, SaysWhenABatchIsLate) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  dataset->allow(3);
  auto batches = TrainBatches::start(dataset, shuffled(), kShape, placement(1, 0, 2, 7)).value();
  ASSERT_TRUE(batches->next(kLong).ok());
  const absl::Status late = batches->next(Milliseconds(30)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.message(),
            "numbered: the batch of iteration 8 was not read and transformed within 30 ms");
  EXPECT_GE(batches->stall_seconds(), 0.03);
  dataset->allow(1'000'000);
  const absl::StatusOr<const Batch*> batch = batches->next(kLong);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ((*batch)->first_sample, 16u) << "the late batch, none skipped";
}

TEST(TrainBatches, PassesOnWhatCannotBeRead) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  dataset->break_at(5);
  DataSpec data = shuffled();
  data.shuffle = false;
  auto batches = TrainBatches::start(dataset, data, kShape, placement(1, 0, 2)).value();
  EXPECT_TRUE(batches->next(kLong).ok());
  EXPECT_TRUE(batches->next(kLong).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(batches->next(kLong).status().message(), "sample 5 of numbered: cannot be read");
  }
}

TEST(TrainBatches, StopsInTheMiddle) {
  for (int i = 0; i < 50; ++i) {
    auto batches =
        TrainBatches::start(numbered(60), shuffled(), kShape, placement(1, 0, 60)).value();
    if (i % 2 == 0) {
      ASSERT_TRUE(batches->next(kLong).ok());
    }
  }
}

TEST(TrainBatches, RefusesABatchLargerThanTheData) {
  const auto error = [](std::uint32_t workers, std::int64_t batch_size) {
    return std::string(
        TrainBatches::start(numbered(20), shuffled(), kShape, placement(workers, 0, batch_size))
            .status()
            .message());
  };
  EXPECT_EQ(error(4, 5), "");
  EXPECT_EQ(error(3, 7),
            "numbered: has 20 samples, but one iteration of 3 workers x batch_size 7 takes 21; "
            "lower batch_size or use "
            "fewer workers");
}

TEST(TrainBatches, RefusesShapesThatDoNotFit) {
  const auto error = [](const DataSpec& data, const Shape& sample, const Shape& input) {
    return std::string(TrainBatches::start(numbered(4, sample), data, input, placement(1, 0, 1))
                           .status()
                           .message());
  };
  DataSpec data;
  EXPECT_EQ(error(data, {1, 8, 8}, {1, 28, 28}),
            "numbered: samples are 1x8x8 after data.transform, the network takes 1x28x28; set "
            "data.transform.resize to [28, 28]");
  EXPECT_THAT(error(data, {1, 8, 8}, {3, 8, 8}),
              HasSubstr("give the network an input of 1 channels"));
  EXPECT_EQ(error(data, {1, 8, 8}, {64}), "") << "a vector takes the image's values in order";
  EXPECT_THAT(error(data, {1, 8, 8}, {65}), HasSubstr("the network takes 65; give the network"));
  data.transform.pad = 2;
  EXPECT_THAT(error(data, {1, 8, 8}, {1, 28, 28}), HasSubstr("data.transform.resize to [24, 24]"));
  EXPECT_THAT(error(data, {1, 8, 8}, {1, 4, 4}), HasSubstr("lower data.transform.pad"));
  data.transform.random_crop = {5, 5};
  EXPECT_THAT(error(data, {1, 8, 8}, {1, 6, 6}), HasSubstr("data.transform.random_crop to [6, 6]"));
  data.transform.random_crop = {50, 5};
  EXPECT_THAT(error(data, {1, 8, 8}, {1, 6, 6}),
              HasSubstr("data.transform.random_crop: [50, 5] is larger"));
}

TEST(TestBatches, EverySampleIsTestedByOneWorker) {
  for (const std::int64_t size : {1, 2, 10, 37, 60}) {
    for (const std::uint32_t workers : {1u, 3u, 4u}) {
      std::multiset<std::int32_t> seen;
      for (std::uint32_t rank = 0; rank < workers; ++rank) {
        auto tests =
            TestBatches::start(numbered(size), shuffled(), kShape, placement(workers, rank, 4))
                .value();
        Batch batch;
        std::int64_t samples = 0;
        for (std::int64_t i = 0; i < tests->batches(); ++i) {
          ASSERT_TRUE(tests->read(i, batch).ok());
          ASSERT_EQ(batch.samples, 4);
          ASSERT_EQ(batch.labels.size(), 4u);
          ASSERT_EQ(batch.images.size(), 16u);
          ASSERT_GE(batch.valid_samples, 1);
          const auto valid = static_cast<std::size_t>(batch.valid_samples);
          for (std::size_t j = 0; j < valid; ++j) {
            seen.insert(batch.labels[j]);
            EXPECT_EQ(batch.images[4 * j], static_cast<float>(4 * batch.labels[j]));
          }
          for (std::size_t j = valid; j < 4; ++j)
            EXPECT_EQ(batch.labels[j], batch.labels[valid - 1]);
          samples += batch.valid_samples;
        }
        EXPECT_EQ(samples, tests->samples());
      }
      std::multiset<std::int32_t> all;
      for (std::int32_t i = 0; i < size; ++i) all.insert(i);
      EXPECT_EQ(seen, all) << size << " samples, " << workers << " workers";
    }
  }
}

TEST(Batches, OpenTheRealDigits) {
  DataSpec data;
  const std::string folder = "tests/data/digits/";
  data.train = {.format = "idx",
                .images = folder + "train-images-idx3-ubyte.gz",
                .labels = folder + "train-labels-idx1-ubyte.gz",
                .files = {}};
  data.test = {.format = "idx",
               .images = folder + "t10k-images-idx3-ubyte.gz",
               .labels = folder + "t10k-labels-idx1-ubyte.gz",
               .files = {}};
  data.transform.resize = {28, 28};
  data.transform.scale = 1.0 / 255;
  const Shape input = {1, 28, 28};
  auto train = TrainBatches::open(data, input, 10, placement(4, 1, 32));
  ASSERT_TRUE(train.ok()) << train.status();
  const Batch& batch = **(*train)->next(kLong);
  EXPECT_EQ(batch.images.size(), 32u * 28 * 28);
  EXPECT_EQ(*std::max_element(batch.images.begin(), batch.images.end()), 1.0f);
  auto test = TestBatches::open(data, input, 10, placement(4, 3, 32));
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->samples(), 90);
  EXPECT_EQ((*test)->batches(), 3);
  // Corrupt, missing and mislabelled data are told apart before training starts.
  EXPECT_THAT(
      std::string(TrainBatches::open(data, input, 9, placement(4, 1, 32)).status().message()),
      HasSubstr("train-labels-idx1-ubyte.gz: label "));
  data.train.images = folder + "README.md";
  EXPECT_THAT(
      std::string(TrainBatches::open(data, input, 10, placement(4, 1, 32)).status().message()),
      HasSubstr("README.md: starts with bytes"));
  data.test->labels = folder + "none";
  EXPECT_THAT(
      std::string(TestBatches::open(data, input, 10, placement(4, 1, 32)).status().message()),
      HasSubstr("none: cannot open"));
}

TEST(Batches, OpenCifar10) {
  const TestFolder folder;
  DataSpec data;
  data.train.format = "cifar10";
  data.train.files = {folder.write("a.bin", std::string(3073 * 4, '\1'))};
  EXPECT_TRUE(TrainBatches::open(data, {3, 32, 32}, 10, placement(2, 1, 2)).ok());
  data.train.format = "png";
  EXPECT_THAT(
      std::string(TrainBatches::open(data, {3, 32, 32}, 10, placement(2, 1, 2)).status().message()),
      HasSubstr("data format \"png\""));
}

}  // namespace
}  // namespace poseidon
