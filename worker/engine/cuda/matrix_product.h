#pragma once

// A matrix product on cuBLASLt, planned once for its sizes.
//
// Called by: worker/engine/cuda/cuda_factors.h and worker/engine/cuda/fully_connected.cc. Calls:
// cuBLASLt.

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_context.h"

namespace poseidon {

/// Bytes of workspace that every product may use.
inline constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

/// out (rows x columns) = left (rows x depth) * right (depth x columns), all row-major float32.
/// A transposed factor lies in memory as its transpose. Strides are elements from one row in memory
/// to the next; 0: no gap.
struct ProductSizes {
  std::int64_t rows = 0, columns = 0, depth = 0;
  bool left_transposed = false, right_transposed = false;
  std::int64_t left_stride = 0;
};

/// One thread. The same sizes on GPUs of one kind with one version of cuBLASLt give the same bits.
class MatrixProduct {
 public:
  static absl::StatusOr<std::unique_ptr<MatrixProduct>> create(const CudaContext& context,
                                                               const ProductSizes& sizes);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// Pointers are the device's and aligned to 16 bytes; `workspace` has kProductWorkspaceBytes.
  absl::Status run(cudaStream_t stream, const float* left, const float* right, float* out,
                   std::byte* workspace) const;

 private:
  explicit MatrixProduct(const CudaContext& context) : context_(context) {}
  absl::Status plan(const ProductSizes& sizes);

  const CudaContext& context_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace poseidon
