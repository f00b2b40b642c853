#include "worker/data/batches.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "worker/data/sampler.h"

namespace poseidon {
namespace {

std::size_t count_of(const Shape& shape) {
  std::size_t count = 1;
  for (const std::int64_t dimension : shape) count *= static_cast<std::size_t>(dimension);
  return count;
}

std::string shape_text(const Shape& shape) { return absl::StrJoin(shape, "x"); }

/// What the user can do about samples of another shape than the network's input.
std::string shape_remedy(const TransformSpec& spec, const Shape& sample, const Shape& input) {
  if (input.size() != 3) return "give the network an input of that many values";
  if (sample[0] != input[0]) {
    return str_cat("give the network an input of ", sample[0], " channels, or take other data");
  }
  const char* key = spec.random_crop.empty() ? "resize" : "random_crop";
  const std::int64_t pad = spec.random_crop.empty() ? 2 * spec.pad : 0;
  if (input[1] <= pad || input[2] <= pad) return "lower data.transform.pad";
  return str_cat("set data.transform.", key, " to [", input[1] - pad, ", ", input[2] - pad, "]");
}

absl::StatusOr<Transform> make_transform(const Dataset& dataset, const DataSpec& data,
                                         const Shape& input_shape) {
  POSEIDON_ASSIGN_OR_RETURN(Transform transform,
                            Transform::make(data.transform, data.seed, dataset.sample_shape()));
  const Shape& sample = transform.output_shape();
  // A network of vectors (an MLP) takes an image's values in their order.
  const bool is_flat = input_shape.size() == 1 && count_of(sample) == count_of(input_shape);
  if (sample != input_shape && !is_flat) {
    return absl::InvalidArgumentError(str_cat(dataset.name(), ": samples are ", shape_text(sample),
                                              " after data.transform, the network takes ",
                                              shape_text(input_shape), "; ",
                                              shape_remedy(data.transform, sample, input_shape)));
  }
  return transform;
}

void check_placement(const BatchPlacement& placement) {
  POSEIDON_CHECK(placement.workers >= 1 && placement.rank < placement.workers,
                 "rank outside the workers");
  POSEIDON_CHECK(placement.batch_size >= 1, "batch size below 1");
  POSEIDON_CHECK(placement.first_iteration >= 0, "negative iteration");
}

void size_batch(Batch& batch, std::int64_t samples, const Transform& transform) {
  const auto count = static_cast<std::size_t>(samples);
  batch.samples = samples;
  batch.images.resize(count * count_of(transform.output_shape()));
  batch.labels.resize(count);
}

/// Reads and transforms one sample into its place in the batch. `pixels`: scratch.
absl::Status fill_sample(const Dataset& dataset, std::int64_t index, std::uint64_t position,
                         Phase phase, Transform& transform, std::vector<std::uint8_t>& pixels,
                         Batch& batch, std::size_t place) {
  POSEIDON_RETURN_IF_ERROR(dataset.read(index, pixels, batch.labels[place]));
  const std::size_t size = count_of(transform.output_shape());
  transform.apply(pixels, position, phase, std::span(batch.images).subspan(place * size, size));
  return absl::OkStatus();
}

}  // namespace

/// A ring of batches between one producer (the thread) and one consumer (next). Batch n of the run
/// lies in slot n % kSlots. The counters below say who may touch which slot; the batches themselves
/// need no lock.
class TrainBatches::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, const DataSpec& data, Transform transform,
       const BatchPlacement& placement)
      : dataset_(std::move(dataset)),
        placement_(placement),
        transform_(std::move(transform)),
        sampler_(dataset_->size(), data.shuffle, data.seed),
        pixels_(count_of(dataset_->sample_shape())) {
    // Here rather than in the thread: memory that is missing is missed before training starts.
    for (Batch& batch : slots_) size_batch(batch, placement_.batch_size, transform_);
    thread_ = std::thread([this] { produce(); });
  }

  ~Impl() {
    stopping_ = true;
    {
      const std::lock_guard lock(mutex_);  // so that a thread about to wait does not miss the word
    }
    changed_.notify_all();
    thread_.join();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::StatusOr<const Batch*> next(Milliseconds timeout) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    // The slot handed out by the last successful call is the caller's until now.
    released_ = taken_;
    changed_.notify_all();
    const bool is_ready = changed_.wait_until(
        lock, start + timeout, [this] { return produced_ > taken_ || !failure_.ok(); });
    stall_ += std::chrono::steady_clock::now() - start;
    if (produced_ > taken_) return &slots_[static_cast<std::size_t>(taken_++ % kSlots)];
    if (is_ready) return failure_;
    return absl::DeadlineExceededError(
        str_cat(dataset_->name(), ": the batch of iteration ",
                placement_.first_iteration + static_cast<Iteration>(taken_),
                " was not read and transformed within ", timeout.count(), " ms"));
  }

  double stall_seconds() const {
    const std::lock_guard lock(mutex_);
    return std::chrono::duration<double>(stall_).count();
  }

 private:
  static constexpr std::uint64_t kSlots = kPrefetchBatches + 1;

  void produce() {
    for (std::uint64_t number = 0;; ++number) {
      {
        std::unique_lock lock(mutex_);
        // Woken by next() and by the destructor, one of which comes: no deadline needed.
        changed_.wait(lock, [&] { return stopping_ || number < released_ + kSlots; });
      }
      if (stopping_) return;
      const absl::Status status = fill(number);
      if (stopping_) return;
      const std::lock_guard lock(mutex_);
      failure_ = status;
      if (status.ok()) produced_ = number + 1;
      changed_.notify_all();
      if (!status.ok()) return;
    }
  }

  absl::Status fill(std::uint64_t number) {
    Batch& batch = slots_[static_cast<std::size_t>(number % kSlots)];
    batch.first_sample = first_position(placement_.first_iteration + static_cast<Iteration>(number),
                                        placement_.batch_size, placement_.workers, placement_.rank);
    batch.valid_samples = batch.samples;
    for (std::size_t i = 0; i < batch.labels.size() && !stopping_; ++i) {
      const std::uint64_t position = batch.first_sample + i;
      POSEIDON_RETURN_IF_ERROR(fill_sample(*dataset_, sampler_.index_at(position), position,
                                           Phase::kTrain, transform_, pixels_, batch, i));
    }
    return absl::OkStatus();
  }

  // Constant after construction.
  const std::shared_ptr<const Dataset> dataset_;
  const BatchPlacement placement_;

  // The thread only.
  Transform transform_;
  Sampler sampler_;
  std::vector<std::uint8_t> pixels_;

  // Slot n % kSlots: the thread's while released_ + kSlots > n >= produced_, the caller's
  // afterwards.
  std::array<Batch, kSlots> slots_;

  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Numbers of batches: released_ <= taken_ <= produced_ <= released_ + kSlots.
  std::uint64_t produced_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t released_ = 0;
  absl::Status failure_;
  std::chrono::steady_clock::duration stall_{};

  std::thread thread_;
};

