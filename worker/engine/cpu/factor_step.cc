#include "worker/engine/cpu/factor_step.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "common/base/check.h"
#include "common/tensor/scan.h"
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

/// Weight rows [m, m + outputs), columns [n, n + inputs).
struct Tile {
  std::int64_t m = 0, n = 0, outputs = 0, inputs = 0;
};

/// The tile's gradient. False when oneDNN cannot.
bool multiply_tile(const FactorStepArgs& args, const Tile& tile, float* gradient) {
  // gradient (outputs x inputs) = dY^T (outputs x rows) * X (rows x inputs)
  return dnnl_sgemm('T', 'N', tile.outputs, tile.inputs, args.rows, 1.0f,
                    args.output_gradients + tile.m, args.outputs, args.input_values + tile.n,
                    args.inputs, 0.0f, gradient, tile.inputs) == dnnl_success;
}

void step_tile(const FactorStepArgs& args, const Tile& tile, const float* gradient) {
  for (std::int64_t row = 0; row < tile.outputs; ++row) {
    step_range(args, args.weight_step,
               {gradient + row * tile.inputs, static_cast<std::size_t>(tile.inputs)},
               (tile.m + row) * args.inputs + tile.n);
  }
}

/// use(number of the tile, tile, its gradient) for every tile of the weight, on all threads.
template <typename Use>
absl::Status for_each_tile(const FactorStepArgs& args, int threads, std::span<float> scratch,
                           const Use& use) {
  POSEIDON_CHECK(scratch.size() >= factor_step_scratch(threads), "scratch for every thread");
  std::atomic<std::size_t> next_scratch{0};
  const std::int64_t across = tiles(args.inputs, kTileInputs);
  std::atomic<bool> failed{false};
  parallel_for(tiles(args.outputs, kTileOutputs) * across, /*grain=*/1,
               [&](std::int64_t begin, std::int64_t end) {
                 set_openmp_threads(1);  // inside a region of several threads it is so anyway
                 const std::size_t mine = kTileElements * next_scratch.fetch_add(1);
                 float* const gradient = scratch.subspan(mine, kTileElements).data();
                 for (std::int64_t i = begin; i < end; ++i) {
                   Tile tile{.m = i / across * kTileOutputs, .n = i % across * kTileInputs};
                   tile.outputs = std::min(kTileOutputs, args.outputs - tile.m);
                   tile.inputs = std::min(kTileInputs, args.inputs - tile.n);
                   if (multiply_tile(args, tile, gradient)) {
                     use(i, tile, gradient);
                   } else {
                     failed = true;
                   }
                 }
               });
  set_openmp_threads(threads);
  return failed ? absl::InternalError("oneDNN refused a matrix product") : absl::OkStatus();
}

/// use(first, gradient) for runs of the bias: column sums of dY, row after row.
template <typename Use>
void for_each_bias_run(const FactorStepArgs& args, const Use& use) {
  constexpr std::int64_t kColumns = 128;
  std::array<double, kColumns> sums;
  std::array<float, kColumns> gradient;
  for (std::int64_t m = 0; args.has_bias && m < args.outputs; m += kColumns) {
    const std::int64_t columns = std::min(kColumns, args.outputs - m);
    sums.fill(0.0);
    for (std::int64_t r = 0; r < args.rows; ++r) {
      const float* row = args.output_gradients + r * args.outputs + m;
      for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c)] += row[c];
    }
    std::transform(sums.begin(), sums.end(), gradient.begin(),
                   [](double sum) { return static_cast<float>(sum); });
    use(m, std::span<const float>(gradient.data(), static_cast<std::size_t>(columns)));
  }
}

}  // namespace

std::size_t factor_step_scratch(int threads) {
  return static_cast<std::size_t>(threads) * kTileElements;
}

absl::Status cpu_step_from_factors(const FactorStepArgs& args, int threads,
                                   std::span<float> scratch) {
  const absl::Status status = for_each_tile(
      args, threads, scratch, [&args](std::int64_t, const Tile& tile, const float* gradient) {
        step_tile(args, tile, gradient);
      });
  for_each_bias_run(args, [&args](std::int64_t first, std::span<const float> gradient) {
    step_range(args, args.bias_step, gradient, args.outputs * args.inputs + first);
  });
  return status;
}

absl::StatusOr<FactorSquares> cpu_measure_factors(const FactorStepArgs& args, int threads,
                                                  std::span<float> scratch) {
  std::vector<double> of_tiles(static_cast<std::size_t>(tiles(args.outputs, kTileOutputs) *
                                                        tiles(args.inputs, kTileInputs)));
  const absl::Status status =
      for_each_tile(args, threads, scratch,
                    [&of_tiles](std::int64_t number, const Tile& tile, const float* gradient) {
                      const auto size = static_cast<std::size_t>(tile.outputs * tile.inputs);
                      of_tiles[static_cast<std::size_t>(number)] = square_sum({gradient, size});
                    });
  if (!status.ok()) return status;
  FactorSquares squares;
  for (const double of_tile : of_tiles) squares.weight += of_tile;
  for_each_bias_run(args, [&squares](std::int64_t, std::span<const float> gradient) {
    squares.bias += square_sum(gradient);
  });
  return squares;
}

}  // namespace poseidon
