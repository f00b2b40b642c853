#pragma once

// What the files of job_run.h say alike.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/job/job_run.h"

namespace poseidon {

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

inline void refuse(JobActions& actions, Refusal refusal, std::string text) {
  actions.emplace_back(CountRefusal{.refusal = refusal, .text = std::move(text)});
}

}  // namespace poseidon
