#pragma once

// The worker's side of sufficient factor broadcasting. Pure: factors and messages in, messages out.
//
// Called by: sync/client/factor_exchange.h, when a layer's own factors are in place and for each
// message. Calls: sync/routes/factor_stacks.h. The caller sends the messages of next_message, one
// at a time per other worker, and tells the trainer when a set is complete: the factors of one
// layer and iteration from all P1 workers, stacked in rank order.
//
// Two iterations in memory suffice, without acknowledgements
//  1. A worker begins forward(l) of iteration i + 1 only when it has all workers' factors of (l,
//     i). So a message of (l, i + 1) from worker q shows that q has all factors of (l, i).
//  2. While our own last factors of l are those of iteration m, another worker can therefore be at
//     m - 1 (slower than we are), m, or m + 1 (it has all of m, we do not yet), but never further,
//     because m + 2 needs our m + 1. A message that claims a later iteration is refused.
//  3. So each layer has two slots, for even and odd iterations. When the first message of m + 1 is
//     written into the slot of m - 1, all workers have made their step of m - 1: no worker reads or
//     needs the overwritten factors. The same holds for our own part when our factors of m + 1 are
//     written.
//  4. On a new stream a worker repeats everything that the other may lack by these rules. The other
//     drops what it already has as a duplicate.
//
// Invariants
//  5. Arriving factors are written directly to their place in the stack, each piece once.
//  6. Per worker, the pieces that an earlier forward waits for are sent before those of a later
//     one; within one iteration the layer that is needed first goes first (Outbox).
//  7. Parameters are written here only before the first iteration (rank r sends them to the next).
//
// Everything here runs on the loop. FactorStacks (factor_stacks.h) has the factors' memory, which
// the trainer's thread uses too, and says when.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/chunk_queue.h"
#include "common/plan/plan.h"
#include "common/transport/transport.h"
#include "common/wire/factor_wire.h"
#include "sync/routes/factor_stacks.h"
#include "sync/routes/layer_memory.h"

namespace poseidon {

/// The workers compare their copies of SFB layers before the first iteration, then every
/// kReplicaCheckIterations, whenever they are saved, and after the last iteration. A digest costs
/// one pass over the parameters.
inline constexpr Iteration kReplicaCheckIterations = 50;

struct SfbOptions {
  std::int64_t piece_bytes =
      2 << 20;  ///< the unit of sending and of priority; the same on all workers
  /// The run's first iteration. Above 0 all workers have the parameters of this version already.
  Iteration first_iteration = 0;
  Iteration iterations = 0;  ///< of the run; the set after the last one has digests only
  Iteration check_every = kReplicaCheckIterations;
  Iteration save_every = 0;  ///< interval of periodic checkpoints; 0: none

  /// Whether the set of this iteration carries a digest.
  bool has_digest(Iteration iteration) const;
  /// The last version before this one that was compared, or the run's first version: its saved
  /// parameters are known to be equal.
  Iteration compared_before(Iteration iteration) const;
};

/// The effect of an event.
struct FactorLanding {
  Objection objection;                    ///< none: the message was used
  std::optional<LayerIndex> initialised;  ///< this layer's initial parameters are now complete
  std::optional<LayerIndex> complete;     ///< this layer's set is now complete ...
  Iteration iteration = -1;               ///< ... for this iteration
  std::string divergence;         ///< the complete set's digests differ: which rank has which
  std::size_t payload_bytes = 0;  ///< of a used message
  LayerIndex layer;               ///< of a used message
};

class SfbRoute {
 public:
  /// Allocates all its memory. `layers` by LayerIndex; only SFB layers are used. `stacks`, of the
  /// same plan and rank, must outlive it.
  SfbRoute(Plan plan, WorkerRank rank, const std::vector<LayerMemory>& layers, FactorStacks* stacks,
           SfbOptions options);

  /// Rank 0 of a run that begins at iteration 0, once: its parameters are the initial ones, which
  /// are passed from rank to rank. Its own layers are initialised by this call.
  void initialise_from_here();

  /// This worker's factors of the next iteration are in place. For SfbOptions::iterations, one
  /// after the run's last iteration, there are no factors, only the digest. `digest` is that of the
  /// parameters before the iteration's step, when has_digest.
  FactorLanding factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest);

  /// A stream to this worker was opened: queues everything that it may lack.
  void stream_opened(WorkerRank peer);

  struct Outgoing {
    OutgoingMessage message;
    LayerIndex layer;
    std::optional<Iteration> factor_of;  ///< absent: no piece of factors
  };
  /// The most urgent message for this worker; nothing when none waits.
  std::optional<Outgoing> next_message(WorkerRank peer);

  /// Not for kHello, which the stream handles.
  FactorLanding on_message(WorkerRank from, const DecodedFactor& message);
  /// Number of messages for this worker that wait to be sent.
  std::size_t waiting(WorkerRank peer) const { return outboxes_[peer.value()].size(); }

