#include "worker/data/batches.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/process_load.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "worker/data/helper_threads.h"
#include "worker/data/sampler.h"

namespace poseidon {
namespace {

std::string shape_text(const Shape& shape) { return absl::StrJoin(shape, "x"); }

/// What the user can do about samples of another shape than the network's input.
std::string shape_remedy(const TransformSpec& spec, const Shape& sample, const Shape& input) {
  if (input.size() != 3) return "give the network an input of that many values";
  if (sample[0] != input[0]) {
    return str_cat("give the network an input of ", sample[0], " channels, or take other data");
  }
  if (spec.random_resized_crop) {
    return str_cat("set data.transform.random_resized_crop.size to [", input[1], ", ", input[2],
                   "]");
  }
  const char* key = spec.random_crop.empty() ? "resize" : "random_crop";
  const std::int64_t pad = spec.random_crop.empty() ? 2 * spec.pad : 0;
  if (input[1] <= pad || input[2] <= pad) return "lower data.transform.pad";
  return str_cat("set data.transform.", key, " to [", input[1] - pad, ", ", input[2] - pad, "]");
}

/// What samples will be when read: encoded images become what the network takes, grey or RGB.
absl::StatusOr<Shape> decoded_shape(const Dataset& dataset, const Shape& input_shape) {
  Shape shape = dataset.sample_shape();
  if (shape[0] != 0) return shape;
  shape[0] = input_shape.size() == 3 ? input_shape[0] : 3;
  if (shape[0] == 1 || shape[0] == 3) return shape;
  return absl::InvalidArgumentError(str_cat(
      dataset.name(), ": images are read as 1 (grey) or 3 (RGB) channels, the network takes ",
      shape[0], "; give it an input of 1 or 3 channels"));
}

absl::StatusOr<Transform> make_transform(const Dataset& dataset, const DataSpec& data,
                                         const Shape& input_shape) {
  POSEIDON_ASSIGN_OR_RETURN(const Shape decoded, decoded_shape(dataset, input_shape));
  absl::StatusOr<Transform> transform = Transform::make(data.transform, data.seed, decoded);
  if (!transform.ok()) {
    return absl::InvalidArgumentError(
        str_cat(dataset.name(), ": ", from_absl(transform.status().message())));
  }
  const Shape& sample = transform->output_shape();
  // A network of vectors (an MLP) takes an image's values in their order.
  const bool is_flat =
      input_shape.size() == 1 && element_count(sample) == element_count(input_shape);
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

void size_batch(Batch& batch, std::int64_t samples, const Shape& shape) {
  batch.samples = samples;
  batch.images.resize(static_cast<std::size_t>(samples * element_count(shape)));
  batch.labels.resize(static_cast<std::size_t>(samples));
}

/// The place of sample `i` in the batch.
std::span<float> image_of(Batch& batch, std::int64_t i) {
  const std::size_t size = batch.images.size() / batch.labels.size();
  return std::span(batch.images).subspan(static_cast<std::size_t>(i) * size, size);
}

/// One reader per thread, and what they share.
std::vector<SampleReader> make_readers(const std::shared_ptr<const Dataset>& dataset,
                                       const DataSpec& data, const Transform& transform,
                                       const BatchOptions& options) {
  POSEIDON_CHECK(options.threads >= 1 && options.threads <= kMaxDataThreads, "data threads");
  const auto corrupt =
      std::make_shared<CorruptSamples>(dataset, data.max_corrupt_share, options.probe, options.log);
  std::vector<SampleReader> readers;
  for (int i = 0; i < options.threads; ++i) readers.emplace_back(dataset, transform, corrupt);
  return readers;
}

std::size_t batch_bytes(std::int64_t batch_size, const Shape& shape) {
  return static_cast<std::size_t>(batch_size * element_count(shape)) * sizeof(float);
}

std::size_t slots_for(std::int64_t batch_size, const Shape& shape) {
  return std::clamp<std::size_t>(kMaxPrefetchBytes / batch_bytes(batch_size, shape), 2,
                                 kPrefetchBatches + 1);
}

absl::Status no_memory(std::int64_t batch_size, const Shape& shape) {
  return absl::ResourceExhaustedError(
      str_cat("batches of ", batch_size, " samples take ",
              slots_for(batch_size, shape) * batch_bytes(batch_size, shape) >> 20,
              " MiB, as one is read while another is computed: too much for this machine; use a "
              "smaller batch_size (micro_batches divide what is computed, not what is read)"));
}

bool fits_memory(std::int64_t batch_size, const Shape& shape) {
  return static_cast<double>(slots_for(batch_size, shape)) *
             static_cast<double>(batch_bytes(batch_size, shape)) <
         static_cast<double>(installed_memory_bytes());
}

}  // namespace

int default_data_threads(int cores) { return std::clamp(cores / 2, 1, 32); }

/// A ring of batches between the threads and one consumer (next). Batch n of the run lies in slot n
/// % slots. Threads take pieces of batches in order; the counters below say who may touch which
/// slot, so the batches themselves need no lock.
class TrainBatches::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Transform& transform,
       const BatchPlacement& placement, const BatchOptions& options)
      : dataset_(std::move(dataset)),
        placement_(placement),
        probe_(options.probe != nullptr ? options.probe : std::make_shared<DataProbe>()),
        piece_samples_(std::clamp<std::int64_t>(placement.batch_size / (4 * options.threads), 1,
                                                kMaxPieceSamples)),
        readers_(make_readers(dataset_, data, transform, options)),
        slots_(slots_for(placement.batch_size, transform.output_shape())),
        sampler_(dataset_->size(), data.shuffle, data.seed),
        ahead_(dataset_->size(), data.shuffle, data.seed) {
    // Here rather than in a thread: memory that is missing is missed before training starts.
    for (Slot& slot : slots_) {
      size_batch(slot.batch, placement_.batch_size, transform.output_shape());
    }
  }

