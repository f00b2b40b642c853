#include "worker/data/feed/batches.h"
#include "common/threads/mutex.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/golden_images.h"
#include "worker/data/feed/sampler.h"
#include "worker/data/formats/dataset_around.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::batches_test {
namespace {

using ::testing::HasSubstr;

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
class GatedDataset final : public DatasetAround {
 public:
  explicit GatedDataset(std::int64_t size) : DatasetAround(numbered(size)) {}
  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    MutexLock lock(mutex_);
    changed_.wait_for(mutex_, kLong,
                      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reads_ < allowed_; });
    ++reads_;
    changed_.notify_all();
    if (broken_.count(index) != 0) return reason_;
    return DatasetAround::read(index, sample);
  }
  void allow(std::int64_t reads) {
    const MutexLock lock(mutex_);
    allowed_ = reads;
    changed_.notify_all();
  }
  /// Waits until `reads` have been made; false if they do not come.
  bool wait_for_reads(std::int64_t reads, Milliseconds timeout = kLong) const {
    MutexLock lock(mutex_);
    return changed_.wait_for(
        mutex_, timeout, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reads_ >= reads; });
  }
  std::int64_t reads() const {
    const MutexLock lock(mutex_);
    return reads_;
  }
  /// Before the first read.
  void break_at(std::set<std::int64_t> indices, absl::Status reason) {
    broken_ = std::move(indices);
    reason_ = std::move(reason);
  }

 private:
  std::set<std::int64_t> broken_;
  absl::Status reason_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable std::int64_t reads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t allowed_ ABSL_GUARDED_BY(mutex_) = 1'000'000'000;
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
          .samples_before = static_cast<std::uint64_t>(first_iteration * batch_size * workers)};
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

TEST(TrainBatches, TheNextBatchCanBeSeenBefore) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  dataset->allow(2);
  auto batches = TrainBatches::start(dataset, shuffled(), kShape, placement(1, 0, 2)).value();
  ASSERT_TRUE(batches->next(kLong).ok());
  EXPECT_EQ(batches->peek(), nullptr) << "nobody could read it";
  dataset->allow(1000);
  for (int i = 0; i < 20; ++i) {
    const Batch* seen = nullptr;
    // The threads are at it; ctest has a deadline.
    while ((seen = batches->peek()) == nullptr) std::this_thread::yield();
    const std::vector<float> images = seen->images;
    EXPECT_EQ(batches->peek(), seen);
    EXPECT_EQ(*batches->next(kLong), seen);
    EXPECT_EQ(seen->images, images);
  }
}

TEST(TrainBatches, ReadsAheadOnlySoFarAndKeepsTheCallersBatch) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  auto batches = TrainBatches::start(dataset, shuffled(), kShape, placement(1, 0, 2)).value();
  const std::int64_t all_slots = static_cast<std::int64_t>(kPrefetchBatches + 1) * 2;
  ASSERT_TRUE(dataset->wait_for_reads(all_slots));
  const Batch* batch = *batches->next(kLong);
  const std::vector<float> images = batch->images;
  // The thread could only continue by writing into the caller's batch: give it the time for that
  // error.
  EXPECT_FALSE(dataset->wait_for_reads(all_slots + 1, Milliseconds(50)));
  EXPECT_EQ(batch->images, images);
  ASSERT_TRUE(batches->next(kLong).ok());
  ASSERT_TRUE(dataset->wait_for_reads(all_slots + 2)) << "the slot given back must be filled";
  EXPECT_EQ(dataset->reads(), all_slots + 2);
}

TEST(TrainBatches, SaysWhenABatchIsLate) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  dataset->allow(3);
  const auto probe = std::make_shared<DataProbe>();
  auto batches =
      TrainBatches::start(dataset, shuffled(), kShape, placement(1, 0, 2, 7), {.probe = probe})
          .value();
  ASSERT_TRUE(batches->next(kLong).ok());
  const absl::Status late = batches->next(Milliseconds(30)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.message(), "numbered: the next batch was not read and transformed within 30 ms");
  EXPECT_GE(probe->stall_seconds(), 0.03);
  dataset->allow(1'000'000);
  const absl::StatusOr<const Batch*> batch = batches->next(kLong);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ((*batch)->first_sample, 16u) << "the late batch, none skipped";
}

TEST(TrainBatches, PassesOnWhatCannotBeRead) {
  const auto dataset = std::make_shared<GatedDataset>(20);
  dataset->break_at({5}, absl::InternalError("the disk is gone"));
  DataSpec data = shuffled();
  data.shuffle = false;
  auto batches = TrainBatches::start(dataset, data, kShape, placement(1, 0, 2)).value();
  EXPECT_TRUE(batches->next(kLong).ok());
  EXPECT_TRUE(batches->next(kLong).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(batches->next(kLong).status().message(), "numbered, sample 5: the disk is gone");
  }
}

