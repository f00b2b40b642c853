#include "server/store/held_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {

void HeldStates::begin(Epoch epoch) {
  epoch_ = epoch;
  states_.clear();
}

absl::Status HeldStates::hold(SnapshotId snapshot, State state) {
  if (epoch_ == Epoch(0) || snapshot_epoch(snapshot) != epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("a state of epoch ",
                                                      snapshot_epoch(snapshot).value(),
                                                      ", this server is in ", epoch_.value()));
  }
  if (!states_.empty()) {
    if (snapshot <= states_.back().snapshot) return absl::OkStatus();
    // A gap: the states before it are of no use any more.
    if (snapshot_iteration(snapshot) != newest() + 1) states_.clear();
  }
  states_.push_back({snapshot, std::move(state)});
  if (states_.size() > kMaxHeldStates) states_.pop_front();
  return absl::OkStatus();
}

HeldStates::State HeldStates::find(SnapshotId snapshot) const {
  const auto found = std::find_if(states_.begin(), states_.end(), [snapshot](const Held& held) {
    return held.snapshot == snapshot;
  });
  return found == states_.end() ? nullptr : found->state;
}

}  // namespace poseidon
