// cuBLASLt counts columns first. A row-major matrix is the transpose of the column-major one with
// the same memory, so out^T = right^T * left^T is asked for: the factors change places and nothing
// is moved.

#include "worker/engine/cuda/matrix_product.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/engine/cuda/cuda_status.h"

namespace poseidon {
namespace {

/// Layers begin at multiples of 64 bytes; tiles of factors at multiples of four elements.
constexpr std::uint32_t kAlignmentBytes = 16;

cublasComputeType_t compute_type(CudaPrecision precision) {
  switch (precision) {
    case CudaPrecision::kFloat32:
      break;
    case CudaPrecision::kTf32:
    case CudaPrecision::kFloat16:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case CudaPrecision::kBfloat16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  return CUBLAS_COMPUTE_32F;
}

/// Row-major rows x columns in memory, as cuBLASLt sees it.
absl::Status make_layout(cublasLtMatrixLayout_t* layout, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride) {
  POSEIDON_CUDA(cublasLtMatrixLayoutCreate(layout, CUDA_R_32F, static_cast<std::uint64_t>(columns),
                                           static_cast<std::uint64_t>(rows), stride));
  return absl::OkStatus();
}

/// Searches under constraints; gone with the plan.
class Preference {
 public:
  ~Preference() {
    if (handle_ != nullptr) static_cast<void>(cublasLtMatmulPreferenceDestroy(handle_));
  }
  absl::Status open() {
    POSEIDON_CUDA(cublasLtMatmulPreferenceCreate(&handle_));
    POSEIDON_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspaceBytes));
    // Parts of a split sum meet in the workspace, in their order; nothing is added atomically.
    const std::uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    POSEIDON_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      POSEIDON_RETURN_IF_ERROR(set(attribute, kAlignmentBytes));
    }
    return absl::OkStatus();
  }
  cublasLtMatmulPreference_t handle() const { return handle_; }

 private:
  template <typename Value>
  absl::Status set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    POSEIDON_CUDA(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof(value)));
    return absl::OkStatus();
  }
  cublasLtMatmulPreference_t handle_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProduct>> MatrixProduct::create(const CudaContext& context,
                                                                     const ProductSizes& sizes) {
  std::unique_ptr<MatrixProduct> product(new MatrixProduct(context));
  POSEIDON_RETURN_IF_ERROR(product->plan(sizes));
  return product;
}

absl::Status MatrixProduct::plan(const ProductSizes& s) {
  POSEIDON_CUDA(
      cublasLtMatmulDescCreate(&product_, compute_type(context_.precision()), CUDA_R_32F));
  const cublasOperation_t first = s.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = s.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  POSEIDON_CUDA(
      cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
  POSEIDON_CUDA(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                               sizeof(second)));
  const std::int64_t left_rows = s.left_transposed ? s.depth : s.rows;
  const std::int64_t left_columns = s.left_transposed ? s.rows : s.depth;
  const std::int64_t right_rows = s.right_transposed ? s.columns : s.depth;
  const std::int64_t right_columns = s.right_transposed ? s.depth : s.columns;
  POSEIDON_RETURN_IF_ERROR(make_layout(&left_, left_rows, left_columns,
                                       s.left_stride > 0 ? s.left_stride : left_columns));
  POSEIDON_RETURN_IF_ERROR(make_layout(&right_, right_rows, right_columns, right_columns));
  POSEIDON_RETURN_IF_ERROR(make_layout(&out_, s.rows, s.columns, s.columns));
  Preference preference;
  POSEIDON_RETURN_IF_ERROR(preference.open());
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  POSEIDON_CUDA(cublasLtMatmulAlgoGetHeuristic(context_.cublas(), product_, right_, left_, out_,
                                               out_, preference.handle(), 1, &best, &found));
  if (found == 0 || best.state != CUBLAS_STATUS_SUCCESS) {
    return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm for a product of ", s.rows,
                                            " x ", s.depth, " and ", s.depth, " x ", s.columns));
  }
  algorithm_ = best.algo;
  return absl::OkStatus();
}

MatrixProduct::~MatrixProduct() {
  for (cublasLtMatrixLayout_t layout : {left_, right_, out_}) {
    if (layout != nullptr) static_cast<void>(cublasLtMatrixLayoutDestroy(layout));
  }
  if (product_ != nullptr) static_cast<void>(cublasLtMatmulDescDestroy(product_));
}

absl::Status MatrixProduct::run(cudaStream_t stream, const float* left, const float* right,
                                float* out, std::byte* workspace) const {
  const float one = 1.0f, zero = 0.0f;
  POSEIDON_CUDA(cublasLtMatmul(context_.cublas(), product_, &one, right, right_, left, left_, &zero,
                               out, out_, out, out_, &algorithm_, workspace, kProductWorkspaceBytes,
                               stream));
  return absl::OkStatus();
}

}  // namespace poseidon