  /// Once; fewer threads than asked for will do.
  absl::Status start_reading() {
    try {
      for (SampleReader& reader : readers_) {
        threads_.emplace_back([this, &reader] { work(reader); });
      }
    } catch (const std::system_error& error) {
      if (threads_.empty()) {
        return absl::ResourceExhaustedError(
            str_cat("no thread to read data with: ", error.what(), "; raise the limit on tasks"));
      }
    }
    return absl::OkStatus();
  }

  ~Impl() {
    stopping_ = true;
    {
      const std::lock_guard lock(mutex_);  // so that a thread about to wait does not miss the word
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
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
        lock, start + timeout, [this] { return produced_ > taken_ || taken_ >= failed_batch_; });
    const auto waited = std::chrono::steady_clock::now() - start;
    probe_->stalled(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count()));
    if (produced_ > taken_) {
      probe_->ready(produced_ - taken_ - 1);
      return &slot_of(taken_++).batch;
    }
    if (is_ready) return failure_;
    return absl::DeadlineExceededError(
        str_cat(dataset_->name(), ": the batch of iteration ",
                placement_.first_iteration + static_cast<Iteration>(taken_),
                " was not read and transformed within ", timeout.count(), " ms"));
  }

  const Batch* peek() {
    const std::lock_guard lock(mutex_);
    return produced_ > taken_ ? &slot_of(taken_).batch : nullptr;
  }

  double stall_seconds() const { return probe_->stall_seconds(); }
  const Dataset& dataset() const { return *dataset_; }

 private:
  static constexpr std::int64_t kMaxPieceSamples = 16;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  struct Slot {
    Batch batch;
    std::int64_t missing = 0;  ///< samples that are not read yet; guarded by mutex_
  };

  /// Some neighbouring samples of one batch.
  struct Piece {
    std::uint64_t batch = 0;
    std::int64_t first = 0;  ///< in the batch
    std::vector<std::int64_t> indices;
    std::vector<std::int64_t> ahead;  ///< indices that some later piece will have
  };

  Slot& slot_of(std::uint64_t batch) { return slots_[batch % slots_.size()]; }

  /// Position in the run of sample `i` of batch number `batch` of this worker.
  std::uint64_t position_of(std::uint64_t batch, std::int64_t i) const {
    return placement_.samples_before +
           first_position(static_cast<Iteration>(batch), placement_.batch_size, placement_.workers,
                          placement_.rank) +
           static_cast<std::uint64_t>(i);
  }

  /// Waits until there is something to do; false when there never will be.
  bool take(Piece& piece) {
    std::unique_lock lock(mutex_);
    // Woken by next() and by the destructor, one of which comes: no deadline needed.
    changed_.wait(lock, [&] {
      return stopping_ || failed_batch_ != kNever || next_batch_ < released_ + slots_.size();
    });
    if (stopping_ || failed_batch_ != kNever) return false;
    piece.batch = next_batch_;
    piece.first = next_sample_;
    if (next_sample_ == 0) begin_batch(next_batch_);
    const std::int64_t end = std::min(placement_.batch_size, next_sample_ + piece_samples_);
    piece.indices.clear();
    piece.ahead.clear();
    for (; next_sample_ < end; ++next_sample_) {
      piece.indices.push_back(sampler_.index_at(position_of(next_batch_, next_sample_)));
      if (dataset_->reads_ahead()) piece.ahead.push_back(ahead_.index_at(position_ahead()));
    }
    if (next_sample_ == placement_.batch_size) {
      next_sample_ = 0;
      ++next_batch_;
    }
    return true;
  }

  /// Of the sample kReadAheadSamples behind the next one.
  std::uint64_t position_ahead() const {
    const std::int64_t sample = next_sample_ + kReadAheadSamples;
    return position_of(next_batch_ + static_cast<std::uint64_t>(sample / placement_.batch_size),
                       sample % placement_.batch_size);
  }

  void begin_batch(std::uint64_t number) {
    Slot& slot = slot_of(number);
    slot.missing = placement_.batch_size;
    slot.batch.first_sample = position_of(number, 0);
    slot.batch.valid_samples = slot.batch.samples;
  }

  void work(SampleReader& reader) {
    Piece piece;
    while (take(piece)) {
      for (const std::int64_t index : piece.ahead) dataset_->will_read(index);
      const absl::Status status = fill(reader, piece);
      if (stopping_) return;
      const std::lock_guard lock(mutex_);
      if (status.ok()) {
        slot_of(piece.batch).missing -= static_cast<std::int64_t>(piece.indices.size());
      } else if (piece.batch < failed_batch_) {
        failed_batch_ = piece.batch;
        failure_ = status;
      }
      const std::uint64_t begun = next_batch_ + (next_sample_ > 0 ? 1 : 0);
      while (produced_ < begun && slot_of(produced_).missing == 0) ++produced_;
      changed_.notify_all();
    }
  }

  absl::Status fill(SampleReader& reader, const Piece& piece) {
    Batch& batch = slot_of(piece.batch).batch;
    for (std::size_t i = 0; i < piece.indices.size() && !stopping_; ++i) {
      const std::int64_t place = piece.first + static_cast<std::int64_t>(i);
      POSEIDON_RETURN_IF_ERROR(reader.read(
          piece.indices[i], position_of(piece.batch, place), Phase::kTrain, image_of(batch, place),
          batch.labels[static_cast<std::size_t>(place)], &stopping_));
    }
    return absl::OkStatus();
  }

  // Constant after construction.
  const std::shared_ptr<const Dataset> dataset_;
  const BatchPlacement placement_;
  const std::shared_ptr<DataProbe> probe_;
  const std::int64_t piece_samples_;

  std::vector<SampleReader> readers_;  ///< one for each thread, and only its

  // Samples of slot n % slots: of the thread that took them while released_ + slots > n >=
  // produced_, the caller's afterwards.
  std::vector<Slot> slots_;

  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Numbers of batches: released_ <= taken_ <= produced_ <= next_batch_ + 1 <=
  // released_ + slots + 1; no batch from failed_batch_ on is produced.
  Sampler sampler_;
  Sampler ahead_;
  std::uint64_t next_batch_ = 0;  ///< what is taken next, and where in it
  std::int64_t next_sample_ = 0;
  std::uint64_t produced_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t failed_batch_ = kNever;
  absl::Status failure_;

  std::vector<std::thread> threads_;
};

