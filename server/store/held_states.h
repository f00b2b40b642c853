#pragma once

// Keeps worker 0's own state (running statistics) of the last few iterations, so that it is not
// lost with that worker. Pure; one thread.
//
// Called by: server/store/checkpoint_keeper.h, for states from server/store/store_service.h; it
// stores one as a piece when memory is saved, and workers read one before they test. Calls:
// nothing.
//
// Why three are enough: worker 0 sends no gradient of iteration i before the state after i
// iterations has arrived. So when any chunk has made step i + 1, that state is here. It may be
// needed until all chunks have made the step, and by then worker 0 has sent at most two later ones.

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// States of one epoch in memory at a time.
inline constexpr std::size_t kMaxHeldStates = 3;

class HeldStates {
 public:
  using State = std::shared_ptr<const std::vector<float>>;

  /// Begins an epoch and drops earlier states. Epoch 0: accepts none.
  void begin(Epoch epoch);
  Epoch epoch() const { return epoch_; }

  /// FAILED_PRECONDITION: another epoch. A state that is already held, or older than all held ones,
  /// changes nothing.
  absl::Status hold(SnapshotId snapshot, State state);
  /// Null where it is not held.
  State find(SnapshotId snapshot) const;

  /// No state was sent in this epoch: worker 0 has none.
  bool empty() const { return states_.empty(); }
  /// All iterations between the two are held. Must not be empty.
  Iteration oldest() const { return snapshot_iteration(states_.front().snapshot); }
  Iteration newest() const { return snapshot_iteration(states_.back().snapshot); }

 private:
  struct Held {
    SnapshotId snapshot;
    State state;
  };
  Epoch epoch_;
  std::deque<Held> states_;  ///< iterations without a gap, ascending
};

}  // namespace poseidon
