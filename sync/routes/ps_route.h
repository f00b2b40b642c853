#pragma once

// The worker's side of the parameter-server scheme. Pure: gradients and messages in, messages out.
//
// Before: sync/client/syncer.h hears that a layer's gradient is ready. After: it sends what
// next_message gives, one at a time per server, and tells the trainer when a layer has landed.
//
// Invariants
//  1. Per server, the chunk that the next forward needs first is sent first (ChunkQueue).
//  2. Parameters are written only between gradient_ready(l, i) and the landing of version i +
//     1, that is, only while the engine does not read layer l.
//  3. Whatever is unanswered is sent again on a new stream; the server counts it once.
//  4. With a 16-bit wire type, a gradient chunk is rounded once per iteration into a buffer of its
//     own, allocated in the beginning, when its turn to be sent comes. The buffer is written only
//     while no message refers to it (fresh memory otherwise). Parameters that arrive are widened
//     into their place.
//  5. Where steps need norms (plan.norm_scope), a server tells each chunk's before the parameters
//     of that step; worker 0 answers with the totals once they are complete (norm_book.h), which
//     it repeats like any request.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/chunk_queue.h"
#include "common/plan/plan.h"
#include "common/threads/team.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/routes/chunk_request.h"
#include "sync/routes/landing.h"
#include "sync/routes/layer_memory.h"
#include "sync/routes/norm_book.h"

namespace poseidon {

class PsRoute {
 public:
  /// `layers` by LayerIndex; sizes must be the plan's. Layers without chunks (SFB) are left alone.
  /// The run begins with the parameters of `first_version`. `team`, which outlives it, rounds
  /// gradients and copies parameters.
  PsRoute(Plan plan, WorkerRank rank, std::vector<LayerMemory> layers, Iteration first_version = 0,
          Team* team = sequential_team());

  /// Worker 0, once: sends what is in the parameters as the initial ones, and waits for their echo.
  void initialise_from_here();
  /// All others, and all where servers have parameters from a checkpoint, once: waits for the first
  /// parameters.
  void pull_initial();

  /// Asks for the server's float32 parameters of the version that has landed everywhere; nothing
  /// else may be outstanding. The layers land once more, at the same version.
  void pull_exact();

  /// The gradient of `iteration` is in place and stays unchanged until version iteration + 1 lands.
  void gradient_ready(LayerIndex layer, Iteration iteration);

  /// The same of one chunk, for a caller that does not have whole layers at a time.
  void request(const ChunkRequest& request);

  /// A layer that goes by SFB, under NormScope::kNetwork: squares of its tensors, of the gradient
  /// whose factors are complete.
  NormBook::Complete layer_measured(LayerIndex layer, Iteration iteration,
                                    std::vector<TensorSquares> tensors);

  /// A stream to this server is new: queues everything that this server has not answered. When
  /// there is nothing, then a pull of what is here already, of the server's smallest chunk: a
  /// server closes streams that say nothing, for they might be anybody's.
  void stream_opened(ServerIndex server);

  struct Outgoing {
    OutgoingMessage message;
    LayerIndex layer;
    ChunkId chunk;
    std::optional<Iteration> gradient_of;  ///< nothing: it is something else
  };
  /// The most urgent message for this server, or nothing when none waits.
  std::optional<Outgoing> next_message(ServerIndex server);
  /// Messages for this server that wait for their turn.
  std::size_t waiting(ServerIndex server) const { return queues_[server.value()].size(); }

  Landing on_message(ServerIndex from, const Bytes& message);

  const Plan& plan() const { return plan_; }
  WorkerRank rank() const { return rank_; }
  /// Chunks of this server that were asked for and have not come: are asked for anew.
  std::vector<ChunkId> unanswered(ServerIndex server) const;

 private:
  /// What a chunk waits for. The request is repeated on a new stream until it is answered.
  enum class Request : std::uint8_t { kNone, kInitialise, kPull, kPush, kTotals, kPullExact };
  struct Chunk {
    Request request = Request::kNone;
    Iteration version = -1;     ///< landed; the next one to land is version + 1
    bool greets = false;        ///< waits in the queue though nothing is requested
    bool early = false;         ///< version + 1 was here before the norms of its step
    PayloadBuffer rounded;      ///< the gradient in 16 bits; empty when float32 travels ...
    Iteration rounded_of = -1;  ///< ... and the iteration of what it holds
  };

  void enqueue(ChunkId chunk, Request kind);
  void push(ChunkId chunk, Iteration iteration);
  void round_gradient(Chunk& chunk, std::span<const float> gradient);
  std::string totals_of(ChunkId chunk) const;
  Objection judge(ServerIndex from, const DecodedChunk& decoded) const;
  Objection judge_norms(const ChunkHeader& header) const;
  Landing land_norms(const DecodedChunk& decoded);
  std::int64_t leading_elements(LayerIndex layer, Iteration version);
  void release(const NormBook::Complete& complete);

  const Plan plan_;
  const WorkerRank rank_;
  const std::vector<LayerMemory> layers_;
  Team* const team_;
  std::vector<Chunk> chunks_;                   ///< by ChunkId
  std::vector<ChunkQueue> queues_;              ///< by ServerIndex
  std::vector<std::uint32_t> missing_chunks_;   ///< by LayerIndex: requested, not landed
  std::vector<std::vector<ChunkId>> of_layer_;  ///< by LayerIndex, in the order of their places
  std::vector<std::size_t>
      leading_;                   ///< by LayerIndex: chunks that have the version that is landing
  std::optional<NormBook> book_;  ///< where this worker hears of norms
};

}  // namespace poseidon
