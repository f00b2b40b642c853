#pragma once

// A ring of slots in which threads read and transform batches ahead of one consumer.
//
// Called by: worker/data/feed/batches.h, which chooses the samples and takes batches with next().
// Calls: worker/data/feed/sample_reader.h.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/probes/data_probe.h"
#include "common/threads/mutex.h"
#include "worker/data/batch.h"
#include "worker/data/feed/sample_reader.h"
#include "worker/data/feed/sampler.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

/// Memory limit of a ring's batches; two are kept even beyond it.
inline constexpr std::size_t kMaxPrefetchBytes = std::size_t{1} << 30;
/// How many samples ahead of reading the system prefetches.
inline constexpr std::int64_t kReadAheadSamples = 64;

/// The samples of each batch, by position (sampler.h): batch n begins at first + n * stride.
struct BatchSequence {
  Phase phase = Phase::kTrain;
  std::int64_t batch_size = 0;
  std::uint64_t first = 0;
  std::uint64_t stride = 0;
  /// The sequence restarts after this many samples; the last batch of a pass is padded with its
  /// last sample, which does not count (valid_samples). 0: endless.
  std::int64_t pass_samples = 0;
};

class BatchRing {
 public:
  /// The number of slots for batches of this size: at least two, at most `most`, and otherwise
  /// within kMaxPrefetchBytes.
  static std::size_t slots_for(std::size_t batch_bytes, std::size_t most);

  /// `slots`: how many batches are in memory, the one that the caller holds included; at least 2.
  /// One thread for each of `readers`. `sample_shape` is the network's input; `probe` counts how
  /// long next() waits; may be null. Throws std::bad_alloc where there is no memory for the slots.
  BatchRing(std::shared_ptr<const Dataset> dataset, Sampler sampler, const BatchSequence& sequence,
            std::vector<SampleReader> readers, const Shape& sample_shape, std::size_t slots,
            std::shared_ptr<DataProbe> probe);
  ~BatchRing();  ///< stops the threads; waits for the samples that they are reading
  BatchRing(const BatchRing&) = delete;
  BatchRing& operator=(const BatchRing&) = delete;

  /// Call once. Fewer threads than requested suffice; RESOURCE_EXHAUSTED without any.
  absl::Status start();

  /// The next batch, valid until the following call. DEADLINE_EXCEEDED when it is not ready after
  /// `timeout` (the next call waits for the same one); any other error is the data set's, and
  /// final. One thread.
  absl::StatusOr<const Batch*> next(Milliseconds timeout);
  /// The result of the next call of next() if it is ready; null otherwise. The same thread.
  const Batch* peek();

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
  std::uint64_t in_pass(std::uint64_t batch) const;
  std::int64_t valid_samples(std::uint64_t batch) const;
  std::uint64_t position_of(std::uint64_t batch, std::int64_t i) const;
  std::uint64_t position_ahead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool take(Piece& piece);
  void begin_batch(std::uint64_t number);
  void work(SampleReader& reader);
  absl::Status fill(SampleReader& reader, const Piece& piece);

  // Constant after construction.
  const std::shared_ptr<const Dataset> dataset_;
  const BatchSequence sequence_;
  const std::shared_ptr<DataProbe> probe_;  ///< may be null
  const std::int64_t piece_samples_;

  std::vector<SampleReader> readers_;  ///< one for each thread, and only its

  // Batch n lies in slot n % slots and needs no lock: while released_ + slots > n >= produced_ it
  // belongs to the threads that took its samples, afterwards to the caller.
  std::vector<Slot> slots_;

  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  // Numbers of batches: released_ <= taken_ <= produced_ <= next_batch_ + 1 <=
  // released_ + slots + 1; no batch from failed_batch_ on is produced.
  Sampler sampler_ ABSL_GUARDED_BY(mutex_);
  Sampler ahead_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) =
      0;  ///< the next batch to take, and the position in it
  std::int64_t next_sample_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t produced_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t released_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t failed_batch_ ABSL_GUARDED_BY(mutex_) = kNever;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace poseidon
