#pragma once

// The payloads of norms and totals (data.proto: CHUNK_KIND_NORMS, CHUNK_KIND_TOTALS), and which
// workers get them. Pure.
//
// Called by: server/shard/shard.h when a chunk's gradient is complete; sync/routes/norm_book.h,
// which adds up the norms and sends the totals back to the shard. Calls: common/plan/plan.h.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/tensor/optimizer.h"
#include "common/tensor/scan.h"
#include "common/transport/transport.h"

namespace poseidon {

/// The totals that a chunk's step waits for.
struct StepTotals {
  double all_gradients = 0.0;          ///< squares of the network's; 0 unless NormScope::kNetwork
  std::vector<TensorSquares> tensors;  ///< of the whole tensor, for each part of the chunk
  // Under NormScope::kProgram alone.
  double gradient_scale = 1.0;        ///< a factor of the mean gradient
  std::vector<StepRates> rates = {};  ///< for each part of the chunk
};

/// Whether this worker receives the squares of chunks: worker 0, which sends the totals, and every
/// worker where SFB layers wait for the network's norm, or where its program may ask for it.
bool hears_norms(const Plan& plan, WorkerRank rank);

std::size_t norms_bytes(std::size_t parts);
std::size_t totals_bytes(std::size_t parts, NormScope scope);
std::string encode_norms(const std::vector<TensorSquares>& parts);
/// With rates if `totals` has any: one per part then.
std::string encode_totals(const StepTotals& totals);

/// The payload must have the right size. INVALID_ARGUMENT for values that cannot be sums of
/// squares, or rates.
absl::StatusOr<std::vector<TensorSquares>> decode_norms(const Bytes& payload);
absl::StatusOr<StepTotals> decode_totals(const Bytes& payload, NormScope scope);

}  // namespace poseidon
