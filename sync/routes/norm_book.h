#pragma once

// Adds up the norms that clipping and LARS need, over tensors that are spread over servers, and
// says which steps may be made. Pure: sums of squares in, totals out.
//
// Called by: sync/routes/ps_route.h, with a chunk's sums of squares from its server or those of an
// SFB layer from the trainer. Calls: common/tensor/scan.h. The route sends totals to the servers
// (from worker 0) and reports them to the trainer.
//
// Invariants
//  1. A tensor's sum of squares is the sum over its chunks in their order; the network's is the sum
//     over its layers and their tensors in order. So the bits do not depend on the order of arrival
//     or on the number of servers.
//  2. A layer is at one iteration at a time. No worker has a gradient of iteration i + 1 before the
//     step of i, and no step is made before its totals are complete.

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "common/plan/tensor_parts.h"
#include "common/tensor/scan.h"

namespace poseidon {

class NormBook {
 public:
  /// For the plan's norm_scope, which must not be kNone. The first sums are those of
  /// `first_iteration`.
  explicit NormBook(const Plan& plan, Iteration first_iteration = 0);

  /// What a call completed: the steps of these PS layers may be made.
  struct Complete {
    std::vector<LayerIndex> layers;
    Iteration iteration = -1;
    /// Under NormScope::kNetwork and kProgram, when `layers` is all layers: the sum of squares of
    /// all gradients.
    std::optional<double> all_gradients;
  };

  /// Newest iteration whose sums for this chunk have arrived; first_iteration - 1 when there are
  /// none.
  Iteration known(ChunkId chunk) const { return chunks_[chunk.value()].iteration; }

  /// Adds the sums of squares of a chunk's parts, in the order of tensor_parts, for the iteration
  /// after known().
  Complete add_chunk(ChunkId chunk, Iteration iteration, std::vector<TensorSquares> parts);
  /// Under kNetwork: adds the sums of squares of an SFB layer's tensors, for the iteration after
  /// its last one.
  Complete add_layer(LayerIndex layer, Iteration iteration, std::vector<TensorSquares> tensors);

  /// Sums of squares of the layer's tensors, for its last complete iteration.
  const std::vector<TensorSquares>& totals(LayerIndex layer) const {
    return layers_[layer.value()].totals;
  }
  double all_gradients() const { return all_gradients_; }
  /// The newest iteration of which the sums of all layers are complete; not under kLayer.
  Iteration network_known() const { return network_known_; }

 private:
  struct Chunk {
    LayerIndex layer;
    Iteration iteration = -1;
    std::vector<std::size_t> tensors;  ///< of each part
    std::vector<TensorSquares> squares;
  };
  struct Layer {
    bool by_factors = false;
    Iteration iteration = -1;     ///< of totals
    std::vector<ChunkId> chunks;  ///< ascending
    std::size_t missing = 0;      ///< chunks whose sums of the next iteration are missing
    std::vector<TensorSquares> totals;
  };

  Complete finish_layer(LayerIndex layer, Iteration iteration);

  const NormScope scope_;
  std::vector<Chunk> chunks_;
  std::vector<Layer> layers_;
  std::size_t missing_layers_;
  double all_gradients_ = 0.0;
  Iteration network_known_ = -1;
};

}  // namespace poseidon
