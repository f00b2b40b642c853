#pragma once

// For tests: FactorState on plain memory.

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/memory/aligned_buffer.h"
#include "sync/states/factor_state.h"

namespace poseidon::testing_support {

class PlainFactorState : public FactorState {
 public:
  /// By slot, then by LayerIndex; the buffers outlive it.
  PlainFactorState(std::array<std::vector<FloatBuffer>*, 3> values, int optimizer_slots)
      : values_(values), optimizer_slots_(optimizer_slots) {}

  int optimizer_slots() const override { return optimizer_slots_; }
  absl::Status read(LayerIndex layer, const StateRange& range, std::span<float> values) override {
    std::ranges::copy(part(layer, range), values.begin());
    return absl::OkStatus();
  }
  absl::Status write(LayerIndex layer, const StateRange& range,
                     std::span<const float> values) override {
    std::ranges::copy(values, part(layer, range).begin());
    return absl::OkStatus();
  }
  absl::Status hold(LayerIndex layer, std::span<const StateRange> ranges) override {
    std::vector<Held>& held = held_[layer.value()];
    held.clear();
    for (const StateRange& range : ranges) {
      const std::span<float> now = part(layer, range);
      held.emplace_back(range, std::vector<float>(now.begin(), now.end()));
    }
    return absl::OkStatus();
  }
  absl::Status read_held(LayerIndex layer, const StateRange& range,
                         std::span<float> values) override {
    for (const auto& [of, held] : held_[layer.value()]) {
      if (of != range) continue;
      std::ranges::copy(held, values.begin());
      return absl::OkStatus();
    }
    return absl::NotFoundError("not held");
  }

 private:
  using Held = std::pair<StateRange, std::vector<float>>;

  std::span<float> part(LayerIndex layer, const StateRange& range) {
    return (*values_[static_cast<std::size_t>(range.slot)])[layer.value()].floats().subspan(
        static_cast<std::size_t>(range.offset), static_cast<std::size_t>(range.elements));
  }

  const std::array<std::vector<FloatBuffer>*, 3> values_;
  const int optimizer_slots_;
  std::map<std::uint32_t, std::vector<Held>> held_;  ///< by LayerIndex
};

}  // namespace poseidon::testing_support
