#pragma once

// Layers that are loops of our own on the CPU. Why not oneDNN's: its ReLU and max pooling swallow
// NaN, which would hide a broken run; the others it does not have in the form that we promise.

#include <memory>

#include "worker/engine/device.h"

namespace poseidon {

std::unique_ptr<LayerOperator> make_relu(const LayerSpec& layer, const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_add(const LayerSpec& layer, const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_concat(const LayerSpec& layer, const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_batch_norm(const LayerSpec& layer,
                                               const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_dropout(const LayerSpec& layer, const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_max_pooling(const LayerSpec& layer,
                                                const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_softmax_cross_entropy(const LayerSpec& layer,
                                                          const OperatorOptions& options);
std::unique_ptr<LayerOperator> make_accuracy(const LayerSpec& layer,
                                             const OperatorOptions& options);

}  // namespace poseidon
