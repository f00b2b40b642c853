#pragma once

// cost=time: predicts the iteration, and chooses the schemes and the servers' shares that make it
// shortest. Pure.
//
// Called by: planner.h, with layers, requested schemes and a calibration; it writes the result into
// the plan. Calls: link_model.h, iteration_model.h, scheme_search.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/calibration.h"
#include "common/plan/plan.h"
#include "common/tensor/element_type.h"
#include "coordinator/planning/cost/iteration_model.h"
#include "coordinator/planning/cost/scheme_search.h"

namespace poseidon {

struct PlannerLayer;

struct TimeRuleInput {
  const std::vector<PlannerLayer>* layers = nullptr;  ///< forward order
  std::int64_t batch_size = 0;
  std::vector<std::string> worker_addresses;
  std::vector<std::string> server_addresses;
  std::vector<WorkerRank> leaders;                 ///< as in Plan
  std::int64_t chunk_bytes = 0;                    ///< of float32
  std::int64_t window_bytes = kWorkerWindowBytes;  ///< as in Plan
  ElementType wire_type = ElementType::kFloat32;
  const Calibration* calibration = nullptr;  ///< fits layers and nodes
  std::vector<Scheme> by_bytes;              ///< schemes by the byte rule, and pinned ones
  /// Layers whose scheme may be chosen; the others keep by_bytes. Empty: predict only.
  std::vector<std::size_t> free;
};

struct TimeRuleResult {
  std::vector<Scheme> schemes;  ///< by layer
  std::vector<double> shares;   ///< by ServerIndex, sum 1: of every PS layer
  std::vector<LayerPrediction> layers;
  PlanPrediction prediction;
  std::vector<double> flipped_s;  ///< as in SearchResult
};

/// The layers as the model needs them, from their sizes and times.
std::vector<ModelLayer> model_layers(const std::vector<PlannerLayer>& layers,
                                     std::int64_t batch_size, std::size_t workers,
                                     ElementType wire_type, const Calibration& calibration);

/// Bytes on the wire of a chunk of `chunk_bytes` of float32.
std::int64_t chunk_bytes_on_wire(std::int64_t chunk_bytes, ElementType wire_type);

/// Never predicts a longer iteration than for by_bytes, or for all free layers by PS or by SFB.
TimeRuleResult apply_time_rule(const TimeRuleInput& input, const SearchOptions& options = {});

}  // namespace poseidon
