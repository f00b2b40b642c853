#pragma once

// A node's part in a job, what a halted node holds, and how messages name a node. Plain values.
//
// Called by: roster.h, and all parts of coordinator/job/job_run.h.
// Calls: nothing.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// kHalted: has said what it holds. kWaiting: its epoch is over, the next one not begun.
enum class ParticipantState { kPreparing, kReady, kRunning, kFinished, kHalted, kWaiting, kLost };
constexpr const char* participant_state_name(ParticipantState state) {
  switch (state) {
    case ParticipantState::kPreparing:
      return "preparing";
    case ParticipantState::kReady:
      return "ready";
    case ParticipantState::kRunning:
      return "running";
    case ParticipantState::kFinished:
      return "finished";
    case ParticipantState::kHalted:
      return "halted";
    case ParticipantState::kWaiting:
      return "waiting";
    case ParticipantState::kLost:
      return "lost";
  }
  return "unknown";
}

/// A node with a part in the job.
struct Participant {
  NodeInfo node;
  std::uint32_t index = 0;  ///< WorkerRank or ServerIndex
  ParticipantState state = ParticipantState::kPreparing;
  bool is_new = false;        ///< came when the job had begun, and was never ready yet
  bool is_untried = false;    ///< ... and it has not yet completed a new iteration
  bool is_cut_off = false;    ///< lost because others do not reach it: nobody waits for its data
  std::uint64_t batches = 0;  ///< a worker's; see Training::on_batches
  /// A worker's: reports before this one it had made before it came back.
  Iteration kept_until = 0;
};

/// What a halted node can still give of what it has a part in.
struct HeldVersions {
  Iteration oldest = 0;
  Iteration newest = 0;  ///< less than `oldest` when its parts do not fit together
};

inline std::string participant_text(const Participant& participant) {
  return absl::StrFormat("%s %d (%s)", role_name(participant.node.role), participant.index,
                         node_place(participant.node));
}

/// "worker 1 (a:1), worker 3 (b:1)": those that are still in `state`.
inline std::string names_in(const std::vector<Participant>& participants, ParticipantState state) {
  std::vector<std::string> names;
  for (const Participant& p : participants) {
    if (p.state == state) names.push_back(participant_text(p));
  }
  return absl::StrJoin(names, ", ");
}

inline bool is_lost(const Participant& p) { return p.state == ParticipantState::kLost; }

inline bool all_in(const std::vector<Participant>& participants, ParticipantState state) {
  return std::ranges::all_of(participants,
                             [state](const Participant& p) { return p.state == state; });
}

}  // namespace poseidon
