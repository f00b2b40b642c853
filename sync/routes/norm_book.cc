#include "sync/routes/norm_book.h"

#include <utility>

#include "common/base/check.h"

namespace poseidon {

NormBook::NormBook(const Plan& plan, Iteration first_iteration)
    : scope_(plan.norm_scope),
      layers_(plan.layers.size()),
      missing_layers_(plan.layers.size()),
      network_known_(first_iteration - 1) {
  POSEIDON_CHECK(scope_ != NormScope::kNone, "a plan whose steps ask for norms");
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].by_factors = plan.layers[l].scheme == Scheme::kSfb;
    layers_[l].iteration = first_iteration - 1;
    layers_[l].totals.resize(tensor_count(plan.layers[l]));
  }
  for (std::uint32_t c = 0; c < plan.chunks.size(); ++c) {
    const PlanChunk& place = plan.chunks[c];
    Layer& layer = layers_[place.layer.value()];
    Chunk& chunk = chunks_.emplace_back();
    chunk.layer = place.layer;
    chunk.iteration = first_iteration - 1;
    for (const TensorPart& part :
         tensor_parts(plan.layers[place.layer.value()], place.offset, place.elements)) {
      chunk.tensors.push_back(part.tensor);
    }
    layer.chunks.emplace_back(c);
    ++layer.missing;
  }
}

NormBook::Complete NormBook::add_chunk(ChunkId id, Iteration iteration,
                                       std::vector<TensorSquares> parts) {
  Chunk& chunk = chunks_[id.value()];
  POSEIDON_CHECK(iteration == chunk.iteration + 1, "one iteration after the other");
  POSEIDON_CHECK(parts.size() == chunk.tensors.size(), "squares of each part");
  chunk.iteration = iteration;
  chunk.squares = std::move(parts);
  Layer& layer = layers_[chunk.layer.value()];
  if (--layer.missing > 0) return {};
  layer.missing = layer.chunks.size();
  layer.totals.assign(layer.totals.size(), {});
  for (const ChunkId of_layer : layer.chunks) {
    const Chunk& part_of = chunks_[of_layer.value()];
    for (std::size_t p = 0; p < part_of.tensors.size(); ++p) {
      layer.totals[part_of.tensors[p]] += part_of.squares[p];
    }
  }
  return finish_layer(chunk.layer, iteration);
}

NormBook::Complete NormBook::add_layer(LayerIndex index, Iteration iteration,
                                       std::vector<TensorSquares> tensors) {
  Layer& layer = layers_[index.value()];
  POSEIDON_CHECK(scope_ == NormScope::kNetwork && layer.by_factors, "a layer that others wait for");
  POSEIDON_CHECK(tensors.size() == layer.totals.size(), "squares of each tensor");
  layer.totals = std::move(tensors);
  return finish_layer(index, iteration);
}

NormBook::Complete NormBook::finish_layer(LayerIndex index, Iteration iteration) {
  Layer& layer = layers_[index.value()];
  POSEIDON_CHECK(iteration == layer.iteration + 1, "one iteration after the other");
  layer.iteration = iteration;
  Complete complete;
  complete.iteration = iteration;
  if (scope_ == NormScope::kLayer) {
    complete.layers.push_back(index);
    return complete;
  }
  if (--missing_layers_ > 0) return complete;
  missing_layers_ = layers_.size();
  all_gradients_ = 0.0;
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    POSEIDON_CHECK(layers_[l].iteration == iteration, "all layers are at one iteration");
    for (const TensorSquares& tensor : layers_[l].totals) all_gradients_ += tensor.gradient;
    if (!layers_[l].by_factors) complete.layers.emplace_back(l);
  }
  complete.all_gradients = all_gradients_;
  network_known_ = iteration;
  return complete;
}

}  // namespace poseidon