namespace {

/// What may be an oversight.
void tell_remarks(const Dataset& dataset, std::int64_t classes, const BatchOptions& options) {
  if (!options.log) return;
  for (const std::string& remark : dataset.remarks()) options.log(remark);
  const auto names = static_cast<std::int64_t>(dataset.class_names().size());
  if (names > 0 && names < classes) {
    options.log(str_cat(dataset.name(), ": has ", names, " classes of the ", classes,
                        " that the network tells apart"));
  }
}

}  // namespace

TrainBatches::TrainBatches(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainBatches::~TrainBatches() = default;

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::open(const DataSpec& data,
                                                                 const Shape& input_shape,
                                                                 std::int64_t classes,
                                                                 const BatchPlacement& placement,
                                                                 const BatchOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(data.train, classes));
  tell_remarks(*dataset, classes, options);
  return start(std::move(dataset), data, input_shape, placement, options);
}

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::start(
    std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Shape& input_shape,
    const BatchPlacement& placement, const BatchOptions& options) {
  check_placement(placement);
  POSEIDON_ASSIGN_OR_RETURN(const Transform transform, make_transform(*dataset, data, input_shape));
  const std::int64_t iteration_samples = placement.batch_size * placement.workers;
  if (iteration_samples > dataset->size() && placement.rank == 0 && options.log) {
    options.log(str_cat(dataset->name(), ": has ", dataset->size(),
                        " samples, but one iteration of ", placement.workers,
                        " workers x batch_size ", placement.batch_size, " takes ",
                        iteration_samples, ": some are in it more than once"));
  }
  const Shape& shape = transform.output_shape();
  if (!fits_memory(placement.batch_size, shape)) return no_memory(placement.batch_size, shape);
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(std::move(dataset), data, transform, placement, options);
  } catch (const std::bad_alloc&) {
    return no_memory(placement.batch_size, shape);
  }
  POSEIDON_RETURN_IF_ERROR(impl->start_reading());
  return std::unique_ptr<TrainBatches>(new TrainBatches(std::move(impl)));
}

