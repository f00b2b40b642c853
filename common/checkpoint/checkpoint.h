#pragma once

// The parts of a checkpoint, and how its pieces fit a cluster of another shape. Pure.
//
// Called by: servers, which store pieces (server/store/checkpoint_keeper.h); the coordinator, which
// commits (coordinator/job/checkpoints/checkpoint_commit.h); servers and workers of a later epoch,
// which fetch the pieces they need. Calls: common/plan/plan.h.
//
// A checkpoint is the state after exactly `iteration` optimizer steps: for every element of every
// parameter layer its value and its optimizer slots, and worker 0's own state. It is cut into
// pieces. A PS layer's pieces are its chunks, stored by the server that owns them. All workers have
// equal copies of an SFB layer; they take turns to send its pieces, and servers take turns to store
// them. The last piece is worker 0's own state (running statistics of batch normalisation).

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/job/data_identity.h"
#include "common/plan/plan.h"
#include "common/plan/plan_pin.h"
#include "common/wire/snapshot.h"

namespace poseidon {

struct CheckpointPiece {
  std::optional<LayerIndex> layer;  ///< nullopt: worker 0's own state
  std::int64_t offset = 0;          ///< elements from the start of the layer
  std::int64_t elements = 0;        ///< 0 for worker 0's own state: only the worker knows
  ServerIndex holder;
  std::optional<WorkerRank> giver;    ///< worker that sends it; nullopt: the holder owns it
  std::optional<ServerIndex> second;  ///< keeps it too (checkpoint.replicas)
};

/// Largest piece of an SFB layer: with two optimizer slots it still fits into one message.
inline constexpr std::int64_t kMaxGivenPieceBytes = 16 << 20;

/// `plan` is valid. `chunk_bytes` is the job's sync.chunk_bytes, `replicas` its
/// checkpoint.replicas: with 2, the server after a piece's holder keeps the piece too, so that any
/// one server may be lost for good.
std::vector<CheckpointPiece> checkpoint_pieces(const Plan& plan, std::int64_t chunk_bytes,
                                               std::int64_t replicas = 1);
/// Number of pieces that a server stores, as holder or as second.
std::size_t pieces_at(const std::vector<CheckpointPiece>& pieces, ServerIndex server);
/// INVALID_ARGUMENT, naming the key, when the job wants more copies than it has servers.
absl::Status check_replicas(std::int64_t replicas, std::size_t servers);

/// Part of a piece that fills part of a wanted range.
struct PieceRange {
  PieceId piece;
  std::int64_t in_piece = 0;  ///< elements from the start of the piece
  std::int64_t in_range = 0;  ///< elements from the start of the wanted range
  std::int64_t elements = 0;
};

/// Finds the pieces of a layer.
class PieceIndex {
 public:
  /// `pieces` must outlive it, unchanged.
  explicit PieceIndex(const std::vector<CheckpointPiece>& pieces);

  /// Where elements [offset, offset + elements) of a layer lie, in ascending order. DATA_LOSS,
  /// naming the first missing element, when the pieces have a hole.
  absl::StatusOr<std::vector<PieceRange>> covering(LayerIndex layer, std::int64_t offset,
                                                   std::int64_t elements) const;

 private:
  const std::vector<CheckpointPiece>& pieces_;
  std::map<LayerIndex, std::vector<PieceId>> of_layer_;  ///< in ascending order
};

/// All that is needed to resume from a checkpoint. A checkpoint is committed when its manifest is
/// on the coordinator's disk.
struct CheckpointManifest {
  SnapshotId snapshot;
  std::string job_id;
  std::string job_name;
  std::string job_json;  ///< as submitted
  std::string run_directory;
  std::uint32_t workers = 0;
  std::uint32_t begun_with = 0;  ///< workers of the run's first epoch
  std::uint64_t samples = 0;     ///< that all workers have taken so far: the position in the data
  std::optional<double> loss;    ///< of the iteration before
  std::int64_t time_unix_s = 0;  ///< when it was committed
  std::int64_t bytes = 0;        ///< in all stores together
  std::vector<std::string> stores;  ///< by ServerIndex: identity of the store that holds the pieces
  std::vector<CheckpointPiece> pieces;
  PlanPin plan;  ///< schemes and chunks of the epoch that saved
  /// The data of the run; nullopt in checkpoints made before 2026-11-26.
  std::optional<DataIdentity> data;

  Iteration iteration() const { return snapshot_iteration(snapshot); }
};

/// By ServerIndex: whether any piece lies in its store.
std::vector<bool> stores_in_use(const CheckpointManifest& manifest);
/// Whether every piece lies in a connected store. `here`: by ServerIndex.
bool is_reachable(const CheckpointManifest& manifest, const std::vector<bool>& here);

/// "the server whose --data-dir has STORE_IDENTITY 01ab..., with a part of checkpoint 3-100": the
/// unconnected stores with pieces of it, joined by commas; "" when all are connected. Pure.
std::string missing_stores(const CheckpointManifest& manifest,
                           const std::function<bool(const std::string& identity)>& is_here);

std::string manifest_to_json(const CheckpointManifest& manifest);
/// Checks everything. INVALID_ARGUMENT, starting with `source`, names the key that is missing or
/// wrong. DATA_LOSS: the checksum does not match.
absl::StatusOr<CheckpointManifest> manifest_from_json(std::string_view text,
                                                      std::string_view source);

/// The identity that a store gets when it is created: 32 hexadecimal digits.
bool is_store_identity(std::string_view text);

}  // namespace poseidon
