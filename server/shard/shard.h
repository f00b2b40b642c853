#pragma once

// All chunks that one server owns: parameters, optimizer state, and the sums being formed. Pure:
// message in, decision out; no sockets or clock. One thread calls it; loops over a chunk's elements
// are split among a team (common/threads/team.h) and give the same bits with any team.
//
// Called by: sync/chunks/chunk_service.h, which decodes messages and sends what the shard decides.
// Calls: sync/chunks/aggregator.h, common/tensor/optimizer.h.
//
// Invariants
//  1. A chunk's version counts its optimizer steps; -1 until it has been initialised. It grows
//     by one per complete sum, never otherwise.
//  2. Every message is checked against the plan before any memory is touched.
//  3. Parameters that a message being sent refers to are never overwritten: a step writes to the
//     memory of the version before the last (7), or to fresh memory while that is still being read.
//     So freezing a version for a checkpoint costs no copy.
//  4. Parameters and optimizer state are always float32. With a 16-bit wire type every worker,
//     worker 0 and version 0 included, gets the same rounded copy, made once per chunk and version
//     while the step's results are in the cache; rule 3 applies to it. Only a pull that asks for
//     float32 gets the parameters themselves.
//  5. Where steps need norms over more than a chunk (plan.norm_scope), a complete sum waits: its
//     squares are sent (Delivery::norms), and the step follows when worker 0 has sent the totals.
//     Every worker that receives norms gets a step's norms before its parameters, on the same
//     stream. A program's rates may come ahead of the gradients; then no sum waits.
//  6. A version can be frozen for a checkpoint: the buffers are shared with the writer to disk, and
//     a later step goes to fresh memory (rule 3).
//  7. A step keeps the previous version. When a worker is lost in the middle of an iteration, some
//     chunks have made its step and others never will; then all go back to the previous version.
//     BSP keeps chunks within one version of each other.
//  8. Parameters that the 16-bit type cannot carry (infinite, NaN, beyond its range) never leave
//     the shard, and parameters for a checkpoint must be finite. Otherwise the shard refuses every
//     further message, naming the layer and the remedy.
//
// Memory per parameter (float32, measured by memory_bytes(), tested): 4 B sum (none with one
// contributor, unless steps need norms) and, for this version and the one before, 4 B parameters +
// 4 B per optimizer slot (SGD 0, with momentum 1, Adam and AdamW 2), so 20 B with SGD momentum; + 2
// B for the rounded copy with a 16-bit wire type; plus at most pending_limit_bytes of early
// contributions for the whole shard (and a message per worker, and one per new stream, which shows
// that its worker is ahead). While a checkpoint is written, parameters and optimizer slots exist
// once more, so 28 B, and a third time when a second checkpoint is due meanwhile
// (kMaxOpenSnapshots).

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"
#include "common/plan/tensor_parts.h"
#include "common/probes/awaited.h"
#include "common/tensor/optimizer.h"
#include "common/threads/team.h"
#include "common/transport/transport.h"
#include "common/wire/norm_wire.h"
#include "common/wire/wire.h"
#include "server/store/frozen_chunk.h"
#include "sync/chunks/aggregator.h"
#include "sync/chunks/chunk_holder.h"
#include "sync/chunks/consistency.h"
#include "sync/chunks/early_budget.h"

namespace poseidon {

/// The versions that a halted shard can save; all when it owns nothing.
struct HeldRange {
  Iteration oldest = 0;
  Iteration newest = std::numeric_limits<Iteration>::max();
};

class Shard final : public ChunkHolder {
 public:
  /// The part of `plan` that belongs to `self`. `policy` and `team` must outlive the shard.
  Shard(Plan plan, ServerIndex self, OptimizerSpec optimizer, const ConsistencyPolicy* policy,
        std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes,
        Team* team = sequential_team());

  /// Restores part of an owned chunk from a checkpoint, instead of initial parameters. `slot` 0 is
  /// the parameters, 1 and 2 the optimizer's. INVALID_ARGUMENT when the range exceeds the chunk or
  /// the slot the optimizer.
  absl::Status restore(ChunkId chunk, std::uint32_t slot, std::int64_t offset, const Bytes& values);
  /// All owned chunks are restored, at this version; training continues from there. An objection
  /// when the 16-bit wire type cannot carry them.
  Objection restored(Iteration version);

