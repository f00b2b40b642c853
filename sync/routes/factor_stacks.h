#pragma once

// Memory for the factors of layers that go by SFB. Each layer has two iterations (even and odd) of
// all workers' factors, stacked in rank order, where the product reads them.
//
// Called by: sync/client/sync_client.h, which owns it: the trainer's thread writes this worker's
// part and reads complete stacks; sync/routes/sfb_route.h, which writes the other workers' parts
// and sends from it. Calls: common/memory/aligned_buffer.h.
//
// Threads: the object does not change once it is made; the route's rules say which thread may touch
// which floats. The trainer's thread owns this worker's part of an iteration until it calls
// factors_ready; then the loop owns it. The trainer's thread may read a stack from factors_complete
// until its factors_ready of the next iteration. sfb_route.h explains why two iterations suffice.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"
#include "common/wire/factor_wire.h"

namespace poseidon {

/// All workers' factors of one layer and iteration, rank 0's rows first. Row-major.
struct StackedFactors {
  std::span<const float> output_gradients;  ///< P1*K x M
  std::span<const float> inputs;            ///< P1*K x N
};

/// The place of one worker's factors.
struct OwnFactors {
  std::span<float> output_gradient;  ///< K x M
  std::span<float> input;            ///< K x N
};

class FactorStacks {
 public:
  /// Returns zeroed floats that messages can be sent from.
  using Allocate = std::function<FloatBuffer(std::int64_t elements)>;

  /// For the worker `rank`. Allocates all memory at once; none for PS layers.
  FactorStacks(const Plan& plan, WorkerRank rank, const Allocate& allocate = FloatBuffer::sendable);

  // On the trainer's thread.

  /// This worker's part.
  OwnFactors own(LayerIndex layer, Iteration iteration);
  StackedFactors stacked(LayerIndex layer, Iteration iteration) const;

  // On the loop.

  /// One worker's part of one kind, which is kOutputGradient or kInput.
  std::span<float> part(LayerIndex layer, Iteration iteration, FactorKind kind, WorkerRank rank);
  /// Holds the memory of that part while a message refers to it.
  std::shared_ptr<const void> owner(LayerIndex layer, Iteration iteration, FactorKind kind) const;

  std::int64_t memory_bytes() const;

 private:
  struct Stack {
    FloatBuffer output_gradients;  ///< P1*K x M
    FloatBuffer inputs;            ///< P1*K x N
  };
  const Stack& stack(LayerIndex layer, Iteration iteration) const {
    return layers_[layer.value()][static_cast<std::size_t>(iteration % 2)];
  }

  const WorkerRank rank_;
  const std::size_t workers_;
  std::vector<std::array<Stack, 2>> layers_;  ///< by LayerIndex; empty stacks for PS layers
};

}  // namespace poseidon
