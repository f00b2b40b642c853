// cuBLASLt as far as the device uses it: products of column-major float32 matrices, with factors
// rounded by the compute type. Sums are in double.

#include <cublasLt.h>

#include <cstring>
#include <vector>

#include "tests/twins/emulated_gpu/rounding.h"
#include "tests/twins/emulated_gpu/stream.h"

namespace poseidon::emulated {
namespace {

struct Product {
  cublasComputeType_t compute;
  bool left_transposed, right_transposed;
};
struct Layout {
  std::uint64_t rows, columns;
  std::int64_t stride;
};
struct Preference {
  std::uint64_t workspace_bytes;
  std::uint32_t reduction_schemes, alignment[4];
};
/// What an algorithm was found for: it does for nothing else.
struct Algorithm {
  std::uint64_t rows, columns, depth, workspace_bytes;
};
static_assert(sizeof(Product) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

/// The library's structs are plain memory for what it keeps there.
template <typename Ours, typename Opaque>
Ours read(const Opaque* opaque) {
  Ours ours;
  std::memcpy(&ours, opaque, sizeof(ours));
  return ours;
}
template <typename Ours, typename Opaque>
void write(Opaque* opaque, const Ours& ours) {
  std::memcpy(opaque, &ours, sizeof(ours));
}

std::uint64_t elements_of(const Layout& m) {
  return (m.columns - 1) * static_cast<std::uint64_t>(m.stride) + m.rows;
}

/// Sizes of out = left right; false where they do not fit each other.
bool sizes_of(const Product& product, const Layout& left, const Layout& right, const Layout& out,
              Algorithm* sizes) {
  sizes->rows = product.left_transposed ? left.columns : left.rows;
  sizes->depth = product.left_transposed ? left.rows : left.columns;
  sizes->columns = product.right_transposed ? right.rows : right.columns;
  const std::uint64_t depth = product.right_transposed ? right.columns : right.rows;
  for (const Layout& one : {left, right, out}) {
    if (one.rows == 0 || one.columns == 0 || one.stride < static_cast<std::int64_t>(one.rows)) {
      return false;
    }
  }
  return depth == sizes->depth && out.rows == sizes->rows && out.columns == sizes->columns;
}

float rounded(float value, cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return to_tf32(value);
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return to_bfloat16_and_back(value);
    default:
      return value;
  }
}

/// op(matrix), rounded, row by row.
std::vector<float> plain(const float* matrix, const Layout& layout, bool transposed, bool by_rows,
                         cublasComputeType_t compute) {
  // Element (r, c) of op(matrix), whose rows lie together if by_rows, else its columns.
  const std::uint64_t rows = transposed ? layout.columns : layout.rows;
  const std::uint64_t columns = transposed ? layout.rows : layout.columns;
  std::vector<float> out(rows * columns);
  for (std::uint64_t r = 0; r < rows; ++r) {
    for (std::uint64_t c = 0; c < columns; ++c) {
      const std::uint64_t at = transposed ? c + r * static_cast<std::uint64_t>(layout.stride)
                                          : r + c * static_cast<std::uint64_t>(layout.stride);
      out[by_rows ? r * columns + c : c * rows + r] = rounded(matrix[at], compute);
    }
  }
  return out;
}

void multiply(const Product& product, const float* left, const Layout& left_layout,
              const float* right, const Layout& right_layout, float* out, const Layout& out_layout,
              std::uint64_t depth) {
  const std::vector<float> rows =
      plain(left, left_layout, product.left_transposed, /*by_rows=*/true, product.compute);
  const std::vector<float> columns =
      plain(right, right_layout, product.right_transposed, /*by_rows=*/false, product.compute);
  for (std::uint64_t c = 0; c < out_layout.columns; ++c) {
    for (std::uint64_t r = 0; r < out_layout.rows; ++r) {
      double sum = 0.0;
      for (std::uint64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(rows[r * depth + k]) * columns[c * depth + k];
      }
      out[r + c * static_cast<std::uint64_t>(out_layout.stride)] = static_cast<float>(sum);
    }
  }
}

bool is_aligned(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0; }

}  // namespace
}  // namespace poseidon::emulated

