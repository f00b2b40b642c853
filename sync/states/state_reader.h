#pragma once

// Reads a worker's state from servers' stores. At a restore: its SFB layers with their optimizer
// state, and the running statistics. Before a test: worker 0's running statistics, from a server's
// memory.
//
// Called by: sync/node/worker_job.h. Calls: common/checkpoint/store_client.h, which talks to
// server/store/store_service.h.
//
// Threads: the calls wait on the job's thread, one at a time; cancel on any. Transfers live on the
// loop.

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/store_client.h"
#include "common/threads/mutex.h"

namespace poseidon {

struct StateReaderOptions {
  StoreTransferOptions transfer;
  /// Pause before asking again for a state that has not arrived at the server ...
  Nanoseconds pause{Milliseconds(10)};
  /// ... and the limit of the whole wait.
  Nanoseconds give_up_after = std::chrono::seconds(30);
};

class StateReader {
 public:
  /// `stores` speaks kStoreMethod and must outlive it.
  explicit StateReader(Transport* stores, StateReaderOptions options = {})
      : stores_(stores), options_(options) {}
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  // On the job's thread.

  /// Waits until all requests are answered or one failed. Returns the transfer's error, or cancel's
  /// reason. Their `on_data` run on the loop, and never after the return.
  absl::Status read(std::vector<StoreRequest> requests);

  /// Reads worker 0's own state of a version of this epoch, which the server at `address` has or is
  /// about to receive. DATA_LOSS when it does not have `values`' size, DEADLINE_EXCEEDED when the
  /// server does not get it in time.
  absl::Status read_held(const std::string& address, Epoch epoch, Iteration version,
                         std::span<float> values);

  // On any thread.

  /// Ends every call, current and future.
  void cancel(const absl::Status& reason);

 private:
  Transport* const stores_;
  const StateReaderOptions options_;

  Mutex mutex_;
  CondVar changed_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

/// Copies received running statistics to `values`; DATA_LOSS when the sizes differ.
absl::Status copy_statistics(const Bytes& data, std::span<float> values);

}  // namespace poseidon
