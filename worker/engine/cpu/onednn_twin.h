#pragma once

// A tensor in the CPU device's own layout and its plain twin (layout_adapter.h), by oneDNN.
//
// Called by: worker/engine/cpu/cpu_device.h. Calls: worker/engine/cpu/onednn_operator.h.

#include <memory>

#include "worker/engine/cpu/onednn_operator.h"
#include "worker/engine/executor/layout_adapter.h"

namespace poseidon {

/// May throw dnnl::error and std::bad_alloc.
std::unique_ptr<PlainTwin> make_onednn_twin(std::int64_t batch, const Shape& shape, Layout layout,
                                            OnednnContext& context);

}  // namespace poseidon
