#pragma once

// The worker's side of the parameter-server scheme. Pure: gradients and messages in, messages out.
//
// Called by: sync/links/chunk_links.h, when a layer's gradient is ready and for each message.
// Calls: common/plan/chunk_queue.h, norm_book.h. The caller sends the messages of next_message, one
// at a time per server, and reports what has landed.
//
// Invariants
//  1. Per server, the chunk that the next forward needs first is sent first (ChunkQueue).
//  2. Parameters are written only between gradient_ready(l, i) and the landing of version i + 1,
//     that is, only while the engine does not read layer l.
//  3. Every unanswered request is sent again on a new stream; the server counts it once.
//  4. With a 16-bit wire type, a gradient chunk is rounded once per iteration, when it is about to
//     be sent, into a buffer of its own, which is allocated at the start. The buffer is written
//     only while no message refers to it (otherwise new memory is used). Arriving parameters are
//     widened into their place.
//  5. When steps need norms (plan.norm_scope), a server sends each chunk's sums of squares before
//     the parameters of that step. Worker 0 answers with the totals once they are complete
//     (norm_book.h), and repeats that answer like any request. Where a program gives the rates, the
//     answer waits for these, too, unless they were there before the gradient: then worker 0 sends
//     them first, and the server steps as soon as the sum is complete.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/chunk_queue.h"
#include "common/plan/plan.h"
#include "common/probes/awaited.h"
#include "common/threads/team.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/routes/chunk_request.h"
#include "sync/routes/landing.h"
#include "sync/routes/layer_memory.h"
#include "sync/routes/norm_book.h"
#include "sync/routes/program_rates.h"

namespace poseidon {

class PsRoute {
 public:
  /// `layers` by LayerIndex; sizes must be the plan's. Layers without chunks (SFB) are not touched.
  /// The run begins with the parameters of `first_version`. `team`, which must outlive it, rounds
  /// gradients and copies parameters.
  PsRoute(Plan plan, WorkerRank rank, std::vector<LayerMemory> layers, Iteration first_version = 0,
          Team* team = sequential_team());

  /// Worker 0, once: sends the layers' parameters as the initial ones, and waits until the servers
  /// send them back.
  void initialise_from_here();
  /// All other workers, or all workers when the servers have parameters from a checkpoint, once:
  /// waits for the first parameters.
  void pull_initial();

  /// Requests the servers' float32 parameters of the version that all layers have. No other request
  /// may be outstanding. The layers land once more, with the same version.
  void pull_exact();

  /// The gradient of `iteration` is in place. It must not change until version iteration + 1 lands.
  void gradient_ready(LayerIndex layer, Iteration iteration);

  /// The same for one chunk, for a caller that does not have whole layers at a time.
  void request(const ChunkRequest& request);

  /// Under NormScope::kNetwork: the sums of squares of an SFB layer's tensors, of the gradient
  /// whose factors are complete.
  NormBook::Complete layer_measured(LayerIndex layer, Iteration iteration,
                                    std::vector<TensorSquares> tensors);

  /// Under NormScope::kProgram: the program's rates of the step that ends `iteration`, once per
  /// iteration: before its first gradient (rates.ahead), or behind its last one. The totals of
  /// worker 0 wait for them.
  void step_rates(Iteration iteration, ProgramRates rates);

  /// A stream to this server was opened: queues all requests that the server has not answered. When
  /// there are none, it queues a pull of the server's smallest chunk at its present version,
  /// because a server closes streams that send no message.
  void stream_opened(ServerIndex server);

  struct Outgoing {
    OutgoingMessage message;
    LayerIndex layer;
    ChunkId chunk;
    std::optional<Iteration> gradient_of;  ///< absent: no gradient
  };
  /// The most urgent message for this server; nothing when none waits.
  std::optional<Outgoing> next_message(ServerIndex server);
  /// Number of messages for this server that wait to be sent.
  std::size_t waiting(ServerIndex server) const { return queues_[server.value()].size(); }

  Landing on_message(ServerIndex from, const Bytes& message);

  const Plan& plan() const { return plan_; }
  WorkerRank rank() const { return rank_; }
  /// Chunks of this server that were requested and have not arrived; they are requested again.
  std::vector<ChunkId> unanswered(ServerIndex server) const;
  /// The first unanswered chunks of this layer, at most kMostAwaited.
  std::vector<AwaitedData> awaited(LayerIndex layer) const;

 private:
  /// The unanswered request of a chunk. It is repeated on each new stream until it is answered.
  enum class Request : std::uint8_t { kNone, kInitialise, kPull, kPush, kTotals, kPullExact };
  struct Chunk {
    Request request = Request::kNone;
    Iteration version = -1;     ///< the last that landed; version + 1 is next
    bool greets = false;        ///< queued as the first message of a stream, without a request
    bool early = false;         ///< version + 1 arrived before the norms of its step
    bool rates_sent = false;    ///< on this stream, ahead of the gradient
    PayloadBuffer rounded;      ///< the gradient in 16 bits; empty when float32 travels ...
    Iteration rounded_of = -1;  ///< ... and the iteration of its content
  };

  void enqueue(ChunkId chunk, Request kind);
  void push(ChunkId chunk, Iteration iteration);
  void round_gradient(Chunk& chunk, std::span<const float> gradient);
  bool sends_rates_ahead(const Chunk& chunk) const;
  std::string totals_of(ChunkId chunk) const;
  Outgoing totals_message(ChunkId chunk, ChunkHeader header) const;
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
  std::vector<std::uint32_t> missing_chunks_;   ///< by LayerIndex: chunks requested, not landed
  std::vector<std::vector<ChunkId>> of_layer_;  ///< by LayerIndex, in the order of their places
  std::vector<std::size_t>
      leading_;                   ///< by LayerIndex: chunks that have the version that is landing
  std::optional<NormBook> book_;  ///< when this worker adds up norms
  ProgramRates rates_;            ///< under kProgram ...
  Iteration rates_of_ = -1;       ///< ... and the iteration that they are of
};

}  // namespace poseidon
