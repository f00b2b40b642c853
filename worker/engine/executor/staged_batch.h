#pragma once

// Uploads the images of the next batch to a device with its own memory while it computes on the
// current one.
//
// Called by: network_executor.h, for the batch that the trainer names (Executor::stage); it then
// computes on it. Calls: the device.
//
// A batch lies in pageable memory, from which a GPU copies slowly and synchronously. So a separate
// thread copies it piece by piece to pinned memory, and the executor's thread, which queues the
// pass meanwhile, starts the upload of each piece.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"
#include "worker/engine/executor/pass_times.h"

namespace poseidon {

/// One thread, besides its own one. The device and `times` outlive it.
class StagedBatch {
 public:
  /// For batches of `elements` floats. `times` measures their copies.
  static absl::StatusOr<std::unique_ptr<StagedBatch>> create(Device* device, PassTimes* times,
                                                             std::int64_t elements);
  ~StagedBatch();
  StagedBatch(const StagedBatch&) = delete;
  StagedBatch& operator=(const StagedBatch&) = delete;

  /// In which a batch goes up.
  std::size_t pieces() const;

  /// Names the batch that is meant below; forgets the one before.
  void name(const Batch& batch);
  bool is_of(const Batch& batch) const;

  /// The batch is read from now on, until complete(), rest() or take() has returned; nothing of it
  /// where none is named, or all of it has been.
  void begin();
  /// Starts the way up of what has been copied by now, for a later pass than this one.
  absl::Status advance();
  /// Waits for the rest, which takes as long as memory needs, and starts its way up likewise.
  absl::Status complete();
  /// Reads no more, and forgets the batch.
  void rest();

  /// Provides the images in `buffer` to operators queued from now on, by exchanging it (which must
  /// no longer be in use) for the memory that holds them. Copies the missing part. After an error
  /// `buffer` is unchanged.
  absl::Status take(DeviceMemory& buffer);

 private:
  StagedBatch(Device* device, PassTimes* times, std::int64_t elements)
      : device_(device), times_(times), elements_(elements) {}

  /// The thread's.
  void copy_batches();
  /// Whether there is a piece, which it has copied.
  bool copy_piece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using StartUpload = absl::Status (Device::*)(void* device, const void* host, std::int64_t bytes,
                                               const CopyMarks& marks);
  absl::Status start_up(std::int64_t copied, StartUpload start);
  /// Waits until all is copied, and starts the way up of what has not begun it.
  absl::Status start_rest(StartUpload start);

  Device* const device_;
  PassTimes* const times_;
  const std::int64_t elements_;
  DeviceMemory host_{nullptr, nullptr}, device_memory_{nullptr, nullptr};
  const Batch* batch_ = nullptr;    ///< null: none; not looked into
  const float* images_ = nullptr;   ///< of it
  std::uint64_t first_sample_ = 0;  ///< of it, by which it is known again
  std::int64_t started_ = 0;        ///< on their way up

  Mutex mutex_;
  CondVar changed_;
  const float* from_ ABSL_GUARDED_BY(mutex_) =
      nullptr;  ///< the batch that is being copied; null: none
  std::int64_t copied_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;  ///< a piece, without the mutex
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread copier_;  ///< last: it uses all of the above
};

}  // namespace poseidon
