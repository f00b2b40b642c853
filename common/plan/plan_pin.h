#pragma once

// The parts of an earlier plan that a job's sync.plan repeats: schemes, chunk size, window size,
// the owners of chunks and the groups of local aggregation. It comes from plan.json of a run
// directory or from `poseidon plan --json`. Pure.
//
// Called by: coordinator/planning/planner.h, and manifests of checkpoints. Calls:
// common/files/json_fields.h.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "nlohmann/json_fwd.hpp"

namespace poseidon {

struct PinnedLayer {
  std::string name;
  std::vector<std::int64_t> shape;  ///< of the weight
  std::int64_t parameters = 0;
  Scheme scheme = Scheme::kPs;
};

struct PlanPin {
  std::uint32_t workers = 0;  ///< 0 where it is not known: what earlier versions wrote
  std::uint32_t servers = 0;
  std::vector<PinnedLayer> layers;  ///< forward order
  std::vector<PlanChunk> chunks;    ///< as in Plan; empty: place them anew
  std::int64_t chunk_bytes = 0;     ///< as in Plan; 0 where it is not known
  std::int64_t window_bytes = 0;    ///< likewise
  std::vector<WorkerRank> leaders;  ///< as in Plan
};

PlanPin pin_of(const Plan& plan);

/// Reads the keys it knows and ignores the rest of the file. INVALID_ARGUMENT, starting with
/// `source`, names the key that is missing or wrong. The planner checks whether the pin fits the
/// network.
absl::StatusOr<PlanPin> plan_pin_from_json(const nlohmann::json& json, std::string_view source);

/// Only what a pin needs: it travels with the job.
nlohmann::json plan_pin_to_json(const PlanPin& pin);

}  // namespace poseidon
