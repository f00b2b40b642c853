#pragma once

// The plan of a job: each layer's scheme, its chunks, the servers that own them, and the
// connections between nodes. Plain data and functions of it. Pure.
//
// Called by: coordinator/planning/planner.h, which makes a plan once per epoch; the nodes, which
// receive it through common/plan/plan_proto.h and check every message against it. People read it as
// plan.json. Calls: nothing.
//
// Offsets and sizes count elements unless a name says bytes; predictions are seconds (`_s`).
// Errors: INVALID_ARGUMENT, naming the part that does not fit.

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
std::string_view norm_scope_name(NormScope scope);  ///< "none", "layer", "network", "program"

/// Predicted times of a layer.
struct LayerPrediction {
  double ps_s = 0.0;       ///< time that the busiest NIC direction would need for it, by PS
  double sfb_s = 0.0;      ///< likewise by SFB; 0 where SFB does not apply
  double rebuild_s = 0.0;  ///< time in which the device would rebuild its gradient, by SFB
  double stall_s = 0.0;    ///< by its scheme: time that the forward pass waits for it
  double sync_s = 0.0;     ///< by its scheme: from the complete gradient to new parameters
};

/// Predicted times of one iteration, and of other plans for the same cluster.
struct PlanPrediction {
  double iteration_s = 0.0;
  double compute_s = 0.0;   ///< of one worker, without synchronisation
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
  /// In memory order; empty: one unnamed tensor whose steps do not differ.
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

/// What streams of one epoch show, so that nobody sends under the rank of another worker. The
/// coordinator draws the numbers and tells each node those that it needs (StreamProofs in
/// control.proto). Empty in the coordinator, and in tests: then streams show 0.
struct StreamProofs {
  std::vector<std::uint64_t> expected;    ///< by rank: shown to this node by that worker's streams
  std::vector<std::uint64_t> to_servers;  ///< by ServerIndex: shown by streams of this worker
  std::vector<std::uint64_t> to_workers;  ///< by rank: likewise, also to that worker's relay
};

/// The coordinator's answer for one membership. Immutable once made.
struct Plan {
  Epoch epoch;
  std::int64_t batch_size = 0;  ///< samples per worker
  /// The norms for which servers delay steps, if any (common/wire/norm_wire.h).
  NormScope norm_scope = NormScope::kNone;
  /// Element type of gradients and parameters on the wire; data.proto lists the messages that are
  /// float32 regardless.
  ElementType wire_type = ElementType::kFloat32;
  SendOrder send_order = SendOrder::kNeed;    ///< on every stream
  std::vector<std::string> worker_addresses;  ///< by rank; "" where a worker does not listen
  std::vector<std::string> server_addresses;  ///< HOST:PORT by ServerIndex
  std::vector<PlanLayer> layers;
  /// Ordered by layer, then offset. Each PS layer is covered exactly once; an SFB layer has none:
  /// no server owns it, every worker steps its own copy. Empty when all layers go by SFB.
  std::vector<PlanChunk> chunks;
  /// Largest chunk of PS layers in bytes of float32, unless sync.plan gave the chunks. 0: unknown
  /// (plans of earlier versions).
  std::int64_t chunk_bytes = 0;
  /// Bytes that a worker may have in flight to all servers; servers to workers, and workers to each
  /// other, may have twice as much (common/transport/windows.h).
  std::int64_t window_bytes = kWorkerWindowBytes;
  /// Local aggregation: by rank, the worker (leader) whose relay sums this worker's gradients with
  /// those of its group and sends the sum to the servers (sync/relay/relay.h). A leader leads
  /// itself. The total is the sum of the groups' sums in the order of their leaders, so the groups
  /// affect the last bits. Empty: no groups; every worker sends to the servers itself.
  std::vector<WorkerRank> leaders;
  /// This node's own; not part of plan.json or of the plan's message.
  StreamProofs proofs;
  /// Set when the planner had a calibration. For plan.json and status; it is not sent to nodes.
  std::optional<PlanPrediction> prediction;
  std::optional<Calibration> calibration;

  std::uint32_t workers() const { return static_cast<std::uint32_t>(worker_addresses.size()); }
  std::uint32_t servers() const { return static_cast<std::uint32_t>(server_addresses.size()); }
};

/// What is shown to, or expected of, the node with this index; 0 where the coordinator drew
/// nothing.
std::uint64_t proof_at(const std::vector<std::uint64_t>& proofs, std::uint32_t index);

/// The worker whose relay sends this worker's gradients; its own rank where it sends them itself.
WorkerRank leader_of(const Plan& plan, WorkerRank rank);
/// The members of this leader's group, ascending; only itself where it has no group.
std::vector<WorkerRank> group_of(const Plan& plan, WorkerRank leader);
/// The workers that send to servers, ascending: the leaders, or all workers when there are no
/// groups.
std::vector<WorkerRank> contributors(const Plan& plan);

/// Ranks by group, ascending, in the order of their leaders; none without groups. `leaders` as in
/// Plan.
std::vector<std::vector<std::uint32_t>> local_groups(const std::vector<WorkerRank>& leaders);

/// Checks the invariants above (every chunk in range, PS layers covered without gap or overlap, SFB
/// layers fully connected and without chunks, server known); a node calls it before it trusts a
/// plan from the network.
absl::Status validate(const Plan& plan);

/// The part of it about chunks: looks at layers' parameters and schemes, at chunks, and at how many
/// servers there are.
absl::Status validate_chunks(const Plan& plan);

/// plan.json in the run directory.
std::string plan_to_json(const Plan& plan);

}  // namespace poseidon
