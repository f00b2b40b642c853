#pragma once

// Gives worker 0's own state (running statistics) of every iteration to the servers that keep it
// with a checkpoint, in memory: should this worker be lost, it can still be saved, and the others
// test with it.
//
// send() never waits. wait() is called before the next iteration's gradients leave, so the state
// travels while that iteration computes forward; and no server ever makes a step for which the
// state before it is not held (server/store/held_states.h).
//
// Before: the trainer's thread ends an iteration. After: common/checkpoint/store_client.h, to
// server/store/store_service.h.
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
  /// `stores` speaks kStoreMethod and must outlive it. `addresses`: of all servers that keep it.
  /// `on_change` may be null; called on the loop when holds() may answer otherwise.
  StateSender(Transport* stores, Epoch epoch, std::vector<std::string> addresses,
              StoreTransferOptions options = {}, std::function<void()> on_change = {});
  /// Ends what is under way. Must not run on the loop.
  ~StateSender();
  StateSender(const StateSender&) = delete;
  StateSender& operator=(const StateSender&) = delete;

  // On the trainer's thread.

  /// Versions ascend. At most kMaxHeldStates are unanswered when wait() follows each.
  void send(Iteration version, std::vector<float> state);
  /// Until all servers hold this version. CANCELLED with cancel's reason; UNAVAILABLE naming the
  /// server that did not answer for options.give_up_after; what a server answered.
  absl::Status wait(Iteration version);

  // On any thread.

  /// Like wait, for who must not block: whether all hold it. Asked again after on_change.
  absl::StatusOr<bool> holds(Iteration version) const;
  /// Ends every wait, now and later.
  void cancel(const absl::Status& reason);

 private:
  struct Shared;
  const Epoch epoch_;
  const std::vector<std::string> addresses_;
  const std::shared_ptr<Shared> shared_;  ///< with the loop
  Transport* const stores_;
};

/// The servers that keep worker 0's own state, by the checkpoint's pieces.
std::vector<std::string> own_state_addresses(const std::vector<CheckpointPiece>& pieces,
                                             const Plan& plan);

}  // namespace poseidon
