#pragma once

// The reference device's operators: plain loops in the order of the formulas, to test the others
// by. Not fast, and never in a running cluster.
//
// Before: reference_device.cc is asked for a layer's operator. After: device.h's LayerOperator.

#include <memory>

#include "worker/engine/device.h"

namespace poseidon {

// reference_window.cc: layers that slide a window or mix values.
std::unique_ptr<LayerOperator> reference_convolution(const LayerSpec& layer,
                                                     const OperatorOptions& options);
std::unique_ptr<LayerOperator> reference_pooling(const LayerSpec& layer,
                                                 const OperatorOptions& options);
std::unique_ptr<LayerOperator> reference_lrn(const LayerSpec& layer,
                                             const OperatorOptions& options);
// reference_batch_norm.cc
std::unique_ptr<LayerOperator> reference_batch_norm(const LayerSpec& layer,
                                                    const OperatorOptions& options);
// reference_scores.cc: losses and accuracy.
std::unique_ptr<LayerOperator> reference_scores(const LayerSpec& layer,
                                                const OperatorOptions& options);
// reference_simple.cc: the rest.
std::unique_ptr<LayerOperator> reference_simple(const LayerSpec& layer,
                                                const OperatorOptions& options);

}  // namespace poseidon