const Batch* TrainBatches::peek() { return impl_->peek(); }

absl::StatusOr<const Batch*> TrainBatches::next(Milliseconds timeout) {
  return impl_->next(timeout);
}

double TrainBatches::stall_seconds() const { return impl_->stall_seconds(); }

const Dataset& TrainBatches::dataset() const { return impl_->dataset(); }

TestBatches::TestBatches(std::shared_ptr<const Dataset> dataset, std::vector<SampleReader> readers,
                         Shape sample_shape, const BatchPlacement& placement)
    : dataset_(std::move(dataset)),
      readers_(std::move(readers)),
      sample_shape_(std::move(sample_shape)),
      batch_size_(placement.batch_size),
      begin_(dataset_->size() * placement.rank / placement.workers),
      end_(dataset_->size() * (std::int64_t{placement.rank} + 1) / placement.workers) {}

absl::StatusOr<std::unique_ptr<TestBatches>> TestBatches::open(const DataSpec& data,
                                                               const Shape& input_shape,
                                                               std::int64_t classes,
                                                               const BatchPlacement& placement,
                                                               const BatchOptions& options) {
  POSEIDON_CHECK(data.test.has_value(), "the job has no test data");
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            open_dataset(*data.test, classes));
  if (!dataset->class_names().empty()) {
    POSEIDON_ASSIGN_OR_RETURN(const std::vector<std::string> names, class_names_of(data.train));
    POSEIDON_RETURN_IF_ERROR(check_same_classes(names, dataset->class_names()));
  }
  tell_remarks(*dataset, classes, options);
  return start(std::move(dataset), data, input_shape, placement, options);
}

absl::StatusOr<std::unique_ptr<TestBatches>> TestBatches::start(
    std::shared_ptr<const Dataset> dataset, const DataSpec& data, const Shape& input_shape,
    const BatchPlacement& placement, const BatchOptions& options) {
  check_placement(placement);
  POSEIDON_ASSIGN_OR_RETURN(const Transform transform, make_transform(*dataset, data, input_shape));
  // Pixels need no decoding: starting threads would cost more than it gains.
  BatchOptions used = options;
  if (dataset->sample_shape()[0] != 0) used.threads = 1;
  std::vector<SampleReader> readers = make_readers(dataset, data, transform, used);
  return std::unique_ptr<TestBatches>(
      new TestBatches(std::move(dataset), std::move(readers), transform.output_shape(), placement));
}

std::int64_t TestBatches::batches() const { return (samples() + batch_size_ - 1) / batch_size_; }

absl::Status TestBatches::read(std::int64_t index, Batch& batch, const std::atomic<bool>* stop) {
  POSEIDON_CHECK(index >= 0 && index < batches(), "test batch out of range");
  const std::int64_t first = begin_ + index * batch_size_;
  size_batch(batch, batch_size_, sample_shape_);
  batch.first_sample = static_cast<std::uint64_t>(first);
  batch.valid_samples = std::min(batch_size_, end_ - first);
  std::vector<absl::Status> failures(readers_.size());
  std::atomic<std::int64_t> next{0};
  const auto work = [&](std::size_t thread) {
    for (std::int64_t i = next++; i < batch.valid_samples && failures[thread].ok(); i = next++) {
      failures[thread] = readers_[thread].read(first + i, static_cast<std::uint64_t>(first + i),
                                               Phase::kTest, image_of(batch, i),
                                               batch.labels[static_cast<std::size_t>(i)], stop);
    }
  };
  work_with_helpers(readers_.size(), work);
  for (const absl::Status& failure : failures) POSEIDON_RETURN_IF_ERROR(failure);
  const std::span<const float> last = image_of(batch, batch.valid_samples - 1);
  for (std::int64_t i = batch.valid_samples; i < batch_size_; ++i) {
    std::copy(last.begin(), last.end(), image_of(batch, i).begin());
    batch.labels[static_cast<std::size_t>(i)] =
        batch.labels[static_cast<std::size_t>(batch.valid_samples - 1)];
  }
  return absl::OkStatus();
}

}  // namespace poseidon
