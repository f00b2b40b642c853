#pragma once

// The reference device's operators: plain loops in the order of the formulas, the reference for
// other devices' tests. Not fast, and never used in a cluster.
//
// Called by: reference_device.cc, which creates a layer's operator. Calls: LayerOperator of
// worker/engine/device.h.

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
