#pragma once

// All chunks that one server owns: parameters, optimizer state, and the sums being formed.
// Pure: message in, decision out; no sockets or clock. One thread calls it and decides; loops over
// a chunk's elements are split among a team (common/base/team.h), with the same bits whatever team
// it is.
//
// Before: sync/chunks/chunk_service.h decoded a message. After: it sends what the decision says.
//
// Invariants
//  1. A chunk's version counts its optimizer steps; -1 until it has been initialised. It grows
//     by one per complete sum, never otherwise.
//  2. Every message is checked against the plan before any memory is touched.
//  3. Parameters that a message being sent refers to are never overwritten: a step goes to the
//     memory of the version before the last (7), and to fresh memory where somebody still reads
//     that. The same makes a frozen version for a checkpoint free of charge.
//  4. Parameters and optimizer state are float32 whatever travels. With a 16-bit wire type every
//     worker, worker 0 and version 0 included, gets the same rounded copy, made once per chunk and
//     version while the step's results are in the cache, under the rule of 3. Only a pull that
//     asks for float32 gets the parameters themselves.
//  5. Where steps need norms over more than a chunk (plan.norm_scope), a complete sum is held back:
//     its squares go out (Delivery::norms), and the step is made when worker 0 has sent the totals.
//     Everybody who hears of norms gets a step's norms before its parameters, on the same stream.
//  6. A version can be frozen for a checkpoint: the buffers are shared with whoever writes them to
//     disk, and a later step goes to fresh memory, by the rule of 3.
//  7. A step leaves the version before it as it was: when a worker is lost in the middle of an
//     iteration, some chunks have made its step and others never will, and all go back together.
//     BSP keeps them within one version of each other.
//  8. Parameters that the 16-bit type cannot carry (infinite, NaN, beyond its range) never leave
//     the shard, and a step that makes parameters for a checkpoint makes finite ones: else from
//     then on every message is refused, with the layer's name and the remedy.
//
// Memory per parameter (float32, measured by memory_bytes(), tested): 4 B sum (none with one
// contributor, unless steps need norms) and, for this version and the one before, 4 B parameters +
// 4 B per optimizer slot (SGD 0, with momentum 1, Adam and AdamW 2), so 20 B with SGD momentum;
// + 2 B for the rounded copy with a 16-bit wire type; plus at most pending_limit_bytes (and a
// message per worker, and one per new stream: it says who is ahead) of early contributions for the
// whole shard. While a checkpoint is written, parameters and optimizer slots exist once more, so
// 28 B, and once again where a second one comes due meanwhile (kMaxOpenSnapshots).

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
#include "common/base/team.h"
#include "common/plan/plan.h"
#include "common/plan/tensor_parts.h"
#include "common/tensor/aligned_buffer.h"
#include "common/tensor/optimizer.h"
#include "common/transport/transport.h"
#include "common/wire/norm_wire.h"
#include "common/wire/wire.h"
#include "server/store/frozen_chunk.h"
#include "sync/chunks/aggregator.h"
#include "sync/chunks/chunk_holder.h"
#include "sync/chunks/consistency.h"
#include "sync/chunks/early_budget.h"

namespace poseidon {

/// What can be saved of a shard that has halted; all when it owns nothing.
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

  /// Instead of initial parameters: part of what a checkpoint has for an owned chunk. `slot` 0 is
  /// the parameters, 1 and 2 the optimizer's. INVALID_ARGUMENT when it is beyond the chunk or the
  /// optimizer.
  absl::Status restore(ChunkId chunk, std::uint32_t slot, std::int64_t offset, const Bytes& values);
  /// All owned chunks are whole, at this version: training goes on from there. An objection when
  /// the 16-bit wire type cannot carry them.
  Objection restored(Iteration version);

  /// From now on every chunk is frozen when it has so many steps, and again after as many more; 0:
  /// never.
  void freeze_every(Iteration iterations) { freeze_every_ = iterations; }
  /// Freezes once more, at this version, besides those of freeze_every. Replaces an earlier request
  /// that training has not reached: its asker gave that one up, as another server was beyond it.
  /// OUT_OF_RANGE: too late, a chunk is beyond it or a later version waits. FAILED_PRECONDITION:
  /// not finite.
  absl::Status freeze_at(Iteration version);
  /// The versions that all chunks still have.
  HeldRange held() const;
  /// Freezes all chunks at one of them, but for those that were frozen there before.
  /// FAILED_PRECONDITION when it is none of held().
  absl::Status freeze_held(Iteration version);
  /// What has been frozen since the last call, in the order of freezing.
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
  /// group); nothing when none is.
  std::optional<WorkerRank> awaited(ChunkId chunk) const;
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
    std::span<const float> settled;  ///< the gradient whose step is held back; empty: none is
    Iteration squares_of = -1;
    std::vector<TensorSquares> squares;       ///< of each part
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
  const std::vector<WorkerRank> contributors_;  ///< whom it hears, in the order of summation
  std::vector<std::int32_t> place_of_;          ///< by rank: its place in it; -1: not heard
  std::vector<Slot> slots_;
  std::vector<std::int32_t> slot_of_chunk_;  ///< by ChunkId; -1 where another server owns it
  EarlyBudget early_;
  Iteration freeze_every_ = 0;
  std::optional<Iteration> freeze_at_;
  std::size_t frozen_at_ = 0;  ///< chunks frozen at freeze_at_
  std::vector<FrozenChunk> frozen_;
  Objection stopped_;  ///< the reason for which nothing is taken any more
};

}  // namespace poseidon
