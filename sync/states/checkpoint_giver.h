#pragma once

// A worker's part of a checkpoint: pieces of layers that no server owns (SFB; all workers have
// equal copies and share the work), and, from worker 0, its own state.
//
// When a worker is lost in the middle of an iteration, the others save the version before it from
// their memory (give_held). For that, each worker keeps the version before the last step of its own
// pieces and of the pieces of the rank before it, whose deputy it is. So besides its SFB layers a
// worker holds 2 / P1 of their parameters and optimizer slots once more, in the same memory as the
// layers.
//
// Called by: sync/node/worker_job.h, on the trainer's thread, when a version is reached that is to
// be saved. Calls: factor_state.h for the values; common/checkpoint/store_client.h, which sends the
// copies to the servers that store them.
//
// Threads: save_at on any, all else on the trainer's. The transfers live on the transport's loop.

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/store_client.h"
#include "common/threads/mutex.h"
#include "sync/states/factor_state.h"

namespace poseidon {

/// Versions in transfer to the servers at a time. A further version fails, because each one is a
/// copy of all of this worker's pieces.
inline constexpr std::size_t kMaxVersionsUnderWay = 2;

struct CheckpointGiverOptions {
  Iteration first_iteration = 0;   ///< of this run; its version is not saved again
  Iteration every_iterations = 0;  ///< 0: only when asked
  std::int64_t chunk_bytes = 0;    ///< the job's
  std::int64_t replicas = 1;       ///< the job's
  StoreTransferOptions transfer;
};

class CheckpointGiver {
 public:
  /// Reports why this worker's part of a version is missing. Called on any thread.
  using Failed = std::function<void(Iteration version, const std::string& reason, MissingPart why)>;

  /// `stores` speaks kStoreMethod. `state` is for plans with SFB layers. Both must outlive it.
  CheckpointGiver(Transport* stores, const Plan& plan, WorkerRank rank, FactorState* state,
                  CheckpointGiverOptions options, Failed failed);
  /// Cancels all transfers. Must not run on the loop.
  ~CheckpointGiver();
  CheckpointGiver(const CheckpointGiver&) = delete;
  CheckpointGiver& operator=(const CheckpointGiver&) = delete;

  // On any thread.

  /// Saves this version too, besides the periodic ones.
  void save_at(Iteration version);

  // On the trainer's thread.

  /// An SFB layer has `version` steps: copies its pieces when the version is to be saved. Fails
  /// when the layer's memory cannot be read.
  absl::Status layer_at(LayerIndex layer, Iteration version);
  /// An SFB layer of `version` steps is about to make another step: keeps the old version. When
  /// there is no memory for it, logs that once and keeps nothing from then on; a recovery then goes
  /// back to a checkpoint.
  absl::Status keep(LayerIndex layer, Iteration version);

  struct Held {
    Iteration oldest = 0;
    Iteration newest = std::numeric_limits<Iteration>::max();
  };
  /// The versions of SFB layers that this worker can give, after training has halted.
  Held held() const;
  /// Sends this worker's pieces of a held version, and those of `lost` ranks whose deputy it is.
  /// Worker 0's own state is left out: servers hold it. FAILED_PRECONDITION when this worker does
  /// not have the version.
  absl::Status give_held(Iteration version, const std::set<WorkerRank>& lost);

  /// Worker 0, after every iteration: whether to call own_state_at, and the call itself with the
  /// state.
  bool wants_own_state(Iteration version);
  void own_state_at(Iteration version, std::vector<float> state);

 private:
  struct Given {
    PieceId piece;
    CheckpointPiece place;
  };
  struct Transfers;  ///< used on the loop only
  /// The ranges of a layer to keep before each step, and the version that is kept.
  struct Kept {
    std::vector<StateRange> ranges;
    Iteration version = -1;
  };

  /// The piece's range in each slot.
  std::vector<StateRange> ranges_of(const CheckpointPiece& piece) const;
  /// The values of these ranges end to end: the current ones, or the kept ones.
  absl::StatusOr<std::shared_ptr<std::vector<float>>> read(const CheckpointPiece& piece,
                                                           bool as_kept) const;
  bool is_due(Iteration version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool begin(Iteration version);
  void send(Iteration version, std::vector<StoreRequest> requests);
  void settled(Iteration version, const absl::Status& status);
  /// Appends a write for each server that stores the piece.
  void append_writes(Iteration version, const Given& given, int slots,
                     const std::shared_ptr<const std::vector<float>>& values,
                     std::vector<StoreRequest>& requests) const;

  Transport* const stores_;
  const CheckpointGiverOptions options_;
  const Failed failed_;
  const Epoch epoch_;
  const WorkerRank rank_;
  const std::uint32_t workers_;
  FactorState* const state_;
  const std::vector<CheckpointPiece> pieces_;  ///< of all workers and servers
  const std::vector<std::string> server_addresses_;
  const std::vector<std::string> layer_names_;
  std::map<std::uint32_t, Kept> kept_;  ///< by LayerIndex
  bool has_room_ = true;
  std::map<std::uint32_t, Iteration> current_;            ///< by LayerIndex: steps made
  std::map<std::uint32_t, std::vector<Given>> of_layer_;  ///< by LayerIndex
  std::vector<Given> own_state_;                          ///< one, on worker 0

  Mutex mutex_;
  Iteration newest_ ABSL_GUARDED_BY(mutex_) = -1;  ///< highest version that any layer has reached
  std::set<Iteration> asked_ ABSL_GUARDED_BY(mutex_);
  std::map<Iteration, std::size_t> under_way_ ABSL_GUARDED_BY(mutex_);  ///< transfers by version
  std::set<Iteration> failed_versions_ ABSL_GUARDED_BY(mutex_);  ///< already reported; the last few

  std::shared_ptr<Transfers> transfers_;
};

}  // namespace poseidon
