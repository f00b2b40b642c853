#pragma once

// Local aggregation: the worker that leads a group, mostly all workers of one machine, sums their
// gradients and gives the servers the sum, and gives the group what comes back. The machine's link
// then carries one gradient up and one set of parameters down instead of one per worker. Pure:
// messages in, decisions and requests out; like a shard (server/shard/shard.h) it has a team for
// its sums. The idea is BytePS's (OSDI'20, section 4) and hierarchical allreduce's; it changes no
// promise.
//
// Before: sync/chunks/chunk_service.h decoded a message of one of the group, the leader itself
// included. After: sync/relay/relay_service.h gives requests to the route towards the servers
// (sync/routes/ps_route.h), and answers to the group.
//
// Invariants
//  1. To its group the relay is all servers at once, to each server one worker: the same messages
//     under the same rules, idempotent alike, so a cut on either side costs time and nothing else.
//  2. A group's gradients are summed in rank order (sync/chunks/aggregator.h). The servers sum the
//     groups' sums in the order of the leaders: the bits depend on who is in which group and on
//     nothing else.
//  3. With a 16-bit wire type the group's sum is rounded once more before it goes up; what comes
//     down is as the servers rounded it.
//  4. A chunk's sum and parameters lie in one place each, which is overwritten while messages may
//     still refer to it. Those are repetitions, which their receivers drop unread: a sum is formed
//     anew after the servers' answer to it, parameters come anew after all of the group have
//     computed with those before.
//
// Memory: per parameter of the PS layers 4 B parameters and 4 B sum, and 4 B of rounded copies with
// a 16-bit wire type; plus at most pending_limit_bytes (and one message per worker) of early
// gradients.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"
#include "common/threads/team.h"
#include "sync/chunks/aggregator.h"
#include "sync/chunks/chunk_holder.h"
#include "sync/chunks/consistency.h"
#include "sync/chunks/early_budget.h"
#include "sync/routes/chunk_request.h"
#include "sync/routes/layer_memory.h"

namespace poseidon {

/// Whether this worker's gradients go through a relay, its own if it leads.
bool is_behind_relay(const Plan& plan, WorkerRank rank);
/// The plan as such a worker's route must see it: its leader in the place of all servers.
Plan behind_relay(Plan plan, WorkerRank rank);

class Relay final : public ChunkHolder {
 public:
  /// Of the group that `leader` leads in `plan`, from `first_version` on. `team` outlives it.
  Relay(Plan plan, WorkerRank leader, Iteration first_version,
        std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes,
        Team* team = sequential_team());

  /// Where the route towards the servers finds sums and puts parameters. By LayerIndex.
  std::vector<LayerMemory> layers() const;

  /// What the route is to ask of the servers: what follows from what has come since the last call.
  std::vector<ChunkRequest> take_requests() { return std::exchange(requests_, {}); }

  /// The servers' answer is in place: `version` of the chunk, `exact` in float32 where the wire
  /// type has 16 bits. Returns what to give to whom.
  std::vector<Delivery> landed(ChunkId chunk, Iteration version, bool exact);

  ChunkDecision on_message(const DecodedChunk& message) override;
  bool may_read(WorkerRank rank) const override;
  ChunkPayload payload(ChunkId chunk, bool exact) const override;
  Iteration version(ChunkId chunk) const override { return slots_[chunk.value()].version; }
  Norms norms(ChunkId /*chunk*/) const override { return {}; }
  const Plan& plan() const override { return plan_; }
  std::int64_t pending_bytes() const override { return early_.pending_bytes(); }
  std::uint32_t fan_out_start() const override { return leader_.value(); }

 private:
  struct Slot {
    Aggregator sum;
    PayloadBuffer rounded;  ///< 16-bit copy of the parameters; empty when float32 travels
    Iteration version = -1;
    bool is_here = false;       ///< parameters of this version; before: of none
    bool initialising = false;  ///< the servers have been given the initial parameters
    /// Of this version; while they are asked for and not here, no sum goes up.
    bool exact_asked = false, exact_here = false;
    std::vector<WorkerRank> exact_for;  ///< who waits for them
  };

  ChunkDecision on_initialise(ChunkId chunk, const DecodedChunk& message);
  ChunkDecision on_pull(ChunkId chunk, const ChunkHeader& header);
  ChunkDecision on_push(ChunkId chunk, const DecodedChunk& message);
  void push_up(ChunkId chunk);
  std::span<float> part_of(const std::vector<FloatBuffer>& layers, ChunkId chunk) const;
  bool rounds() const { return plan_.wire_type != ElementType::kFloat32; }

  const Plan plan_;
  const WorkerRank leader_;
  const Iteration first_version_;
  const BspConsistency consistency_;
  const std::vector<WorkerRank> group_;
  std::vector<std::int32_t> place_of_;          ///< by rank, in the group; -1: of another one
  std::vector<FloatBuffer> parameters_, sums_;  ///< by LayerIndex; empty for SFB layers
  std::vector<Slot> slots_;                     ///< by ChunkId
  Team* const team_;
  EarlyBudget early_;
  std::vector<ChunkRequest> requests_;
};

}  // namespace poseidon
