#include "worker/engine/cpu/factor_step.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#include "common/check.h"
#include "dnnl.hpp"
#include "worker/engine/cpu/parallel.h"

namespace poseidon {
namespace {

// 512 KiB of gradient: within the innermost large cache, and enough work to be worth a product.
// Part of the definition of the result: other tiles may round differently.
constexpr std::int64_t kTileOutputs = 128;
constexpr std::int64_t kTileInputs = 1024;
constexpr std::size_t kTileElements = kTileOutputs * kTileInputs;

std::int64_t tiles(std::int64_t elements, std::int64_t tile) {
  return (elements + tile - 1) / tile;
}

std::span<float> part(std::span<float> all, std::int64_t begin, std::int64_t count) {
  if (all.empty()) return all;
  return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

void step_range(const FactorStepArgs& args, const OptimizerStep& step,
                std::span<const float> gradient, std::int64_t begin) {
  const auto count = static_cast<std::int64_t>(gradient.size());
  const std::span<float> parameters = part(args.parameters, begin, count);
  apply_optimizer(step, gradient, parameters, parameters, part(args.state0, begin, count),
                  part(args.state1, begin, count));
}

/// Weight rows [m, m + outputs), columns [n, n + inputs). False when oneDNN cannot.
bool step_tile(const FactorStepArgs& args, std::int64_t m, std::int64_t n, float* gradient) {
  const std::int64_t outputs = std::min(kTileOutputs, args.outputs - m);
  const std::int64_t inputs = std::min(kTileInputs, args.inputs - n);
  // gradient (outputs x inputs) = dY^T (outputs x rows) * X (rows x inputs)
  const dnnl_status_t status =
      dnnl_sgemm('T', 'N', outputs, inputs, args.rows, 1.0f, args.output_gradients + m,
                 args.outputs, args.input_values + n, args.inputs, 0.0f, gradient, inputs);
  if (status != dnnl_success) return false;
  for (std::int64_t row = 0; row < outputs; ++row) {
    step_range(args, args.weight_step, {gradient + row * inputs, static_cast<std::size_t>(inputs)},
               (m + row) * args.inputs + n);
  }
  return true;
}

/// Column sums of dY, row after row.
void step_bias(const FactorStepArgs& args, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kColumns = 128;
  std::array<double, kColumns> sums;
  std::array<float, kColumns> gradient;
  for (std::int64_t m = begin; m < end; m += kColumns) {
    const std::int64_t columns = std::min(kColumns, end - m);
    sums.fill(0.0);
    for (std::int64_t r = 0; r < args.rows; ++r) {
      const float* row = args.output_gradients + r * args.outputs + m;
      for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c)] += row[c];
    }
    std::transform(sums.begin(), sums.end(), gradient.begin(),
                   [](double sum) { return static_cast<float>(sum); });
    step_range(args, args.bias_step, {gradient.data(), static_cast<std::size_t>(columns)},
               args.outputs * args.inputs + m);
  }
}

}  // namespace

std::size_t factor_step_scratch(int threads) {
  return static_cast<std::size_t>(threads) * kTileElements;
}

absl::Status cpu_step_from_factors(const FactorStepArgs& args, int threads,
                                   std::span<float> scratch) {
  POSEIDON_CHECK(scratch.size() >= factor_step_scratch(threads), "scratch for every thread");
  std::atomic<std::size_t> next_scratch{0};
  const std::int64_t across = tiles(args.inputs, kTileInputs);
  std::atomic<bool> failed{false};
  parallel_for(tiles(args.outputs, kTileOutputs) * across, /*grain=*/1,
               [&](std::int64_t begin, std::int64_t end) {
                 set_openmp_threads(1);  // inside a region of several threads it is so anyway
                 const std::size_t mine = kTileElements * next_scratch.fetch_add(1);
                 float* const gradient = scratch.subspan(mine, kTileElements).data();
                 for (std::int64_t tile = begin; tile < end; ++tile) {
                   const bool good = step_tile(args, tile / across * kTileOutputs,
                                               tile % across * kTileInputs, gradient);
                   if (!good) failed = true;
                 }
               });
  set_openmp_threads(threads);
  if (args.has_bias) step_bias(args, 0, args.outputs);
  return failed ? absl::InternalError("oneDNN refused a matrix product") : absl::OkStatus();
}

}  // namespace poseidon
