#pragma once

// A fully connected layer's optimizer step from stacked factors, on a GPU.
//
// Called by: worker/executor_factors.h, when all workers' factors have arrived. Calls: cuBLASLt and
// the step kernels.
//
// Factors are uploaded; parameters and optimizer state stay on the GPU. The weight's rows are
// processed in tiles, so that the gradient is never in memory as a whole: a tile's gradient is one
// product, and its step follows at once. All of it runs on a stream of its own, beside the layers'
// work. Tiles depend only on the layer's size.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/cuda/cuda_context.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/matrix_product.h"
#include "worker/engine/device.h"

namespace poseidon {

/// One thread. Memory and products are made when sizes are first seen and kept.
class CudaFactors {
 public:
  explicit CudaFactors(const CudaContext& context) : context_(context) {}

  absl::Status copy(std::span<const DeviceCopy> copies);
  absl::Status fetch(void* host, const void* device, std::int64_t bytes);
  absl::StatusOr<double> square_sum(const float* values, std::int64_t elements);
  absl::Status step(const FactorStepArgs& args);
  absl::StatusOr<FactorSquares> measure(const FactorStepArgs& args);

 private:
  /// Device memory that grows when more is needed than ever before.
  struct Buffer {
    DeviceMemory memory{nullptr, nullptr};
    std::int64_t bytes = 0;
    float* floats() const { return static_cast<float*>(memory.get()); }
  };
  /// Rows [first, first + rows) of the weight.
  struct Tile {
    std::int64_t first = 0, rows = 0;
  };

  /// After the work queued on `factors` is done.
  absl::Status settled(absl::Status status) const;
  /// Memory for both calls, then the factors' way up: nothing is allocated while work is queued.
  absl::Status prepare(const FactorStepArgs& args);
  absl::Status run_step(const FactorStepArgs& args);
  absl::StatusOr<FactorSquares> run_measure(const FactorStepArgs& args);
  absl::Status grow(Buffer& buffer, std::int64_t elements);
  absl::StatusOr<const MatrixProduct*> product(const FactorStepArgs& args, std::int64_t rows);
  absl::Status multiply(const FactorStepArgs& args, const Tile& tile);
  /// One step of elements [first, first + count) of the layer with the gradient in gradient_.
  absl::Status step_range(const FactorStepArgs& args, const OptimizerStep& step, std::int64_t first,
                          std::int64_t count);
  absl::StatusOr<double> squares(const float* values, std::int64_t elements);
  absl::Status upload(float* device, const float* host, std::int64_t elements);
  absl::Status prepare_squares();

  const CudaContext& context_;
  DeviceMemory host_parts_{nullptr, nullptr};  ///< pinned; as parts_
  Buffer output_gradients_, inputs_, gradient_, parts_, workspace_;
  /// By rows of the tile, outputs, inputs, rows of the factors.
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>,
           std::unique_ptr<MatrixProduct>>
      products_;
};

}  // namespace poseidon
