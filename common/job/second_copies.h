#pragma once

// Bounds the size of chunks where servers keep second copies of checkpoints (checkpoint.replicas):
// a chunk and its optimizer state travel to the other server in one message. Pure.
//
// Called by: the checks of a job and of the plan that it pins, so that
// server/store/replica_sender.h can send every chunk. Calls: nothing.

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
