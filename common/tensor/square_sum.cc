#include "common/tensor/square_sum.h"

#include <algorithm>

namespace poseidon {

void SquareSum::add(std::span<const float> values) {
  const auto one = [this](float value) {
    lanes_[at_] += static_cast<double>(value) * static_cast<double>(value);
    at_ = (at_ + 1) % kLanes;
  };
  std::size_t i = 0;
  for (; i < values.size() && at_ != 0; ++i) one(values[i]);
  std::array<double, kLanes> lanes = lanes_;  // a copy, which stays in registers
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  lanes_ = lanes;
  for (; i < values.size(); ++i) one(values[i]);
}

double SquareSum::total() const {
  return ((lanes_[0] + lanes_[1]) + (lanes_[2] + lanes_[3])) +
         ((lanes_[4] + lanes_[5]) + (lanes_[6] + lanes_[7]));
}

double square_sum(std::span<const float> values) {
  SquareSum sum;
  sum.add(values);
  return sum.total();
}

}  // namespace poseidon
