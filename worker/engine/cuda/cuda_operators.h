#pragma once

// The layers on a GPU. Each file has the operators of one kind; all queue their work on
// CudaContext::compute and allocate at creation only. The context outlives them. Errors at creation
// get the layer's name from the device.
//
// Layouts: all operators support kPlain and, where CudaDevice says so, its image layout, kBfloat16
// or kChannelsLast. A convolution accepts either as input and output.
//
// Called by: worker/engine/cuda/cuda_device.cc. Calls: worker/engine/cuda/kernels, cuDNN, cuBLASLt.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_context.h"
#include "worker/engine/device.h"

namespace poseidon {

using MadeOperator = absl::StatusOr<std::unique_ptr<LayerOperator>>;

/// UNIMPLEMENTED where it should have channels last and cuDNN does not compute so.
MadeOperator make_cuda_convolution(const LayerSpec& layer, const OperatorOptions& options,
                                   CudaContext& context);
MadeOperator make_cuda_fully_connected(const LayerSpec& layer, const OperatorOptions& options,
                                       CudaContext& context);
MadeOperator make_cuda_pooling(const LayerSpec& layer, const OperatorOptions& options,
                               CudaContext& context);
MadeOperator make_cuda_lrn(const LayerSpec& layer, const OperatorOptions& options,
                           CudaContext& context);
MadeOperator make_cuda_batch_norm(const LayerSpec& layer, const OperatorOptions& options,
                                  CudaContext& context);
MadeOperator make_cuda_loss(const LayerSpec& layer, const OperatorOptions& options,
                            CudaContext& context);
MadeOperator make_cuda_accuracy(const LayerSpec& layer, const OperatorOptions& options,
                                CudaContext& context);
// pointwise.cc
MadeOperator make_cuda_relu(const LayerSpec& layer, const OperatorOptions& options,
                            CudaContext& context);
MadeOperator make_cuda_add(const LayerSpec& layer, const OperatorOptions& options,
                           CudaContext& context);
MadeOperator make_cuda_dropout(const LayerSpec& layer, const OperatorOptions& options,
                               CudaContext& context);
MadeOperator make_cuda_concat(const LayerSpec& layer, const OperatorOptions& options,
                              CudaContext& context);

}  // namespace poseidon
