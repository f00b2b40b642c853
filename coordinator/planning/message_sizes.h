#pragma once

// How large chunks are and how much of them is under way, for schemes that are given. Pure.
// Before: coordinator/planning/planner.h. It asks: coordinator/planning/time_rule.h. After: Plan
// (common/plan/plan.h).

#include <cstdint>

#include "coordinator/planning/time_rule.h"

namespace poseidon {

/// What smaller messages must save, as a share of the predicted iteration. Where the model expects
/// 1.4 % of them 2 to 6 % were measured (bench/RESULTS.md): it has no queues but its own.
inline constexpr double kLeastGainOfSmallerMessages = 0.01;

struct MessageSizes {
  std::int64_t chunk_bytes;   ///< as in Plan
  std::int64_t window_bytes;  ///< likewise
};

/// The window is kWorkerWindowBytes; kShortWorkerWindowBytes where the busiest link has not clearly
/// more to do than the devices, if the iteration gets no longer in the model.
/// With `may_choose_chunks` they are input.chunk_bytes down to an eighth of that, the largest with
/// which the iteration is within kLeastGainOfSmallerMessages of the shortest, as smaller ones wait
/// less for each other and cost more CPU; where the window is the short one, down to a
/// thirty-second, the window then with them.
MessageSizes choose_message_sizes(TimeRuleInput input, bool may_choose_chunks);

}  // namespace poseidon
