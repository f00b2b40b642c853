#pragma once

// The worker's side of sufficient factor broadcasting. Pure: factors and messages in, messages out.
//
// Before: sync/client/factor_exchange.h hears that a layer's own factors are in place. After: it
// sends what next_message gives, one at a time per other worker, and tells the trainer when a set
// is complete: the factors of one layer and iteration from all P1 workers, stacked in rank order.
//
// Two iterations in memory are enough, and nobody acknowledges anything
//  1. A worker begins forward(l) of iteration i + 1 only with everybody's factors of (l, i). So a
//     message of (l, i + 1) from worker q says that q has all of (l, i), from everyone.
//  2. Hence, while our own last factors of l are those of iteration m, the others can be at m - 1
//     (slower than we are), m, or m + 1 (they have all of m, we do not yet), and never further: m +
//     2 needs our m + 1. What claims to be beyond is refused.
//  3. So each layer has two slots, for even and odd iterations. When the first message of m + 1
//     comes into the slot of m - 1, all workers have made their step of m - 1: nobody reads or
//     wants what is overwritten. The same holds for our own part when our factors of m + 1 are
//     put there.
//  4. On a new stream everything is repeated that the other worker may lack by that reasoning. What
//     it has already is dropped there as a duplicate.
//
// Invariants
//  5. Factors are put into the stack where they belong as they come, each piece once.
//  6. Per worker, what an earlier forward waits for is sent before what a later one does, and of
//     one iteration the layer that is needed first (Outbox).
//  7. Parameters are written here only before the first iteration (rank r hands them to the next).
//
// Everything here runs on the loop. The factors' memory is FactorStacks' (factor_stacks.h), which
// the trainer's thread uses too and which says when.

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

/// Replicas are compared before the first iteration, before every so many that follow, as they are
/// saved, and after the last. A digest costs one pass over the parameters.
inline constexpr Iteration kReplicaCheckIterations = 50;

struct SfbOptions {
  std::int64_t piece_bytes = 2 << 20;  ///< the unit of sending and of priority; the same everywhere
  /// Of this run. Above 0 all workers have the parameters of this version already.
  Iteration first_iteration = 0;
  Iteration iterations = 0;  ///< of the run; the set after the last one is digests alone
  Iteration check_every = kReplicaCheckIterations;
  Iteration save_every = 0;  ///< versions that become checkpoints by themselves; 0: none

  /// Whether the set of this iteration carries a digest.
  bool has_digest(Iteration iteration) const;
  /// The last version that was compared before this one, or the run's first: what was saved of it
  /// is not in doubt.
  Iteration compared_before(Iteration iteration) const;
};

/// What an event did.
struct FactorLanding {
  Objection objection;                    ///< none: the message was used
  std::optional<LayerIndex> initialised;  ///< this layer's initial parameters are whole with it
  std::optional<LayerIndex> complete;     ///< this layer's set is whole with it ...
  Iteration iteration = -1;               ///< ... of this iteration
  std::string divergence;                 ///< the complete set's digests differ: who has which
  std::size_t payload_bytes = 0;          ///< of a used message
  LayerIndex layer;                       ///< of a used message
};

class SfbRoute {
 public:
  /// Allocates all it will ever need. `layers` by LayerIndex; only SFB layers' are looked at.
  /// `stacks`, of the same plan and rank, must outlive it.
  SfbRoute(Plan plan, WorkerRank rank, const std::vector<LayerMemory>& layers, FactorStacks* stacks,
           SfbOptions options);

  /// Rank 0 of a run that begins at iteration 0, once: its parameters are the initial ones, and go
  /// from rank to rank. All its layers are initialised by that.
  void initialise_from_here();

  /// Own factors of the iteration after the last are in place. With the run's last iteration + 1 =
  /// SfbOptions::iterations there are none, only the digest. `digest` of the parameters before the
  /// iteration's step, where has_digest.
  FactorLanding factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest);

  /// A stream to this worker is new: queues everything that it may lack.
  void stream_opened(WorkerRank peer);

  struct Outgoing {
    OutgoingMessage message;
    LayerIndex layer;
    std::optional<Iteration> factor_of;  ///< nothing: it is no piece of one
  };
  /// The most urgent message for this worker, or nothing when none waits.
  std::optional<Outgoing> next_message(WorkerRank peer);

  /// Not for kHello, which belongs to the stream.
  FactorLanding on_message(WorkerRank from, const DecodedFactor& message);
  /// Messages for this worker that wait for their turn.
  std::size_t waiting(WorkerRank peer) const { return outboxes_[peer.value()].size(); }

  const Plan& plan() const { return plan_; }
  const SfbOptions& options() const { return options_; }
  WorkerRank rank() const { return rank_; }
  std::int64_t piece_elements() const { return piece_elements_; }
  /// The SFB layers, in forward order.
  std::vector<LayerIndex> layers() const;
  /// Workers whose part of the layer's next set has not come. For error messages.
  std::vector<WorkerRank> awaited(LayerIndex layer) const;

 private:
  using ItemId = StrongId<struct ItemIdTag, std::uint32_t>;
  /// One thing that can be sent: a piece of the initial parameters, or a piece of what a slot holds
  /// of ours. Ids count by layer in forward order, so that of one iteration the smallest is the
  /// most urgent.
  struct Item {
    std::uint32_t layer = 0;  ///< position in layers_
    bool of_parameters = false;
    std::uint32_t slot = 0;
    std::uint32_t piece = 0;
  };
  /// What waits to be sent to one worker. A worker may be an iteration ahead of that one, and then
  /// has a newer set of an early layer to send while the other still waits for the older set of a
  /// late layer: that goes first.
  struct Outbox {
    Outbox(std::size_t items, SendOrder order)
        : parameters(items, order),
          sets{SendQueue<ItemId>(items, order), SendQueue<ItemId>(items, order)} {}
    std::optional<ItemId> pop();
    std::size_t size() const { return parameters.size() + sets[0].size() + sets[1].size(); }

    SendQueue<ItemId> parameters;           ///< initial ones
    std::array<SendQueue<ItemId>, 2> sets;  ///< by slot
    std::array<Iteration, 2> iterations{};  ///< by slot: whose set was queued last
  };
  /// What is sent for one iteration: piece 0 is the digest, then come dY's, then X's.
  struct Slot {
    Iteration iteration = 0;
    std::vector<bool> landed;            ///< by rank * pieces + piece
    std::vector<std::uint64_t> digests;  ///< by rank; 0 where none came
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
    Iteration mine = -1;  ///< own factors are in place up to this iteration
    std::array<Slot, 2> slots;
    std::vector<Iteration> taken;  ///< by rank: it surely has all sets up to this one
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
  std::vector<bool> has_parameters_;    ///< by rank: it surely has all initial parameters
};

}  // namespace poseidon