  /// From now on freezes every chunk each time it has made this many steps; 0: never.
  void freeze_every(Iteration iterations) { freeze_every_ = iterations; }
  /// Freezes once more, at this version, besides those of freeze_every. Replaces an earlier request
  /// that training has not reached; the coordinator dropped that one because another server was
  /// already beyond it. OUT_OF_RANGE: too late, because a chunk is beyond it or a later version is
  /// pending. FAILED_PRECONDITION: not finite.
  absl::Status freeze_at(Iteration version);
  /// The versions that all chunks still have.
  HeldRange held() const;
  /// Freezes all chunks at one of these versions, except chunks already frozen there.
  /// FAILED_PRECONDITION when it is not in held().
  absl::Status freeze_held(Iteration version);
  /// The chunks frozen since the last call, in order.
  std::vector<FrozenChunk> take_frozen() { return std::exchange(frozen_, {}); }
  bool has_frozen() const { return !frozen_.empty(); }

  ChunkDecision on_message(const DecodedChunk& message) override;
  /// See sync/chunks/early_budget.h.
  bool may_read(WorkerRank rank) const override;

  /// Parameters of an owned, initialised chunk; the buffer stays unchanged for as long as it is
  /// held.
  FloatBuffer parameters(ChunkId chunk) const;
  ChunkPayload payload(ChunkId chunk, bool exact) const override;
  Iteration version(ChunkId chunk) const override;
  Norms norms(ChunkId chunk) const override;

  const Plan& plan() const override { return plan_; }
  std::uint32_t fan_out_start() const override { return self_.value(); }
  std::vector<ChunkId> owned_chunks() const;
  /// Lowest rank whose contribution is missing for this chunk's next step (a leader stands for its
  /// group); nullopt when none is missing.
  std::optional<WorkerRank> awaited(ChunkId chunk) const;
  /// The first chunks whose next step lacks something of some workers, at most kMostAwaited; for
  /// heartbeats.
  std::vector<AwaitedData> awaited() const;
  std::int64_t memory_bytes() const;
  std::int64_t pending_bytes() const override { return early_.pending_bytes(); }

 private:
  struct Values {
    FloatBuffer parameters;
    FloatBuffer state0, state1;  ///< optimizer slots, empty when unused
  };
  struct Slot {
    ChunkId id;
    Values current;
    Values previous;        ///< one version older; empty before the first step
    PayloadBuffer rounded;  ///< 16-bit copy of the parameters; empty when float32 travels
    Aggregator sum;
    std::vector<TensorPart> parts;  ///< in ascending order, without gap
    Iteration version = -1;
    std::span<const float> settled;  ///< the gradient whose step waits for norms; empty: none
    Iteration squares_of = -1;
    std::vector<TensorSquares> squares;       ///< of each part
    std::optional<StepTotals> rates_ahead;    ///< came before the gradients ...
    Iteration rates_of = -1;                  ///< ... of this iteration
    std::array<Iteration, 2> frozen{-1, -1};  ///< the newest even and odd version that was frozen
  };

  Slot* find(ChunkId chunk);
  const Slot* find(ChunkId chunk) const;
  ChunkDecision on_initialise(Slot& slot, const DecodedChunk& message);
  ChunkDecision on_pull(const Slot& slot, const ChunkHeader& header) const;
  ChunkDecision on_push(Slot& slot, const DecodedChunk& message);
  ChunkDecision on_totals(Slot& slot, const DecodedChunk& message);
  Objection judge_totals(const Slot& slot, const StepTotals& totals) const;
  Objection settle(Slot& slot);
  Objection step(Slot& slot, const StepTotals* totals);
  Objection stop(const Slot& slot, const std::string& what);
  bool freezes_at(Iteration version) const;
  void freeze_if_due(Slot& slot);
  void freeze(Slot& slot, Iteration version);
  absl::Status check_finite(const Slot& slot, const Values& values) const;
  static Values fresh_values(Slot& slot);
  bool round_parameters(Slot& slot);

  const Plan plan_;
  const ServerIndex self_;
  const OptimizerSpec optimizer_;
  const ConsistencyPolicy* const policy_;
  Team* const team_;
  const std::vector<WorkerRank> contributors_;  ///< in the order of summation
  std::vector<std::int32_t> place_of_;          ///< by rank: its place in contributors_; -1: none
  std::vector<Slot> slots_;
  std::vector<std::int32_t> slot_of_chunk_;  ///< by ChunkId; -1 where another server owns it
  EarlyBudget early_;
  Iteration freeze_every_ = 0;
  std::optional<Iteration> freeze_at_;
  std::size_t frozen_at_ = 0;  ///< chunks frozen at freeze_at_
  std::vector<FrozenChunk> frozen_;
  Objection stopped_;  ///< why the shard refuses all messages
};

}  // namespace poseidon