using namespace poseidon::emulated;  // NOLINT: what follows is another's interface

struct cublasLtContext {};

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "refused by the emulated cuBLASLt";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  count_setup("cublasLtCreate");
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  count_setup("cublasLtDestroy");
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  count_setup("cublasLtMatmulDescCreate");
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = new cublasLtMatmulDescOpaque_t;
  write(*made, Product{compute, false, false});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  count_setup("cublasLtMatmulDescDestroy");
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
  auto ours = read<Product>(product);
  const bool transposed = *static_cast<const cublasOperation_t*>(value) == CUBLAS_OP_T;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) {
    ours.left_transposed = transposed;
  } else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) {
    ours.right_transposed = transposed;
  } else {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  write(product, ours);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  count_setup("cublasLtMatrixLayoutCreate");
  if (type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = new cublasLtMatrixLayoutOpaque_t;
  write(*made, Layout{rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  count_setup("cublasLtMatrixLayoutDestroy");
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  count_setup("cublasLtMatmulPreferenceCreate");
  *made = new cublasLtMatmulPreferenceOpaque_t;
  write(*made, Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  count_setup("cublasLtMatmulPreferenceDestroy");
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto ours = read<Preference>(preference);
  const auto is_number = [&] { return bytes == sizeof(std::uint32_t); };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      if (bytes != sizeof(std::uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
      std::memcpy(&ours.workspace_bytes, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      if (!is_number()) return CUBLAS_STATUS_INVALID_VALUE;
      std::memcpy(&ours.reduction_schemes, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      if (!is_number()) return CUBLAS_STATUS_INVALID_VALUE;
      std::memcpy(&ours.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                  bytes);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  write(preference, ours);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t left,
                                              cublasLtMatrixLayout_t right, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  if (handle == nullptr || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto asked = read<Preference>(preference);
  Algorithm algorithm{};
  if (!sizes_of(read<Product>(product), read<Layout>(left), read<Layout>(right), read<Layout>(out),
                &algorithm)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *found = 0;
  // Anything atomic would give other bits each time.
  if ((asked.reduction_schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const std::uint32_t alignment : asked.alignment) {
    if (alignment > 16) return CUBLAS_STATUS_NOT_SUPPORTED;  // more than `run` was promised
  }
  algorithm.workspace_bytes = asked.workspace_bytes;
  std::memset(static_cast<void*>(&results[0]), 0, sizeof(results[0]));
  write(&results[0].algo, algorithm);
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* left, cublasLtMatrixLayout_t left_at,
                              const void* right, cublasLtMatrixLayout_t right_at, const void* beta,
                              const void*, cublasLtMatrixLayout_t, void* out,
                              cublasLtMatrixLayout_t out_at, const cublasLtMatmulAlgo_t* found,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr || !is_usable(stream) || found == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto what = read<Product>(product);
  const auto l = read<Layout>(left_at), r = read<Layout>(right_at), o = read<Layout>(out_at);
  const auto algorithm = read<Algorithm>(found);
  Algorithm sizes{};
  if (!sizes_of(what, l, r, o, &sizes) || sizes.rows != algorithm.rows ||
      sizes.columns != algorithm.columns || sizes.depth != algorithm.depth) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (*static_cast<const float*>(alpha) != 1.0F || *static_cast<const float*>(beta) != 0.0F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!is_aligned(left) || !is_aligned(right) || !is_aligned(out)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!is_device_memory(left, elements_of(l) * sizeof(float)) ||
      !is_device_memory(right, elements_of(r) * sizeof(float)) ||
      !is_device_memory(out, elements_of(o) * sizeof(float)) ||
      workspace_bytes < algorithm.workspace_bytes ||
      !is_device_memory(workspace, workspace_bytes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  stream->push([=] {
    spoil(workspace, workspace_bytes);
    multiply(what, static_cast<const float*>(left), l, static_cast<const float*>(right), r,
             static_cast<float*>(out), o, sizes.depth);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
