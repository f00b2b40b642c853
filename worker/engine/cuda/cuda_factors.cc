#include "worker/engine/cuda/cuda_factors.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/tensor/optimizer.h"
#include "worker/engine/cuda/cuda_mark.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/pinned_memory.h"

namespace poseidon {
namespace {

/// 64 MiB of gradient: enough to keep a GPU busy. Part of the definition of the result.
constexpr std::int64_t kTileElements = std::int64_t{16} << 20;

/// Of parts_, which are doubles.
constexpr std::int64_t kPartsFloats = cuda::kSquareParts * 2;

/// Rows of a tile: a multiple of 4, so that its column of dY begins at a multiple of 16 bytes.
std::int64_t tile_rows(const FactorStepArgs& args) {
  return std::max<std::int64_t>(4, kTileElements / args.inputs / 4 * 4);
}

}  // namespace

absl::Status CudaFactors::grow(Buffer& buffer, std::int64_t elements) {
  const std::int64_t bytes = elements * kFloatBytes;
  if (bytes <= buffer.bytes) return absl::OkStatus();
  buffer.memory.reset();
  buffer.bytes = 0;
  POSEIDON_ASSIGN_OR_RETURN(buffer.memory, context_.allocate(bytes));
  buffer.bytes = bytes;
  return absl::OkStatus();
}

absl::Status CudaFactors::upload(float* device, const float* host, std::int64_t elements) {
  POSEIDON_CUDA(cudaMemcpyAsync(device, host, static_cast<std::size_t>(elements * kFloatBytes),
                                cudaMemcpyHostToDevice, context_.factors()));
  return absl::OkStatus();
}

absl::Status CudaFactors::prepare_squares() {
  POSEIDON_RETURN_IF_ERROR(grow(parts_, kPartsFloats));
  if (host_parts_ != nullptr) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(host_parts_, allocate_pinned(context_, kPartsFloats * kFloatBytes));
  return absl::OkStatus();
}

absl::Status CudaFactors::prepare(const FactorStepArgs& args) {
  context_.use();
  const std::int64_t tile =
      std::max(std::min(tile_rows(args), args.outputs) * args.inputs, args.outputs);
  POSEIDON_RETURN_IF_ERROR(grow(output_gradients_, args.rows * args.outputs));
  POSEIDON_RETURN_IF_ERROR(grow(inputs_, args.rows * args.inputs));
  POSEIDON_RETURN_IF_ERROR(grow(gradient_, tile));
  POSEIDON_RETURN_IF_ERROR(prepare_squares());
  POSEIDON_RETURN_IF_ERROR(
      grow(workspace_, static_cast<std::int64_t>(kProductWorkspaceBytes) / kFloatBytes));
  POSEIDON_RETURN_IF_ERROR(record_mark(args.marks.begin, context_.factors()));
  POSEIDON_RETURN_IF_ERROR(
      upload(output_gradients_.floats(), args.output_gradients, args.rows * args.outputs));
  POSEIDON_RETURN_IF_ERROR(upload(inputs_.floats(), args.input_values, args.rows * args.inputs));
  return record_mark(args.marks.end, context_.factors());
}

absl::StatusOr<const MatrixProduct*> CudaFactors::product(const FactorStepArgs& args,
                                                          std::int64_t rows) {
  auto& made = products_[{rows, args.outputs, args.inputs, args.rows}];
  if (made == nullptr) {
    POSEIDON_ASSIGN_OR_RETURN(made, MatrixProduct::create(context_, {.rows = rows,
                                                                     .columns = args.inputs,
                                                                     .depth = args.rows,
                                                                     .left_transposed = true,
                                                                     .left_stride = args.outputs}));
  }
  return made.get();
}

absl::Status CudaFactors::multiply(const FactorStepArgs& args, const Tile& tile) {
  POSEIDON_ASSIGN_OR_RETURN(const MatrixProduct* const product, this->product(args, tile.rows));
  return product->run(context_.factors(), output_gradients_.floats() + tile.first, inputs_.floats(),
                      gradient_.floats(), static_cast<std::byte*>(workspace_.memory.get()));
}

absl::Status CudaFactors::step_range(const FactorStepArgs& args, const OptimizerStep& step,
                                     std::int64_t first, std::int64_t count) {
  const auto part = [first](std::span<float> all) {
    return all.empty() ? nullptr : all.data() + first;
  };
  const cuda::StepArrays arrays = {.gradient = gradient_.floats(),
                                   .parameters = part(args.parameters),
                                   .state0 = part(args.state0),
                                   .state1 = part(args.state1),
                                   .size = count};
  if (is_adaptive(step)) {
    cuda::adam_step(context_.factors(), adam_factors(step), step.type == OptimizerType::kAdamW,
                    arrays);
  } else {
    cuda::sgd_step(context_.factors(), sgd_factors(step), step.has_momentum, step.nesterov, arrays);
  }
  return launch_status("optimizer step");
}

// All memory is the caller's again when these return, also with an error.
absl::Status CudaFactors::copy(std::span<const DeviceCopy> copies) {
  context_.use();
  absl::Status status;
  for (std::size_t i = 0; i < copies.size() && status.ok(); ++i) {
    const DeviceCopy& one = copies[i];
    status = cuda_status(
        cudaMemcpyAsync(one.to, one.from, static_cast<std::size_t>(one.elements * kFloatBytes),
                        cudaMemcpyDeviceToDevice, context_.factors()),
        "cudaMemcpyAsync");
  }
  return settled(std::move(status));
}

absl::Status CudaFactors::fetch(void* host, const void* device, std::int64_t bytes) {
  context_.use();
  POSEIDON_CUDA(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes),
                                cudaMemcpyDeviceToHost, context_.factors()));
  return context_.wait(context_.factors());
}

