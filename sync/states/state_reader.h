#pragma once

// Reads from servers' stores what a worker keeps itself: at a restore its layers that go by SFB,
// with their optimizer state, and the running statistics; before a test worker 0's running
// statistics, from a server's memory.
//
// Before: worker/worker_job.h restores, or is about to test. After:
// common/checkpoint/store_client.h, to server/store/store_service.h.
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
  /// Between two looks for a state that is on its way ...
  Nanoseconds pause{Milliseconds(10)};
  /// ... and how long it may take in all.
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

  /// Until all requests are answered or one failed, with the transfer's error; cancel's reason
  /// after that. Their `on_data` run on the loop, and never after the return.
  absl::Status read(std::vector<StoreRequest> requests);

  /// Worker 0's own state of a version of this epoch, which is on its way to the server at
  /// `address` or there. DATA_LOSS when it is not of `values`' size, DEADLINE_EXCEEDED when it does
  /// not come.
  absl::Status read_held(const std::string& address, Epoch epoch, Iteration version,
                         std::span<float> values);

  // On any thread.

  /// Ends every call, now and later.
  void cancel(const absl::Status& reason);

 private:
  Transport* const stores_;
  const StateReaderOptions options_;

  Mutex mutex_;
  CondVar changed_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

/// Running statistics that came over the network, into memory of a known size; DATA_LOSS for
/// another size.
absl::Status copy_statistics(const Bytes& data, std::span<float> values);

}  // namespace poseidon
