#pragma once

// The plan of a job: which layers go which way, how they are cut into chunks, who owns them, who
// talks to whom. Plain data, and what follows from it. Pure.
//
// Before: coordinator/planning/planner.h makes it, once per epoch. After: common/plan/plan_proto.h
// carries it to the nodes, which check all that they hear against it; people read it as plan.json.
//
// Offsets and sizes count elements unless a name says bytes; predictions are seconds (`_s`).
// Errors: INVALID_ARGUMENT, naming what does not fit.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/plan/calibration.h"
#include "common/plan/chunk_queue.h"
#include "common/tensor/element_type.h"
#include "common/tensor/optimizer.h"
#include "common/transport/windows.h"

namespace poseidon {

/// How one layer's gradients travel. coordinator/planning/planner.h chooses, by bytes or by time
/// (coordinator/planning/time_rule.h).
enum class Scheme { kPs, kSfb };
std::string_view scheme_name(Scheme scheme);        ///< "ps", "sfb"
std::string_view norm_scope_name(NormScope scope);  ///< "none", "layer", "network"

/// What a calibrated plan expects of a layer.
struct LayerPrediction {
  double ps_s = 0.0;       ///< how long the busiest NIC direction would carry it, by PS
  double sfb_s = 0.0;      ///< likewise by SFB; 0 where SFB does not apply
  double rebuild_s = 0.0;  ///< how long the device would rebuild its gradient by SFB
  double stall_s = 0.0;    ///< by its scheme: how long forward stands still for it
  double sync_s = 0.0;     ///< by its scheme: from its gradient's being ready to new parameters
};

/// What a calibrated plan expects of one iteration, and of the same cluster planned otherwise.
struct PlanPrediction {
  double iteration_s = 0.0;
  double compute_s = 0.0;   ///< of one worker that has nothing to synchronise
  double by_bytes_s = 0.0;  ///< with the schemes that move the fewest bytes
  double all_ps_s = 0.0;
  double all_sfb_s = 0.0;  ///< all layers that may go by SFB
};

/// One tensor of a layer, and how its steps differ.
struct PlanTensor {
  std::string name;           ///< "weight", "bias", ...
  std::int64_t elements = 0;  ///< > 0
  StepMultipliers multipliers;
};

/// One parameter layer, in forward order; its LayerIndex is its position in Plan::layers.
struct PlanLayer {
  std::string name;
  std::string type;                 ///< as in the network file, e.g. "convolution"
  std::vector<std::int64_t> shape;  ///< of the weight
  std::int64_t parameters = 0;      ///< elements of all its tensors together
  /// In the order in which they lie; empty: one tensor without a name, and nothing differs.
  std::vector<PlanTensor> tensors;
  Scheme scheme = Scheme::kPs;
  std::int64_t ps_bytes = 0;   ///< per node and iteration, were it to go by PS
  std::int64_t sfb_bytes = 0;  ///< likewise by SFB; 0 where SFB does not apply
  std::string reason;          ///< why this scheme, for people
  /// With Plan::prediction; does not travel to the nodes.
  std::optional<LayerPrediction> prediction;
};

/// A contiguous element range of one layer's parameters (all its tensors laid end to end in the
/// order weight, bias, ...). Its ChunkId is its position in Plan::chunks.
struct PlanChunk {
  LayerIndex layer;
  std::int64_t offset = 0;    ///< elements from the start of the layer
  std::int64_t elements = 0;  ///< > 0
  ServerIndex server;
};

/// The coordinator's answer for one membership. Immutable once made.
struct Plan {
  Epoch epoch;
  std::int64_t batch_size = 0;  ///< samples per worker
  /// Whether and for what norms servers hold steps back (common/wire/norm_wire.h).
  NormScope norm_scope = NormScope::kNone;
  /// How gradients go up and parameters come down; see data.proto for what is float32 all the same.
  ElementType wire_type = ElementType::kFloat32;
  SendOrder send_order = SendOrder::kNeed;    ///< on every stream
  std::vector<std::string> worker_addresses;  ///< by rank; "" where a worker listens nowhere
  std::vector<std::string> server_addresses;  ///< HOST:PORT by ServerIndex
  std::vector<PlanLayer> layers;
  /// Ordered by layer, then offset. Each PS layer is covered exactly once; an SFB layer has none:
  /// no server owns it, every worker steps its own copy. Empty when all layers go by SFB.
  std::vector<PlanChunk> chunks;
  /// How PS layers were cut: no chunk has more bytes (of float32), unless sync.plan gave the
  /// chunks. 0 where it is not known: plans of earlier versions.
  std::int64_t chunk_bytes = 0;
  /// What a worker has under way to all servers; servers to workers, and workers to each other,
  /// have twice as much (common/transport/windows.h).
  std::int64_t window_bytes = kWorkerWindowBytes;
  /// Local aggregation, by rank: through which worker's relay this one's gradients go to the
  /// servers, summed with those of all who go the same way (sync/relay/relay.h). A leader leads
  /// itself. The sum of all gradients is that of the groups' sums, in the order of their leaders:
  /// so this decides the last bits. Empty: no groups, and everybody goes to the servers itself.
  std::vector<WorkerRank> leaders;
  /// Set when the plan was made with a calibration; for plan.json and status, not for the nodes.
  std::optional<PlanPrediction> prediction;
  std::optional<Calibration> calibration;

  std::uint32_t workers() const { return static_cast<std::uint32_t>(worker_addresses.size()); }
  std::uint32_t servers() const { return static_cast<std::uint32_t>(server_addresses.size()); }
};

/// Through whose relay its gradients go; its own rank where it goes to the servers itself.
WorkerRank leader_of(const Plan& plan, WorkerRank rank);
/// Whose gradients go this leader's way, ascending: it alone where it goes to the servers itself.
std::vector<WorkerRank> group_of(const Plan& plan, WorkerRank leader);
/// Whom the servers hear, ascending: the leaders, or all workers without groups.
std::vector<WorkerRank> contributors(const Plan& plan);

/// Ranks by group, ascending, in the order of their leaders; none without groups. `leaders` as in
/// Plan.
std::vector<std::vector<std::uint32_t>> local_groups(const std::vector<WorkerRank>& leaders);

/// Checks the invariants above (every chunk in range, PS layers covered without gap or overlap, SFB
/// layers fully connected and without chunks, server known); what a node calls before it trusts a
/// plan that came over the wire.
absl::Status validate(const Plan& plan);

/// The part of it about chunks: looks at layers' parameters and schemes, at chunks, and at how many
/// servers there are.
absl::Status validate_chunks(const Plan& plan);

/// plan.json in the run directory.
std::string plan_to_json(const Plan& plan);

}  // namespace poseidon
