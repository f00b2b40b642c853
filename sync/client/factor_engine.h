#pragma once

// What the synchronisation client needs from an engine for layers that go by SFB. Parameter servers
// step PS layers; each worker keeps and steps its own copy of an SFB layer.
//
// Called by: sync/client/sync_client.h, on the trainer's thread. Calls: nothing;
// worker/executor_factors.h implements it for our engine, and another framework brings its own.

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/tensor/scan.h"
#include "sync/routes/factor_stacks.h"

namespace poseidon {

/// Trainer's thread only.
class FactorEngine {
 public:
  virtual ~FactorEngine() = default;

  /// Zeroed memory for stacked factors. Messages can be sent from it (FloatBuffer::sendable), and
  /// measure and step read it fastest. May outlive the engine and be released on any thread.
  virtual FloatBuffer allocate(std::int64_t elements) = 0;

  /// Copies this worker's factors of the backward just done: K x M and K x N, row-major; K is the
  /// size of the part where a batch is worked in parts.
  virtual absl::Status copy_factors(LayerIndex layer, const OwnFactors& to) = 0;

  /// Sums of squares, by tensor of the layer, of the mean gradient that the stacked factors of all
  /// workers represent. Called before the step when the plan's norm_scope is kNetwork. Must give
  /// the same bits on all workers.
  virtual absl::StatusOr<std::vector<TensorSquares>> measure(LayerIndex layer, Iteration iteration,
                                                             const StackedFactors& factors) = 0;

  /// One optimizer step of the layer's parameters with the mean gradient that the stacked factors
  /// of all workers represent: the step that ends `iteration`. Must give the same bits on all
  /// workers. `all_gradients`: sum of squares of the whole network's gradients; 0 unless norm_scope
  /// is kNetwork.
  virtual absl::Status step(LayerIndex layer, Iteration iteration, const StackedFactors& factors,
                            double all_gradients) = 0;

  /// Copies the layer's current parameters to the memory that the synchronisation client knows
  /// (LayerMemory::parameters). After steps the values may be elsewhere, for example on a GPU.
  virtual absl::Status fetch_parameters(LayerIndex layer) = 0;
};

}  // namespace poseidon
