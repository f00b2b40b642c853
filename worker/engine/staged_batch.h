#pragma once

// The images of the next batch, on their way to a device with memory of its own while it computes
// on this one.
//
// Before: the trainer names the batch (Executor::stage). After: network_executor.h computes on it.
//
// A batch lies in ordinary memory, from which a GPU copies slowly and while everybody waits. So it
// goes to a buffer from which it can copy by itself, piece by piece, in the time in which the
// executor's thread would wait for the device: no piece takes long enough to hold a gradient up.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"
#include "worker/engine/pass_times.h"

namespace poseidon {

/// One thread. The device outlives it.
class StagedBatch {
 public:
  /// For batches of so many floats. `times` measures their copies, and outlives it.
  static absl::StatusOr<std::unique_ptr<StagedBatch>> create(Device* device, PassTimes* times,
                                                             std::int64_t elements);
  /// In which a batch goes up.
  std::size_t pieces() const;

  /// Between passes. Forgets what was begun before; `batch` must stay as it is until it is taken or
  /// forgotten.
  void begin(const Batch& batch);
  bool is_of(const Batch& batch) const;

  bool has_more() const { return batch_ != nullptr && copied_ < elements_; }
  /// Copies one more piece and starts its way up.
  absl::Status copy_piece();

  /// Has the images in `buffer` for operators that are queued from now on, by exchanging it, which
  /// nobody may use any more, for the memory where they are. Copies what is missing. After an error
  /// `buffer` is what it was.
  absl::Status take(DeviceMemory& buffer);

 private:
  StagedBatch(Device* device, PassTimes* times, std::int64_t elements)
      : device_(device), times_(times), elements_(elements) {}

  Device* const device_;
  PassTimes* const times_;
  const std::int64_t elements_;
  DeviceMemory host_{nullptr, nullptr}, device_memory_{nullptr, nullptr};
  const Batch* batch_ = nullptr;    ///< null: none
  std::uint64_t first_sample_ = 0;  ///< of it, by which it is known again
  std::int64_t copied_ = 0;
};

}  // namespace poseidon
