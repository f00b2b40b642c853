#pragma once

// Sums of squares, for norms that must have the same bits wherever they are computed. Pure.
//
// A product of two floats is exact in double, so only the additions round, and their order is part
// of the definition: value i goes to lane i % 8, however the values are split into pieces; the
// lanes are added as a tree. A layer's squares are the sums of its chunks in their order, the
// network's the sums of its layers in theirs.
//
// Called by: server/shard/shard.h for a chunk's complete gradient, and
// worker/engine/cpu/factor_step.h for a tile of a layer's. common/wire/norm_wire.h carries the sums
// and sync/routes/norm_book.h adds them up. Calls: nothing.

#include <array>
#include <cstddef>
#include <span>

namespace poseidon {

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
