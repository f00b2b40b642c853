#include "worker/engine/cuda/cuda_status.h"

#include <array>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace poseidon {
namespace {

absl::string_view text(std::string_view from) { return {from.data(), from.size()}; }

// "cudaMemcpyAsync(device, host, ...)": a reader of the message does not need the arguments.
absl::Status failed(absl::string_view library, std::string_view call, const char* reason) {
  return absl::InternalError(absl::StrCat(library, ": ", text(call.substr(0, call.find('('))),
                                          " failed: ", reason == nullptr ? "no reason" : reason));
}

}  // namespace

absl::Status cuda_status(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  // The thread keeps it as its last error, which the next launch would report again.
  static_cast<void>(cudaGetLastError());
  return failed("CUDA", call, cudaGetErrorString(error));
}

absl::Status cuda_status(cudnnStatus_t error, std::string_view call) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  std::array<char, 512> details{};
  cudnnGetLastErrorString(details.data(), details.size());
  details.back() = '\0';
  const absl::string_view more = absl::StripAsciiWhitespace(details.data());
  const std::string reason =
      absl::StrCat(cudnnGetErrorString(error), more.empty() ? "" : "; ", more);
  return failed("cuDNN", call, reason.c_str());
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
