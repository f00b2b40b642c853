#pragma once

// Sends worker 0's own state (running statistics) after every iteration to the servers that store
// it with a checkpoint. The servers hold it in memory: it can still be saved when this worker is
// lost, and the other workers test with it.
//
// send() never waits. wait() is called before the next iteration's gradients leave, so the state
// travels while that iteration computes forward, and a server makes no step before it holds the
// state of the iteration before (server/store/held_states.h).
//
// Called by: sync/node/worker_job.h, on the trainer's thread, at the end of each iteration. Calls:
// common/checkpoint/store_client.h, which talks to server/store/store_service.h.
//
// Threads: send and wait on the trainer's, cancel on any. The transfer lives on the loop.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/store_client.h"

namespace poseidon {

class StateSender {
 public:
  /// `stores` speaks kStoreMethod and must outlive it. `addresses`: of all servers that keep the
  /// state. `on_change` is called on the loop when the answer of holds() may have changed; may be
  /// null.
  StateSender(Transport* stores, Epoch epoch, std::vector<std::string> addresses,
              StoreTransferOptions options = {}, std::function<void()> on_change = {});
  /// Cancels all transfers. Must not run on the loop.
  ~StateSender();
  StateSender(const StateSender&) = delete;
  StateSender& operator=(const StateSender&) = delete;

  // On the trainer's thread.

  /// Versions ascend. At most kMaxHeldStates are unanswered when wait() follows each.
  void send(Iteration version, std::vector<float> state);
  /// Waits until all servers hold this version. Errors: CANCELLED with cancel's reason; UNAVAILABLE
  /// naming the server that did not answer for options.give_up_after; a server's own error.
  absl::Status wait(Iteration version);

  // On any thread.

  /// Whether all servers hold it; for callers that must not block. Ask again after on_change.
  absl::StatusOr<bool> holds(Iteration version) const;
  /// Ends every wait, current and future.
  void cancel(const absl::Status& reason);

 private:
  struct Shared;
  const Epoch epoch_;
  const std::vector<std::string> addresses_;
  const std::shared_ptr<Shared> shared_;  ///< shared with the loop
  Transport* const stores_;
};

/// The addresses of the servers that store worker 0's own state, by the checkpoint's pieces.
std::vector<std::string> own_state_addresses(const std::vector<CheckpointPiece>& pieces,
                                             const Plan& plan);

}  // namespace poseidon
