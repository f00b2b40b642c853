#pragma once

// Chooses the size of chunks and the window, for given schemes; both go into the Plan. Pure.
//
// Called by: coordinator/planning/planner.h. Calls: coordinator/planning/time_rule.h.

#include <cstdint>

#include "coordinator/planning/time_rule.h"

namespace poseidon {

/// The least saving by smaller messages, as a share of the predicted iteration. Where the model
/// predicts 1.4 %, 2 to 6 % were measured (bench/RESULTS.md), because it only models its own
/// queues.
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
