#pragma once

// What the synchronisation client needs of an engine for layers that go by SFB. A parameter server
// steps PS layers; of SFB layers every worker keeps and steps a copy of its own.
//
// Before: sync/client/sync_client.h, on the trainer's thread. After: worker/executor_factors.h does
// it with our engine; another framework brings its own.

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

  /// Memory for stacked factors, zeroed, that can be sent from (FloatBuffer::sendable) and is what
  /// measure and step read fastest. May outlive the engine and be released on any thread.
  virtual FloatBuffer allocate(std::int64_t elements) = 0;

  /// Copies this worker's factors of the backward just done: K x M and K x N, row-major; K is the
  /// size of the part where a batch is worked in parts.
  virtual absl::Status copy_factors(LayerIndex layer, const OwnFactors& to) = 0;

  /// Squares of the layer's tensors for the mean gradient that the stacked factors of all workers
  /// stand for. Asked for before the step where the plan's norm_scope is kNetwork. Must give the
  /// same bits on all workers.
  virtual absl::StatusOr<std::vector<TensorSquares>> measure(LayerIndex layer, Iteration iteration,
                                                             const StackedFactors& factors) = 0;

  /// One optimizer step of the layer's parameters with the mean gradient that the stacked factors
  /// of all workers stand for: the step that ends `iteration`. Must give the same bits on all
  /// workers.
  /// `all_gradients`: squares of the gradients of the whole network, 0 where nobody asks for them.
  virtual absl::Status step(LayerIndex layer, Iteration iteration, const StackedFactors& factors,
                            double all_gradients) = 0;

  /// Brings the layer's memory that the synchronisation client knows (LayerMemory::parameters) up
  /// to date: after steps the values may be elsewhere.
  virtual absl::Status fetch_parameters(LayerIndex layer) = 0;
};

}  // namespace poseidon
