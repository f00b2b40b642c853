#pragma once

// The payloads of norms and totals (data.proto: CHUNK_KIND_NORMS, CHUNK_KIND_TOTALS), and who gets
// them. Pure.
//
// Before: server/shard/shard.h has a chunk's gradient complete. After: sync/routes/norm_book.h adds
// up, and the totals come back to the shard.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/tensor/square_sum.h"
#include "common/transport/transport.h"

namespace poseidon {

/// What the step of a chunk waits for.
struct StepTotals {
  double all_gradients = 0.0;          ///< squares of the network's; 0 unless NormScope::kNetwork
  std::vector<TensorSquares> tensors;  ///< the whole tensor's, for each part of the chunk
};

/// Whether this worker is told the squares of chunks: worker 0, who sends the totals, and where
/// layers that go by SFB wait for the network's norm, everybody.
bool hears_norms(const Plan& plan, WorkerRank rank);

std::size_t norms_bytes(std::size_t parts);
std::size_t totals_bytes(std::size_t parts);
std::string encode_norms(const std::vector<TensorSquares>& parts);
std::string encode_totals(const StepTotals& totals);

/// The payload must have the right size. INVALID_ARGUMENT for values that no sum of squares has.
absl::StatusOr<std::vector<TensorSquares>> decode_norms(const Bytes& payload);
absl::StatusOr<StepTotals> decode_totals(const Bytes& payload);

}  // namespace poseidon