TrainBatches::TrainBatches(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainBatches::~TrainBatches() = default;

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::open(const DataSpec& data,
                                                                 const Shape& input_shape,
                                                                 std::int64_t classes,
                                                                 const BatchPlacement& placement) {
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(data.train, classes));
  return start(std::move(dataset), data, input_shape, placement);
}

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::start(
    std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Shape& input_shape,
    const BatchPlacement& placement) {
  check_placement(placement);
  POSEIDON_ASSIGN_OR_RETURN(Transform transform, make_transform(*dataset, data, input_shape));
  const std::int64_t iteration_samples = placement.batch_size * placement.workers;
  if (iteration_samples > dataset->size()) {
    return absl::InvalidArgumentError(
        str_cat(dataset->name(), ": has ", dataset->size(), " samples, but one iteration of ",
                placement.workers, " workers x batch_size ", placement.batch_size, " takes ",
                iteration_samples, "; lower batch_size or use fewer workers"));
  }
  return std::unique_ptr<TrainBatches>(new TrainBatches(
      std::make_unique<Impl>(std::move(dataset), data, std::move(transform), placement)));
}

absl::StatusOr<const Batch*> TrainBatches::next(Milliseconds timeout) {
  return impl_->next(timeout);
}

double TrainBatches::stall_seconds() const { return impl_->stall_seconds(); }

TestBatches::TestBatches(std::shared_ptr<const Dataset> dataset, Transform transform,
                         const BatchPlacement& placement)
    : dataset_(std::move(dataset)),
      transform_(std::move(transform)),
      batch_size_(placement.batch_size),
      begin_(dataset_->size() * placement.rank / placement.workers),
      end_(dataset_->size() * (std::int64_t{placement.rank} + 1) / placement.workers),
      pixels_(count_of(dataset_->sample_shape())) {}

absl::StatusOr<std::unique_ptr<TestBatches>> TestBatches::open(const DataSpec& data,
                                                               const Shape& input_shape,
                                                               std::int64_t classes,
                                                               const BatchPlacement& placement) {
  POSEIDON_CHECK(data.test.has_value(), "the job has no test data");
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(*data.test, classes));
  return start(std::move(dataset), data, input_shape, placement);
}

absl::StatusOr<std::unique_ptr<TestBatches>> TestBatches::start(
    std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Shape& input_shape,
    const BatchPlacement& placement) {
  check_placement(placement);
  POSEIDON_ASSIGN_OR_RETURN(Transform transform, make_transform(*dataset, data, input_shape));
  return std::unique_ptr<TestBatches>(
      new TestBatches(std::move(dataset), std::move(transform), placement));
}

std::int64_t TestBatches::batches() const { return (samples() + batch_size_ - 1) / batch_size_; }

absl::Status TestBatches::read(std::int64_t index, Batch& batch) {
  POSEIDON_CHECK(index >= 0 && index < batches(), "test batch out of range");
  const std::int64_t first = begin_ + index * batch_size_;
  size_batch(batch, batch_size_, transform_);
  batch.first_sample = static_cast<std::uint64_t>(first);
  batch.valid_samples = std::min(batch_size_, end_ - first);
  for (std::int64_t i = 0; i < batch_size_; ++i) {
    const std::int64_t sample = std::min(first + i, end_ - 1);
    POSEIDON_RETURN_IF_ERROR(fill_sample(*dataset_, sample, static_cast<std::uint64_t>(sample),
                                         Phase::kTest, transform_, pixels_, batch,
                                         static_cast<std::size_t>(i)));
  }
  return absl::OkStatus();
}

}  // namespace poseidon