/// An unreadable sample is replaced by its neighbour, on every worker.
TEST(TrainBatches, TheNextReadableSampleStandsIn) {
  DataSpec data = shuffled();
  data.max_corrupt_share = 0.2;
  const auto damaged = [] {
    auto set = std::make_shared<GatedDataset>(20);
    set->break_at({4, 7, 8, 19}, absl::DataLossError("damaged"));
    return set;
  };
  const std::map<std::int32_t, std::int32_t> stands_in = {{4, 5}, {7, 9}, {8, 9}, {19, 0}};
  Sampler sampler(20, true, 3);
  for (const std::uint32_t workers : {1u, 3u}) {
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      BatchOptions options{.threads = 2, .probe = std::make_shared<DataProbe>()};
      std::vector<std::string> lines;
      options.log = [&](const std::string& line) { lines.push_back(line); };
      {
        auto batches = TrainBatches::start(damaged(), data, kShape,
                                           placement(workers, rank, 12 / workers), options)
                           .value();
        for (int iteration = 0; iteration < 30; ++iteration) {
          const auto batch = batches->next(kLong);
          ASSERT_TRUE(batch.ok()) << batch.status();
          for (std::size_t i = 0; i < (*batch)->labels.size(); ++i) {
            const auto index =
                static_cast<std::int32_t>(sampler.index_at((*batch)->first_sample + i));
            const auto found = stands_in.find(index);
            const std::int32_t expected = found == stands_in.end() ? index : found->second;
            ASSERT_EQ((*batch)->labels[i], expected);
            ASSERT_EQ((*batch)->images[4 * i], static_cast<float>(4 * expected));
          }
        }
      }
      EXPECT_EQ(options.probe->corrupt_samples(), 4u);
      ASSERT_EQ(lines.size(), 4u) << "each is named once, however often it is met";
      EXPECT_THAT(lines, ::testing::Contains("left out: numbered, sample 19: damaged"));
    }
  }
}

TEST(TrainBatches, ARunOfUnreadableSamplesIsReadOnce) {
  constexpr std::int64_t kBroken = 100, kSize = 130;
  const auto set = std::make_shared<GatedDataset>(kSize);
  std::set<std::int64_t> broken;
  for (std::int64_t i = 10; i < 10 + kBroken; ++i) broken.insert(i);
  set->break_at(broken, absl::DataLossError("damaged"));
  DataSpec data = shuffled();
  data.shuffle = false;
  data.max_corrupt_share = 0.8;
  {
    auto batches = TrainBatches::start(set, data, kShape, placement(1, 0, 13)).value();
    for (std::int64_t position = 0; position < 3 * kSize; position += 13) {
      const auto batch = batches->next(kLong);
      ASSERT_TRUE(batch.ok()) << batch.status();
      for (std::int64_t i = 0; i < 13; ++i) {
        const std::int64_t index = (position + i) % kSize;
        const std::int64_t expected = broken.count(index) != 0 ? 10 + kBroken : index;
        ASSERT_EQ((*batch)->labels[static_cast<std::size_t>(i)], expected);
      }
    }
  }
  // Each sample of three passes once, the broken ones once more, and what was read ahead.
  EXPECT_LE(set->reads(),
            3 * kSize + kBroken + static_cast<std::int64_t>(kPrefetchBatches + 1) * 13);
}

