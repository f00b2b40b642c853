#pragma once

// For operators that compute on plain tensors alone, where their neighbours do not.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cpu/onednn_operator.h"

namespace poseidon {

/// `plain`, made with all layouts plain, between tensors in the layouts of `options`. May throw
/// dnnl::error and std::bad_alloc.
std::unique_ptr<LayerOperator> adapt_layouts(std::unique_ptr<LayerOperator> plain,
                                             const LayerSpec& layer, const OperatorOptions& options,
                                             OnednnContext& context);

}  // namespace poseidon