absl::StatusOr<double> CudaFactors::square_sum(const float* values, std::int64_t elements) {
  context_.use();
  POSEIDON_RETURN_IF_ERROR(prepare_squares());
  absl::StatusOr<double> sum = squares(values, elements);
  POSEIDON_RETURN_IF_ERROR(settled(sum.status()));
  return sum;
}

absl::Status CudaFactors::step(const FactorStepArgs& args) { return settled(run_step(args)); }

absl::StatusOr<FactorSquares> CudaFactors::measure(const FactorStepArgs& args) {
  absl::StatusOr<FactorSquares> sums = run_measure(args);
  POSEIDON_RETURN_IF_ERROR(settled(sums.status()));
  return sums;
}

absl::Status CudaFactors::settled(absl::Status status) const {
  status.Update(context_.wait(context_.factors()));  // the first error says more
  return status;
}

absl::Status CudaFactors::run_step(const FactorStepArgs& args) {
  const bool steps_bias = args.has_bias && !args.bias_step.frozen;
  POSEIDON_RETURN_IF_ERROR(prepare(args));
  for (Tile tile; !args.weight_step.frozen && tile.first < args.outputs; tile.first += tile.rows) {
    tile.rows = std::min(tile_rows(args), args.outputs - tile.first);
    POSEIDON_RETURN_IF_ERROR(multiply(args, tile));
    POSEIDON_RETURN_IF_ERROR(
        step_range(args, args.weight_step, tile.first * args.inputs, tile.rows * args.inputs));
  }
  if (steps_bias) {
    cuda::column_sums(context_.factors(), output_gradients_.floats(), args.rows, args.outputs,
                      gradient_.floats());
    POSEIDON_RETURN_IF_ERROR(
        step_range(args, args.bias_step, args.outputs * args.inputs, args.outputs));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> CudaFactors::squares(const float* values, std::int64_t elements) {
  cuda::square_sums(context_.factors(), values, elements,
                    static_cast<double*>(parts_.memory.get()));
  POSEIDON_RETURN_IF_ERROR(launch_status("square_sums"));
  POSEIDON_CUDA(cudaMemcpyAsync(host_parts_.get(), parts_.memory.get(), kPartsFloats * kFloatBytes,
                                cudaMemcpyDeviceToHost, context_.factors()));
  POSEIDON_RETURN_IF_ERROR(context_.wait(context_.factors()));
  double sum = 0.0;
  const auto* const parts = static_cast<const double*>(host_parts_.get());
  for (std::int64_t i = 0; i < cuda::kSquareParts; ++i) sum += parts[i];
  return sum;
}

absl::StatusOr<FactorSquares> CudaFactors::run_measure(const FactorStepArgs& args) {
  POSEIDON_RETURN_IF_ERROR(prepare(args));
  FactorSquares sums;
  for (Tile tile; tile.first < args.outputs; tile.first += tile.rows) {
    tile.rows = std::min(tile_rows(args), args.outputs - tile.first);
    POSEIDON_RETURN_IF_ERROR(multiply(args, tile));
    POSEIDON_ASSIGN_OR_RETURN(const double of_tile,
                              squares(gradient_.floats(), tile.rows * args.inputs));
    sums.weight += of_tile;
  }
  if (args.has_bias) {
    cuda::column_sums(context_.factors(), output_gradients_.floats(), args.rows, args.outputs,
                      gradient_.floats());
    POSEIDON_ASSIGN_OR_RETURN(sums.bias, squares(gradient_.floats(), args.outputs));
  }
  return sums;
}

}  // namespace poseidon