TEST(TrainBatches, TooManyUnreadableSamplesEndTheRun) {
  const auto set = std::make_shared<GatedDataset>(20);
  set->break_at({3, 4, 5}, absl::DataLossError("damaged"));
  DataSpec data = shuffled();
  data.shuffle = false;
  data.max_corrupt_share = 0.1;
  auto batches = TrainBatches::start(set, data, kShape, placement(1, 0, 3)).value();
  EXPECT_TRUE(batches->next(kLong).ok()) << "samples 0 to 2";
  const absl::Status status = batches->next(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(
      status.message(),
      "more than 2 of 20 samples of numbered cannot be read, the last one is numbered, sample "
      "5: damaged; find them with `poseidon data check`, or raise data.max_corrupt_share");
  EXPECT_EQ(batches->next(kLong).status(), status) << "final";
}

TEST(TestBatches, TheNextReadableSampleStandsIn) {
  DataSpec data;
  data.max_corrupt_share = 1.0;
  const auto test = [&](std::set<std::int64_t> broken) {
    auto set = std::make_shared<GatedDataset>(5);
    set->break_at(std::move(broken), absl::DataLossError("damaged"));
    auto batches = TestBatches::start(set, data, kShape, placement(1, 0, 5)).value();
    const absl::StatusOr<const Batch*> batch = batches->next(kLong);
    return batch.ok() ? (*batch)->labels : std::vector<std::int32_t>{};
  };
  EXPECT_EQ(test({}), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(test({1, 4}), (std::vector<std::int32_t>{0, 2, 2, 3, 0}));
  EXPECT_EQ(test({0, 1, 2, 3, 4}), (std::vector<std::int32_t>{})) << "none is left";
}

/// A folder of golden images with everything random switched on, a file that is none among them.
TEST(Batches, ImagesDoNotDependOnThreadsOrWorkers) {
  const TestFolder folder;
  int number = 0;
  for (const auto& image : golden_images().at("decode")) {
    const std::vector<std::uint8_t> file = from_base64(image.at("file"));
    folder.write(std::string(number % 2 == 0 ? "a/" : "b/") + std::to_string(number) + ".jpg",
                 std::string(file.begin(), file.end()));
    ++number;
  }
  folder.write("a/99.png", "no image");
  DataSpec data = shuffled();
  data.train = {.format = "image_folder", .path = folder.path("")};
  data.test = data.train;
  data.max_corrupt_share = 0.05;
  data.transform.random_resized_crop.emplace().size = {16, 20};
  data.transform.mirror = true;
  data.transform.colour = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  data.transform.mean = {120, 110, 100};
  data.transform.deviation = {58, 57, 59};
  const Shape shape = {3, 16, 20};
  const auto images_of = [&](std::uint32_t workers, int threads) {
    std::vector<std::unique_ptr<TrainBatches>> parts;
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      auto part = TrainBatches::open(data, shape, 2, placement(workers, rank, 12 / workers),
                                     {.threads = threads});
      EXPECT_TRUE(part.ok()) << part.status();
      parts.push_back(*std::move(part));
    }
    std::vector<float> images;
    for (int iteration = 0; iteration < 10; ++iteration) {
      for (auto& part : parts) {
        const auto batch = part->next(kLong);
        EXPECT_TRUE(batch.ok()) << batch.status();
        if (!batch.ok()) return images;
        images.insert(images.end(), (*batch)->images.begin(), (*batch)->images.end());
        images.insert(images.end(), (*batch)->labels.begin(), (*batch)->labels.end());
      }
    }
    return images;
  };
  const std::vector<float> reference = images_of(1, 1);
  EXPECT_EQ(reference.size(), 120u * (3 * 16 * 20 + 1));
  EXPECT_EQ(images_of(1, 5), reference);
  const auto halves = images_of(2, 3);
  std::vector<float> sorted_halves = halves, sorted_reference = reference;
  std::sort(sorted_halves.begin(), sorted_halves.end());
  std::sort(sorted_reference.begin(), sorted_reference.end());
  EXPECT_EQ(sorted_halves, sorted_reference) << "the same samples, in other batches";
  // Tests: no random step, one batch on several threads as on one.
  const auto one = TestBatches::open(data, shape, 2, placement(1, 0, 15)).value();
  const auto many = TestBatches::open(data, shape, 2, placement(1, 0, 15), {.threads = 4}).value();
  for (std::int64_t i = 0; i < 2 * one->batches(); ++i) {
    const Batch& alone = **one->next(kLong);
    const Batch& together = **many->next(kLong);
    EXPECT_EQ(alone.images, together.images);
    EXPECT_EQ(alone.labels, together.labels);
  }
  // And what an image set cannot be.
  const auto error = [&](const Shape& input) {
    return std::string(TrainBatches::open(data, input, 2, placement(1, 0, 2)).status().message());
  };
  EXPECT_THAT(error({2, 16, 20}), HasSubstr("images are read as 1 (grey) or 3 (RGB) channels"));
  EXPECT_THAT(error({3, 16, 16}), HasSubstr("random_resized_crop.size to [16, 16]"));
  data.transform = {};
  EXPECT_THAT(error(shape), HasSubstr("images may have any size; give all one size"));
}

// Small parts of a large batch fit the device, and the batch does not fit the machine.
TEST(TrainBatches, ABatchThatNoMachineHoldsIsRefused) {
  const Shape shape = {3, 300, 300};
  const absl::Status status =
      TrainBatches::start(numbered(4, shape), shuffled(), shape, placement(1, 0, 1 << 20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("smaller batch_size"));
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

TEST(TrainBatches, FewerSamplesThanAnIterationTakesComeMoreThanOnceInIt) {
  for (const std::int64_t size : {1, 2, 5}) {
    Sampler sampler(size, /*shuffle=*/true, shuffled().seed);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<std::string> warnings;
      auto batches = TrainBatches::start(
          numbered(size), shuffled(), kShape, placement(3, rank, 7),
          {.threads = 2, .log = [&](const std::string& text) { warnings.push_back(text); }});
      ASSERT_TRUE(batches.ok()) << batches.status();
      for (int iteration = 0; iteration < 4; ++iteration) {
        const absl::StatusOr<const Batch*> batch = (*batches)->next(kLong);
        ASSERT_TRUE(batch.ok()) << batch.status();
        for (std::size_t i = 0; i < 7; ++i) {
          EXPECT_EQ((*batch)->labels[i],
                    sampler.index_at(first_position(iteration, 7, 3, rank) + i))
              << size << " samples, rank " << rank << ", iteration " << iteration;
        }
      }
      const std::string said = absl::StrCat("numbered: has ", size,
                                            " samples, but one iteration of 3 workers x batch_size "
                                            "7 takes 21: some are in it more than once");
      EXPECT_EQ(warnings, rank == 0 ? std::vector{said} : std::vector<std::string>());
    }
  }
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
        std::int64_t samples = 0;
        for (std::int64_t i = 0; i < tests->batches(); ++i) {
          const Batch& batch = **tests->next(kLong);
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

TEST(TestBatches, EachTestHasTheSameBatches) {
  auto tests = TestBatches::start(numbered(10), shuffled(), kShape, placement(1, 0, 4)).value();
  ASSERT_EQ(tests->batches(), 3);
  for (int test = 0; test < 3; ++test) {
    for (const auto& [labels, valid] : std::vector<std::pair<std::vector<std::int32_t>, int>>{
             {{0, 1, 2, 3}, 4}, {{4, 5, 6, 7}, 4}, {{8, 9, 9, 9}, 2}}) {
      const Batch& batch = **tests->next(kLong);
      EXPECT_EQ(batch.labels, labels);
      EXPECT_EQ(batch.valid_samples, valid);
      EXPECT_EQ(batch.first_sample, static_cast<std::uint64_t>(labels.front()));
    }
  }
}

/// Also the first batch of the next test, while the network trains.
TEST(TestBatches, ReadOneBatchAhead) {
  const auto dataset = std::make_shared<GatedDataset>(10);
  auto tests = TestBatches::start(dataset, shuffled(), kShape, placement(1, 0, 4)).value();
  ASSERT_TRUE(dataset->wait_for_reads(8)) << "two batches before anybody asks";
  ASSERT_TRUE(tests->next(kLong).ok());
  EXPECT_FALSE(dataset->wait_for_reads(9, Milliseconds(50))) << "there are two places";
  ASSERT_TRUE(tests->next(kLong).ok());
  ASSERT_TRUE(dataset->wait_for_reads(10)) << "the last two";
  ASSERT_TRUE(tests->next(kLong).ok());
  ASSERT_TRUE(dataset->wait_for_reads(14)) << "the next test's";
  EXPECT_EQ(dataset->reads(), 14);
}

TEST(TestBatches, SayWhenABatchIsLate) {
  const auto dataset = std::make_shared<GatedDataset>(10);
  dataset->allow(5);
  auto tests = TestBatches::start(dataset, shuffled(), kShape, placement(1, 0, 4)).value();
  ASSERT_TRUE(tests->next(kLong).ok());
  EXPECT_EQ(tests->next(Milliseconds(30)).status().code(), absl::StatusCode::kDeadlineExceeded);
  dataset->allow(1'000'000);
  const absl::StatusOr<const Batch*> batch = tests->next(kLong);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ((*batch)->first_sample, 4u);
}

TEST(TestBatches, ThereAreNoneForAWorkerWithoutSamples) {
  auto tests = TestBatches::start(numbered(2), shuffled(), kShape, placement(3, 0, 4)).value();
  EXPECT_EQ(tests->samples(), 0);
  EXPECT_EQ(tests->batches(), 0);
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
  const absl::Status slip = check_enough_samples(data, 10, placement(1, 0, 100'000));
  EXPECT_THAT(
      std::string(slip.message()),
      HasSubstr("has 1437 samples, but one iteration of 1 workers x batch_size 100000 takes "
                "100000, each more than 16 times: choose a batch_size of at most 1437"));
  EXPECT_EQ(TrainBatches::open(data, input, 10, placement(1, 0, 100'000)).status(), slip);
  EXPECT_TRUE(check_enough_samples(data, 10, placement(16, 0, 1400)).ok());
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
      HasSubstr("README.md: is neither IDX"));
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
}  // namespace poseidon::batches_test
