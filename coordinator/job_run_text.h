#pragma once

// What the files of job_run.h say alike.

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "coordinator/job_run.h"

namespace poseidon {

inline double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

inline std::string participant_text(const Participant& participant) {
  return absl::StrFormat("%s %d (%s)", role_name(participant.node.role), participant.index,
                         node_place(participant.node));
}

inline bool is_lost(const Participant& p) { return p.state == ParticipantState::kLost; }

inline void refuse(JobActions& actions, Refusal refusal, std::string text) {
  actions.emplace_back(CountRefusal{.refusal = refusal, .text = std::move(text)});
}

}  // namespace poseidon
