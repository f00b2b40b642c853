#include "worker/engine/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace poseidon {
namespace {

absl::string_view text(std::string_view from) { return {from.data(), from.size()}; }

// "cudaMemcpyAsync(device, host, ...)": the arguments are of no interest to who reads the message.
absl::Status failed(absl::string_view library, std::string_view call, const char* reason) {
  return absl::InternalError(absl::StrCat(library, ": ", text(call.substr(0, call.find('('))),
                                          " failed: ", reason == nullptr ? "no reason" : reason));
}

}  // namespace

absl::Status cuda_status(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return failed("CUDA", call, cudaGetErrorString(error));
}

absl::Status cuda_status(cudnnStatus_t error, std::string_view call) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return failed("cuDNN", call, cudnnGetErrorString(error));
}

absl::Status cuda_status(cublasStatus_t error, std::string_view call) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return failed("cuBLASLt", call, cublasLtGetStatusString(error));
}

absl::Status launch_status(std::string_view kernel) {
  return cuda_status(cudaGetLastError(), kernel);
}

absl::Status in_layer(std::string_view layer, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("layer '", text(layer), "': ", status.message()));
}

}  // namespace poseidon
