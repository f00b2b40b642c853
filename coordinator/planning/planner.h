#pragma once

// Makes a Plan from network, batch, members and sync options. Pure.
//
// Called by: coordinator/job/job_run.h, with a resolved job and its nodes; it sends the plan to
// every node. Calls: time_rule.h, message_sizes.h, local_groups.h, placement.h.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/job/job.h"
#include "common/plan/calibration.h"
#include "common/plan/plan.h"

namespace poseidon {

/// What the shortest predicted iteration must save before a *measured* calibration may leave the
/// schemes of an earlier run, or without one the byte rule's: measurements of two runs differ a
/// little, schemes round differently, and the same job should give the same bits. A share of the
/// iteration.
inline constexpr double kLeastMeasuredGain = 0.05;

/// The properties of one parameter layer that planning needs.
struct PlannerLayer {
  std::string name;
  std::string type;                 ///< as in the network file
  std::vector<std::int64_t> shape;  ///< of the weight; fully connected: {M out, N in}
  std::int64_t parameters = 0;      ///< elements of all tensors together
  bool is_fully_connected = false;
  std::vector<PlanTensor> tensors;  ///< as in PlanLayer
  std::int64_t multiply_adds = 0;   ///< per sample, forward
};

/// What an earlier run of the same job on such machines was planned as. Its schemes are all that
/// the result's bits depend on: sizes of messages and owners of chunks are chosen anew.
struct EarlierPlan {
  std::string job_id;                     ///< whose plan it was
  std::map<std::string, Scheme> schemes;  ///< by layer: all whose weight is a matrix
  bool operator==(const EarlierPlan&) const = default;
};

struct PlannerInput {
  std::vector<PlannerLayer> layers;  ///< forward order
  std::int64_t batch_size = 0;       ///< K, per worker
  Epoch epoch;
  std::vector<std::string> worker_addresses;  ///< by rank
  std::vector<std::string> server_addresses;  ///< by ServerIndex
  SyncSpec sync;
  NormScope norm_scope = NormScope::kNone;  ///< of the job's optimizer
  /// By rank and ServerIndex: names of machines, more reliable than addresses but in the same form;
  /// empty: use the addresses. For workers that are to be grouped.
  std::vector<std::string> worker_machines, server_machines;
  /// Groups (or none) to keep, as in Plan::leaders; unset: those of sync.plan, or by machine.
  std::optional<std::vector<WorkerRank>> leaders = std::nullopt;
  /// Unset: cost=time has no times, so the byte rule chooses and there is no prediction.
  std::optional<Calibration> calibration;
  /// Whose schemes are taken again where the choice is by a measured calibration, and hardly any
  /// other is shorter.
  std::optional<EarlierPlan> earlier = std::nullopt;
};

/// The numbers of nodes of each kind, and of workers that send gradients to servers: all, or, with
/// local aggregation, one per group.
struct NodeNumbers {
  std::uint32_t workers = 0;
  std::uint32_t servers = 0;
  std::uint32_t contributors = 0;
};
/// Bytes that one node, worker and server together, moves per iteration for one layer. With groups
/// (G contributors among P1 workers) a node is a machine of P1 / G workers, with what crosses its
/// link.
struct SchemeCosts {
  std::int64_t ps_bytes = 0;  ///< 2 M N (G + P2 - 2) / P2 of the wire type, rounded up
  /// 2 K (P1 - 1) (M + N) of float32, with groups 2 K P1^2 (G - 1) / G^2 (M + N), rounded up; 0
  /// where SFB does not apply.
  std::int64_t sfb_bytes = 0;
  bool sfb_applies = false;
};

/// By the formulas of SchemeCosts (Zhang et al.: "Poseidon", USENIX ATC 2017, section 3.2; groups
/// are ours). For a fully connected layer M N is its weight alone (its bias costs the same either
/// way); for any other layer M N stands for all its parameters.
SchemeCosts scheme_costs(const PlannerLayer& layer, std::int64_t batch_size, NodeNumbers nodes,
                         ElementType wire_type = ElementType::kFloat32);

struct SchemeChoice {
  Scheme scheme = Scheme::kPs;
  std::string reason;  ///< for people
};

/// The value of sync.scheme for this layer: "auto", "ps" or "sfb". Under "sfb" for the whole
/// network, layers without factors go by PS.
std::string_view asked_scheme(const PlannerLayer& layer, const SyncSpec& sync);

/// The byte rule: SFB where it moves at most as many bytes as PS, unless sync.scheme asks
/// otherwise.
SchemeChoice choose_scheme(const PlannerLayer& layer, const SchemeCosts& costs,
                           const SyncSpec& sync);

/// INVALID_ARGUMENT when sync.scheme names a layer that the network does not have or wants SFB for
/// one without factors, or sync.plan (its content, not a path) is invalid or belongs to another
/// network; the message names the key and the remedy.
absl::Status check_sync(const std::vector<PlannerLayer>& layers, const SyncSpec& sync);

/// INVALID_ARGUMENT when input.calibration, which must be set, has impossible numbers, or has other
/// layers or another number of nodes.
absl::Status check_calibration(const PlannerInput& input);

/// With sync.cost "time" and a calibration: the schemes with the shortest predicted iteration
/// (time_rule.h; with a measured one see kLeastMeasuredGain and EarlierPlan), chunks to servers by
/// free bandwidth;
/// how much is under way, and where sync.chunk_bytes is unset and no norms are taken the size of
/// chunks, 2 MiB down to 64 KiB, by message_sizes.h. Otherwise the byte rule, equal bytes. Workers
/// of one machine are grouped (local_groups.h) unless sync.local_aggregation, norms or fp16 (whose
/// range a sum leaves sooner than its terms) forbid it.
/// With sync.plan: its schemes, its chunks too if it was made for as many servers, and its groups,
/// or that it has none, if it was made for as many workers. INVALID_ARGUMENT
/// when the result would be no valid plan (no nodes, no parameters, equal names) or the calibration
/// does not fit; the message says which.
absl::StatusOr<Plan> make_plan(const PlannerInput& input);

}  // namespace poseidon
