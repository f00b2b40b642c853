#pragma once

// A tensor that has channels last and its plain twin (layout_adapter.h), in memory that the twins
// of all operators share (CudaContext::reserve_twins).
//
// Called by: worker/engine/cuda/cuda_device.cc. Calls: worker/engine/cuda/kernels/cuda_kernels.h.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_context.h"
#include "worker/engine/executor/layout_adapter.h"

namespace poseidon {

/// `taken`: bytes that the operator's twins take of it until now, and with this one.
absl::StatusOr<std::unique_ptr<PlainTwin>> make_cuda_twin(std::int64_t batch, const Shape& shape,
                                                          Layout layout, std::size_t& taken,
                                                          CudaContext& context);

}  // namespace poseidon
