#pragma once

// Local aggregation. The leader of a group of workers (usually all workers of one machine) sums the
// group's gradients, sends the sum to the servers, and sends the servers' answer to the group. The
// machine's link then carries one gradient up and one set of parameters down instead of one per
// worker. Pure: messages in, decisions and requests out; like a shard (server/shard/shard.h) it
// uses a team for its sums. The idea is BytePS's (OSDI'20, section 4) and hierarchical allreduce's.
// The semantics of BSP stay the same.
//
// Called by: sync/chunks/chunk_service.h, with each decoded message of the group (the leader
// included). Calls: sync/chunks/aggregator.h. sync/relay/relay_service.h takes the requests to the
// route towards the servers (sync/routes/ps_route.h) and the deliveries to the group.
//
// Invariants
//  1. To its group the relay acts as all servers together; to each server it acts as one worker.
//     Messages and rules are the same, and messages are idempotent on both sides, so a cut on
//     either side costs only time.
//  2. The gradients of a group are summed in rank order (sync/chunks/aggregator.h). The servers sum
//     the groups' sums in the order of the leaders. The bits depend only on the members of each
//     group.
//  3. With a 16-bit wire type the group's sum is rounded once more before it goes to the servers.
//     Parameters go to the group as the servers rounded them.
//  4. Each chunk's sum and parameters have one place in memory, which is overwritten while messages
//     may still refer to it. Such messages are repetitions, and their receivers drop them unread: a
//     new sum is formed after the servers have answered the previous one, and new parameters arrive
//     after the whole group has used the previous ones.
//
// Memory, per parameter of the PS layers: 4 B parameters and 4 B sum, and 4 B of rounded copies
// with a 16-bit wire type. Early gradients add at most pending_limit_bytes and one message per
// worker.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"
#include "common/probes/awaited.h"
#include "common/threads/team.h"
#include "sync/chunks/aggregator.h"
#include "sync/chunks/chunk_holder.h"
#include "sync/chunks/consistency.h"
#include "sync/chunks/early_budget.h"
#include "sync/routes/chunk_request.h"
#include "sync/routes/layer_memory.h"

namespace poseidon {

/// Whether this worker's gradients go through a relay (its own, if it is a leader).
bool is_behind_relay(const Plan& plan, WorkerRank rank);
/// The plan for such a worker's route: its leader replaces all servers.
Plan behind_relay(Plan plan, WorkerRank rank);

class Relay final : public ChunkHolder {
 public:
  /// The relay of the group that `leader` leads in `plan`, from `first_version` on. `team` must
  /// outlive it.
  Relay(Plan plan, WorkerRank leader, Iteration first_version,
        std::int64_t pending_limit_bytes = kDefaultPendingLimitBytes,
        Team* team = sequential_team());

  /// Memory for the route towards the servers: it sends the sums and writes the parameters. By
  /// LayerIndex.
  std::vector<LayerMemory> layers() const;

  /// Requests to the servers that the messages since the last call have caused.
  std::vector<ChunkRequest> take_requests() { return std::exchange(requests_, {}); }

  /// The servers' answer is in place: `version` of the chunk; with a 16-bit wire type, `exact`
  /// means float32. Returns the deliveries to the group.
  std::vector<Delivery> landed(ChunkId chunk, Iteration version, bool exact);

  /// Chunks of this layer whose sum lacks gradients of some of the group, at most kMostAwaited.
  std::vector<AwaitedData> awaited(LayerIndex layer) const;

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
    bool is_here = false;       ///< parameters of `version` are here; false: of no version
    bool initialising = false;  ///< the initial parameters were sent to the servers
    /// The float32 parameters of `version` were requested, have arrived. No sum is sent between the
    /// two.
    bool exact_asked = false, exact_here = false;
    std::vector<WorkerRank> exact_for;  ///< workers that wait for them
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
  std::vector<std::int32_t> place_of_;          ///< by rank: place in the group; -1: not a member
  std::vector<FloatBuffer> parameters_, sums_;  ///< by LayerIndex; empty for SFB layers
  std::vector<Slot> slots_;                     ///< by ChunkId
  Team* const team_;
  EarlyBudget early_;
  std::vector<ChunkRequest> requests_;
};

}  // namespace poseidon
