#pragma once

// What a worker adds to a checkpoint: pieces of layers that no server owns (SFB; all workers have
// the same, and share the work), and, from worker 0, its own state.
//
// When a worker is lost in the middle of an iteration, the others give what they still have of the
// version before it (give_held). For that each keeps the version before the last step of its own
// pieces, and of those of the rank before it, whose deputy it is: beside its SFB layers, a worker
// holds 2 / P1 of their parameters and optimizer slots once more, where the layers are.
//
// Before: the trainer's thread reaches a version that is to be saved. After: factor_state.h has the
// values, common/checkpoint/store_client.h takes the copies to the servers that hold them.
//
// Threads: save_at on any, all else on the trainer's. The transfers live on the
// transport's loop.

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

/// Versions on their way to the servers at a time. What comes due beyond fails: each is a copy of
/// all that this worker gives.
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
  /// Why this worker's part of a version is missing. Any thread.
  using Failed = std::function<void(Iteration version, const std::string& reason, MissingPart why)>;

  /// `stores` speaks kStoreMethod; it and `state`, of plans with SFB layers, must outlive it.
  CheckpointGiver(Transport* stores, const Plan& plan, WorkerRank rank, FactorState* state,
                  CheckpointGiverOptions options, Failed failed);
  /// Ends what is under way. Must not run on the loop.
  ~CheckpointGiver();
  CheckpointGiver(const CheckpointGiver&) = delete;
  CheckpointGiver& operator=(const CheckpointGiver&) = delete;

  // On any thread.

  /// Besides the periodic versions, this one.
  void save_at(Iteration version);

  // On the trainer's thread.

  /// An SFB layer has so many steps; its pieces are copied where the version is to be saved. Errors
  /// are of the layer's memory.
  absl::Status layer_at(LayerIndex layer, Iteration version);
  /// An SFB layer, of so many steps, is about to make another one. Where there is no room to keep
  /// it this is said once, and nothing is kept any more: a recovery then goes back to a checkpoint.
  absl::Status keep(LayerIndex layer, Iteration version);

  struct Held {
    Iteration oldest = 0;
    Iteration newest = std::numeric_limits<Iteration>::max();
  };
  /// The versions of SFB layers that this worker could give, now that training has halted.
  Held held() const;
  /// Gives this worker's pieces of a held version, and those of lost ranks that fall to it, but for
  /// worker 0's own state, which servers hold. FAILED_PRECONDITION when it does not have them.
  absl::Status give_held(Iteration version, const std::set<WorkerRank>& lost);

  /// Worker 0, after every iteration: whether own_state_at wants to be called, and the state.
  bool wants_own_state(Iteration version);
  void own_state_at(Iteration version, std::vector<float> state);

 private:
  struct Given {
    PieceId piece;
    CheckpointPiece place;
  };
  struct Transfers;  ///< the loop's
  /// Of a layer: what to keep before each step, and the version that is kept.
  struct Kept {
    std::vector<StateRange> ranges;
    Iteration version = -1;
  };

  /// The piece's part of each slot.
  std::vector<StateRange> ranges_of(const CheckpointPiece& piece) const;
  /// Those end to end, as they are or as they are kept.
  absl::StatusOr<std::shared_ptr<std::vector<float>>> read(const CheckpointPiece& piece,
                                                           bool as_kept) const;
  bool is_due(Iteration version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool begin(Iteration version);
  void send(Iteration version, std::vector<StoreRequest> requests);
  void settled(Iteration version, const absl::Status& status);
  /// To all servers that keep the piece.
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
  const std::vector<CheckpointPiece> pieces_;  ///< of all
  const std::vector<std::string> server_addresses_;
  const std::vector<std::string> layer_names_;
  std::map<std::uint32_t, Kept> kept_;  ///< by LayerIndex
  bool has_room_ = true;
  std::map<std::uint32_t, Iteration> current_;            ///< by LayerIndex: steps made
  std::map<std::uint32_t, std::vector<Given>> of_layer_;  ///< by LayerIndex
  std::vector<Given> own_state_;                          ///< one, on worker 0

  Mutex mutex_;
  Iteration newest_ ABSL_GUARDED_BY(mutex_) = -1;  ///< highest version that anything has reached
  std::set<Iteration> asked_ ABSL_GUARDED_BY(mutex_);
  std::map<Iteration, std::size_t> under_way_ ABSL_GUARDED_BY(mutex_);  ///< transfers by version
  std::set<Iteration> failed_versions_ ABSL_GUARDED_BY(mutex_);         ///< told once; the last few

  std::shared_ptr<Transfers> transfers_;
};

}  // namespace poseidon
