#pragma once

// Converts the return codes of CUDA's libraries to statuses.
//
// Called by: all of worker/engine/cuda. Calls: nothing.

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <string_view>

#include "absl/status/status.h"

namespace poseidon {

/// OK, or INTERNAL with the call and the library's own words. Also clears the runtime's last error
/// of the thread, which the next launch would report. So calls whose errors are ignored (those that
/// free) use it, too.
absl::Status cuda_status(cudaError_t error, std::string_view call);
absl::Status cuda_status(cudnnStatus_t error, std::string_view call);
absl::Status cuda_status(cublasStatus_t error, std::string_view call);

/// The status of the last launch. (Errors while a kernel runs appear later, when the caller waits
/// for it.)
absl::Status launch_status(std::string_view kernel);

/// `status` with the layer's name in front of its message.
absl::Status in_layer(std::string_view layer, const absl::Status& status);

#define POSEIDON_CUDA(call) POSEIDON_RETURN_IF_ERROR(::poseidon::cuda_status((call), #call))

}  // namespace poseidon
