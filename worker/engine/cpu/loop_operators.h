#pragma once

// CPU layers that are our own loops. oneDNN's ReLU and max pooling drop NaN, which would hide a
// broken run, and it lacks the others in the form that we promise.
//
// Called by: worker/engine/cpu/cpu_device.h. Calls: worker/engine/cpu/vector_loops.h (from the
// operators' .cc files).

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
