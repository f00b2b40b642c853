#pragma once

// Who knows which norm, and when a step may be made: the norms that clipping and LARS ask for, over
// tensors that are spread over servers. Pure: sums of squares in, totals out.
//
// Before: sync/routes/ps_route.h got a chunk's squares from its server, or the trainer measured a
// layer that goes by SFB. After: totals go to the servers (from worker 0), and to the trainer.
//
// Invariants
//  1. A tensor's squares are the sums of its chunks' in their order, the network's those of its
//     layers in theirs, and of their tensors: the same bits whatever order they come in, and
//     however many servers there are.
//  2. A layer is at one iteration at a time: nobody has a gradient of iteration i + 1 before the
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
  /// Takes part for the plan's norm_scope, which must not be kNone. The first squares are of
  /// `first_iteration`.
  explicit NormBook(const Plan& plan, Iteration first_iteration = 0);

  /// What an entry completed: the steps of these PS layers may be made.
  struct Complete {
    std::vector<LayerIndex> layers;
    Iteration iteration = -1;
    /// Under NormScope::kNetwork, when `layers` are all: squares of all gradients.
    std::optional<double> all_gradients;
  };

  /// Newest iteration of which the chunk's squares are here; the one before the first: none.
  Iteration known(ChunkId chunk) const { return chunks_[chunk.value()].iteration; }

  /// Squares of a chunk's parts, in the order of tensor_parts; of the iteration after known().
  Complete add_chunk(ChunkId chunk, Iteration iteration, std::vector<TensorSquares> parts);
  /// Under kNetwork: squares of a layer's tensors that goes by SFB; of the iteration after the
  /// last.
  Complete add_layer(LayerIndex layer, Iteration iteration, std::vector<TensorSquares> tensors);

  /// Of the layer's tensors, for the iteration that was completed last.
  const std::vector<TensorSquares>& totals(LayerIndex layer) const {
    return layers_[layer.value()].totals;
  }
  double all_gradients() const { return all_gradients_; }

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
    std::size_t missing = 0;      ///< chunks whose squares of the next iteration are not here
    std::vector<TensorSquares> totals;
  };

  Complete finish_layer(LayerIndex layer, Iteration iteration);

  const NormScope scope_;
  std::vector<Chunk> chunks_;
  std::vector<Layer> layers_;
  std::size_t missing_layers_;
  double all_gradients_ = 0.0;
};

}  // namespace poseidon
