#pragma once

// Worker 0's own state (running statistics) of the last few iterations, so that it is not lost with
// that worker. Pure; one thread.
//
// Before: server/store/store_service.h took a state. After: server/store/checkpoint_keeper.h makes
// a piece of it when what is held in memory is saved; workers read it before they test.
//
// Why three are enough: worker 0 sends no gradient of iteration i before the state after i
// iterations is here. So when any chunk has made step i + 1, that state is here; it may be needed
// until all chunks have; and by then worker 0 has sent two later ones at most.

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

  /// A new epoch; those of the one before are dropped. Epoch 0: none is taken.
  void begin(Epoch epoch);
  Epoch epoch() const { return epoch_; }

  /// FAILED_PRECONDITION: of another epoch. One that is there already, or older than all that are,
  /// changes nothing.
  absl::Status hold(SnapshotId snapshot, State state);
  /// Null where it is not held.
  State find(SnapshotId snapshot) const;

  /// No state was sent in this epoch: worker 0 has none.
  bool empty() const { return states_.empty(); }
  /// All from one to the other are held; not when empty.
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