  const Plan& plan() const { return plan_; }
  const SfbOptions& options() const { return options_; }
  WorkerRank rank() const { return rank_; }
  std::int64_t piece_elements() const { return piece_elements_; }
  /// The SFB layers, in forward order.
  std::vector<LayerIndex> layers() const;
  /// Workers whose part of the layer's next set is missing, for error messages.
  std::vector<WorkerRank> awaited(LayerIndex layer) const;
  /// The iteration of that set.
  Iteration awaited_iteration(LayerIndex layer) const {
    return std::max(options_.first_iteration, layer_of(layer).mine);
  }

 private:
  using ItemId = StrongId<struct ItemIdTag, std::uint32_t>;
  /// A unit of sending: a piece of the initial parameters, or a piece of this worker's part of a
  /// slot. Ids count by layer in forward order, so the smallest id of an iteration is the most
  /// urgent.
  struct Item {
    std::uint32_t layer = 0;  ///< position in layers_
    bool of_parameters = false;
    std::uint32_t slot = 0;
    std::uint32_t piece = 0;
  };
  /// The queue of one other worker. When we are an iteration ahead of it, we may have a newer set
  /// of an early layer to send while it still waits for the older set of a late layer: the older
  /// set goes first.
  struct Outbox {
    Outbox(std::size_t items, SendOrder order)
        : parameters(items, order),
          sets{SendQueue<ItemId>(items, order), SendQueue<ItemId>(items, order)} {}
    std::optional<ItemId> pop();
    std::size_t size() const { return parameters.size() + sets[0].size() + sets[1].size(); }

    SendQueue<ItemId> parameters;           ///< initial ones
    std::array<SendQueue<ItemId>, 2> sets;  ///< by slot
    std::array<Iteration, 2> iterations{};  ///< by slot: the iteration that was queued last
  };
  /// The pieces of one iteration: piece 0 is the digest, then come those of dY, then those of X.
  struct Slot {
    Iteration iteration = 0;
    std::vector<bool> landed;            ///< by rank * pieces + piece
    std::vector<std::uint64_t> digests;  ///< by rank; 0: none has arrived
    std::int64_t missing = 0;            ///< pieces of all ranks
  };
  struct Layer {
    LayerIndex index;
    FactorShape shape;
    std::span<float> parameters;
    std::shared_ptr<const void> owner;
    std::uint32_t gradient_pieces = 0, input_pieces = 0, parameter_pieces = 0;
    std::uint32_t pieces = 0;      ///< of one rank and iteration, with the digest
    std::uint32_t first_item = 0;  ///< parameters, then slot 0, then slot 1
    std::vector<bool> parameters_landed;
    std::uint32_t parameters_missing = 0;
    Iteration mine = -1;  ///< this worker's factors are in place up to this iteration
    std::array<Slot, 2> slots;
    std::vector<Iteration> taken;  ///< by rank: it is known to have all sets up to this one
  };

  static Slot& slot_of(Layer& layer, Iteration iteration) {
    return layer.slots[static_cast<std::size_t>(iteration % 2)];
  }
  Layer& layer_of(LayerIndex layer);
  const Layer& layer_of(LayerIndex layer) const;
  void begin(Layer& layer, Slot& slot, Iteration iteration);
  std::pair<std::uint32_t, std::uint32_t> wanted_pieces(const Layer& layer,
                                                        Iteration iteration) const;
  void queue_pieces(Layer& layer, Iteration iteration, WorkerRank peer);
  void queue_parameters(const Layer& layer, WorkerRank peer);
  void note_taken(Layer& layer, WorkerRank peer, Iteration iteration);
  void note_parameters_taken(WorkerRank peer);
  Objection judge(WorkerRank from, const DecodedFactor& message) const;
  Objection judge_iteration(const Layer& layer, const FactorHeader& header) const;
  FactorLanding land_parameters(Layer& layer, const DecodedFactor& message);
  void finish_if_complete(Layer& layer, Slot& slot, FactorLanding& landing) const;
  std::string divergence(const Slot& slot) const;
  std::span<float> piece_of(const Layer& layer, FactorKind kind, Iteration iteration,
                            WorkerRank rank, std::uint32_t piece) const;

  const Plan plan_;
  const WorkerRank rank_;
  FactorStacks* const stacks_;
  const SfbOptions options_;
  const std::int64_t piece_elements_;
  std::vector<Layer> layers_;           ///< SFB layers, in forward order
  std::vector<std::int32_t> position_;  ///< by LayerIndex: in layers_, or -1
  std::vector<Item> items_;             ///< by ItemId
  std::vector<Outbox> outboxes_;        ///< by rank
  std::vector<bool> has_parameters_;    ///< by rank: it is known to have all initial parameters
};

}  // namespace poseidon
