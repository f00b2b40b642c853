#pragma once

// A tensor in Layout::kBfloat16 and its plain twin (layout_adapter.h), in the GPU's memory.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_context.h"
#include "worker/engine/layout_adapter.h"

namespace poseidon {

absl::StatusOr<std::unique_ptr<PlainTwin>> make_cuda_twin(std::int64_t batch, const Shape& shape,
                                                          CudaContext& context);

}  // namespace poseidon
