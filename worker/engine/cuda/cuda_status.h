#pragma once

// Converts the return codes of CUDA's libraries to statuses.

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <string_view>

#include "absl/status/status.h"

namespace poseidon {

/// OK, or INTERNAL with the call and the library's own words. An error is then the status alone:
/// the runtime, which keeps a thread's last one for the next launch, has forgotten it. So calls
/// whose errors have nobody to go to (what frees) also end here.
absl::Status cuda_status(cudaError_t error, std::string_view call);
absl::Status cuda_status(cudnnStatus_t error, std::string_view call);
absl::Status cuda_status(cublasStatus_t error, std::string_view call);

/// What a launch that was just made says. (What goes wrong while a kernel runs comes later, from
/// whoever waits for it.)
absl::Status launch_status(std::string_view kernel);

/// `status` with the layer's name in front of its message.
absl::Status in_layer(std::string_view layer, const absl::Status& status);

#define POSEIDON_CUDA(call) POSEIDON_RETURN_IF_ERROR(::poseidon::cuda_status((call), #call))

}  // namespace poseidon
