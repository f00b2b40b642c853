#pragma once

// For tests: checks of every device on single layers: those of the grid (layer_grid.h), some
// special ones, and PyTorch's golden values. layer_grid_test.cc and layer_golden_test.cc check the
// CPU device, tests/gpu a GPU. The functions use EXPECT; run them from the repository root.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/layer_grid.h"
#include "tests/support/layer_harness.h"
#include "worker/engine/device.h"

namespace poseidon::testing {

/// How exactly a device computes: the type to which it rounds the factors of its products, and
/// perhaps what it keeps of their sums. Sums themselves are float32 or better.
struct Accuracy {
  std::string name = "fp32";
  int significand_bits = 24;     ///< the hidden one included: tf32 and fp16 11, bf16 8
  int smallest_exponent = -149;  ///< of 2, of the smallest value above 0

  bool is_float() const { return significand_bits == 24; }
  /// Distance from 1 to the next value of the type.
  double epsilon() const;
  /// Nearest value of the type, ties to even.
  float round(float value) const;
  /// How far a sum of `terms` products of values in [-1, 1) may be from the exact one.
  double tolerance(double terms) const;
};

/// "fp32", "tf32", "bf16" or "fp16", as a job's `precision`; a programming error otherwise.
Accuracy accuracy_of(const std::string& precision);

/// Forward, running statistics and all gradients of both, close to each other; and the gradients of
/// the parameters do not depend on whether the one of the data is wanted.
void compare_layer(Device& device, Device& wanted, const LayerCase& one, std::uint64_t seed,
                   const Accuracy& accuracy);

void batch_norm_in_tests(Device& device, Device& wanted, const Accuracy& accuracy);
/// The mean may be far from zero compared with the deviation: the sums must not cancel.
void batch_norm_of_large_means(Device& device, Device& wanted, const Accuracy& accuracy);
void batch_norm_leaves_filling_out(Device& device, Device& wanted, const Accuracy& accuracy);
void one_value_per_channel_has_no_variance(Device& device);
void filling_samples_count_for_nothing(Device& device, Device& wanted, const Accuracy& accuracy);
void large_scores_do_not_overflow(Device& device, const Accuracy& accuracy);
/// A NaN must reach the loss, where the trainer looks for it.
void nan_is_not_swallowed(Device& device);

/// Where the device has the layer take over a ReLU behind it: the bits of the two apart, or those
/// of a convolution kept in bfloat16 to its rounding. Returns whether it does.
bool a_relu_behind_changes_no_bit(Device& device, const LayerCase& one, std::uint64_t seed,
                                  const Accuracy& accuracy);

/// PyTorch's values in double precision (tests/golden/layers/generate.py).
void layers_match_pytorch(Device& device, const Accuracy& accuracy);

}  // namespace poseidon::testing
