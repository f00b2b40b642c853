#pragma once

// Names a range of a layer's parameters or optimizer state.
//
// Called by: sync/states/factor_state.h, worker/engine/executor.h. Calls: nothing.

#include <cstdint>

namespace poseidon {

/// Elements [offset, offset + elements) of a layer's parameters (slot 0, all tensors end to end) or
/// of one of the optimizer's slots (1 and 2, laid out alike).
struct StateRange {
  int slot = 0;
  std::int64_t offset = 0, elements = 0;

  bool operator==(const StateRange&) const = default;
};

}  // namespace poseidon
