#pragma once

// Whether the checkpoints of a job have as many copies as it asks for (checkpoint.replicas). Pure.
//
// Called by: coordinator/job/saving.h, several times a second while the job trains.
// Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/checkpoint/checkpoint.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// How many copies of each piece are in stores that are here; of the piece that has the fewest.
std::int64_t copies_here(const CheckpointManifest& manifest, const std::vector<NodeInfo>& members);

/// One job's. One thread only.
class CheckpointCopies {
 public:
  enum class State : std::uint8_t {
    kWhole,
    kOldOnes,         ///< there are servers enough, but the newest checkpoint is from before
    kServersMissing,  ///< each new checkpoint has too few
  };

  /// `wanted`: checkpoint.replicas. `pause`: between two attempts to make the newest whole.
  CheckpointCopies(std::int64_t wanted, Nanoseconds pause) : wanted_(wanted), pause_(pause) {}

  /// `servers`: of the epoch that trains. `newest`: copies of the job's newest checkpoint, as
  /// copies_here counts; nothing when it has none. True: the state has changed.
  bool look(std::size_t servers, std::optional<std::int64_t> newest);
  State state() const { return state_; }
  /// The newest checkpoint has too few copies, and another one would have enough: it is time to ask
  /// for one. The next time is a pause later.
  bool take_wish(Nanoseconds now);
  /// Copies that are missing of each piece, at most.
  std::int64_t missing() const { return wanted_ - has_; }
  /// For people: how many there are, how many servers are missing, what to do; "" when whole.
  std::string text() const;

 private:
  const std::int64_t wanted_;
  const Nanoseconds pause_;
  State state_ = State::kWhole;
  std::int64_t has_ = wanted_;
  std::size_t servers_ = 0;
  std::optional<Nanoseconds> wished_;
};

}  // namespace poseidon
