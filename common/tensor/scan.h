#pragma once

// One pass over a tensor's values: NaN and infinities, a digest, the sum of squares. Pure.
// Called by: server/shard/shard.h and sync/routes/, before they use or send values. Calls: nothing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/tensor/element_type.h"

namespace poseidon {

/// False when any value is NaN or infinite.
bool all_finite(std::span<const float> values);

/// The same for elements of a 16-bit `type`.
bool all_finite_16(ElementType type, std::span<const std::byte> encoded);

/// Hashes the bits, so -0.0 and 0.0 differ. Detects accidents: two different tensors share a digest
/// in about one case in 2^60. It is not cryptographic and can be forged. Never 0, which means
/// "absent" on the wire.
std::uint64_t digest_of(std::span<const float> values);

/// Sums of squares of one tensor, or of the part of it in a chunk.
struct TensorSquares {
  double gradient = 0.0;    ///< of the mean gradient; 0 for a frozen tensor
  double parameters = 0.0;  ///< before the step; 0 where the optimizer does not need it

  bool operator==(const TensorSquares&) const = default;
  TensorSquares& operator+=(const TensorSquares& other) {
    gradient += other.gradient;
    parameters += other.parameters;
    return *this;
  }
};

class SquareSum {
 public:
  void add(std::span<const float> values);
  double total() const;

 private:
  static constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes_{};
  std::size_t at_ = 0;  ///< lane of the next value
};

/// The sum over all values in one call.
double square_sum(std::span<const float> values);

}  // namespace poseidon
