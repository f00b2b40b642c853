#pragma once

// Descriptors of cuDNN's graph interface, each created, filled and finalized in one step.
//
// Called by: worker/engine/cuda/convolution_plans.h. Calls: cuDNN.

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_status.h"

namespace poseidon {

/// One of them, or none. What a graph is made from lives until the graph is finalized, and an
/// engine's configuration as long as its plan.
struct CudnnDestroy {
  void operator()(void* descriptor) const {
    static_cast<void>(cudnnBackendDestroyDescriptor(descriptor));
  }
};
using CudnnDescriptor = std::unique_ptr<void, CudnnDestroy>;

namespace cudnn_types {
// How cuDNN names the types of attributes; a type that is missing here does not compile.
constexpr cudnnBackendAttributeType_t name_of(std::int64_t) { return CUDNN_TYPE_INT64; }
constexpr cudnnBackendAttributeType_t name_of(float) { return CUDNN_TYPE_FLOAT; }
constexpr cudnnBackendAttributeType_t name_of(bool) { return CUDNN_TYPE_BOOLEAN; }
constexpr cudnnBackendAttributeType_t name_of(char) { return CUDNN_TYPE_CHAR; }
constexpr cudnnBackendAttributeType_t name_of(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
constexpr cudnnBackendAttributeType_t name_of(cudnnConvolutionMode_t) {
  return CUDNN_TYPE_CONVOLUTION_MODE;
}
constexpr cudnnBackendAttributeType_t name_of(cudnnPointwiseMode_t) {
  return CUDNN_TYPE_POINTWISE_MODE;
}
constexpr cudnnBackendAttributeType_t name_of(cudnnNanPropagation_t) {
  return CUDNN_TYPE_NAN_PROPOGATION;
}
constexpr cudnnBackendAttributeType_t name_of(cudnnBackendHeurMode_t) {
  return CUDNN_TYPE_HEUR_MODE;
}
constexpr cudnnBackendAttributeType_t name_of(cudnnBackendNumericalNote_t) {
  return CUDNN_TYPE_NUMERICAL_NOTE;
}
constexpr cudnnBackendAttributeType_t name_of(cudnnBackendBehaviorNote_t) {
  return CUDNN_TYPE_BEHAVIOR_NOTE;
}
constexpr cudnnBackendAttributeType_t name_of(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
/// Of other descriptors; data's addresses have the same type in C (CudnnBuilder::addresses).
constexpr cudnnBackendAttributeType_t name_of(cudnnBackendDescriptor_t) {
  return CUDNN_TYPE_BACKEND_DESCRIPTOR;
}
}  // namespace cudnn_types

/// Collects attributes; the first failure is what build() returns.
class CudnnBuilder {
 public:
  explicit CudnnBuilder(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t made = nullptr;
    status_ =
        cuda_status(cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
    descriptor_.reset(made);
  }
  template <typename Value>
  CudnnBuilder& with(cudnnBackendAttributeName_t name, Value value) {
    return with_all(name, std::span<const Value>(&value, 1));
  }
  template <typename Value>
  CudnnBuilder& with_all(cudnnBackendAttributeName_t name, std::span<const Value> values) {
    return set(name, cudnn_types::name_of(Value{}), values.size(), values.data());
  }
  CudnnBuilder& with(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
    return with(name, other.get());
  }
  /// Of data, or a workspace.
  CudnnBuilder& addresses(cudnnBackendAttributeName_t name, std::span<void* const> data) {
    return set(name, CUDNN_TYPE_VOID_PTR, data.size(), data.data());
  }
  /// Finalized; once. What cuDNN does not support it may refuse here.
  absl::StatusOr<CudnnDescriptor> build() {
    if (!status_.ok()) return status_;
    status_ = cuda_status(cudnnBackendFinalize(descriptor_.get()), "cudnnBackendFinalize");
    if (!status_.ok()) return status_;
    return std::move(descriptor_);
  }

 private:
  CudnnBuilder& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    std::size_t count, const void* values) {
    if (!status_.ok()) return *this;
    status_ = cuda_status(cudnnBackendSetAttribute(descriptor_.get(), name, type,
                                                   static_cast<std::int64_t>(count), values),
                          "cudnnBackendSetAttribute");
    return *this;
  }

  CudnnDescriptor descriptor_;
  absl::Status status_;
};

/// Up to values.size() elements of an attribute; how many there were.
template <typename Value>
absl::StatusOr<std::size_t> cudnn_attribute(const CudnnDescriptor& of,
                                            cudnnBackendAttributeName_t name,
                                            std::span<Value> values) {
  std::int64_t count = 0;
  const absl::Status status = cuda_status(
      cudnnBackendGetAttribute(of.get(), name, cudnn_types::name_of(Value{}),
                               static_cast<std::int64_t>(values.size()), &count, values.data()),
      "cudnnBackendGetAttribute");
  if (!status.ok()) return status;
  return static_cast<std::size_t>(count);
}

}  // namespace poseidon
