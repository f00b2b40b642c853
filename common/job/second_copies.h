#pragma once

// How large a chunk may be where servers keep second copies of checkpoints (checkpoint.replicas):
// it goes from one to the other in one message, with the optimizer's state. Pure.
// Before: a job's text, and the plan that it pins. After: server/store/replica_sender.h.

#include <cstdint>

#include "common/job/job.h"
#include "common/plan/chunking.h"
#include "common/tensor/optimizer.h"

namespace poseidon {

/// In bytes of parameters. `largest`: what a message holds.
inline std::int64_t most_chunk_bytes(const JobSpec& job, std::int64_t largest) {
  if (job.checkpoint.replicas == 1) return largest;
  const std::int64_t slots = 1 + optimizer_state_slots(job.optimizer);
  return largest / slots / kElementBytes * kElementBytes;
}

}  // namespace poseidon
