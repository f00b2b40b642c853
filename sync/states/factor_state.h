#pragma once

// What a worker has of the layers that go by SFB, wherever it is: in the memory of a GPU, say.
//
// Before: worker/executor_factors.h steps it. After: sync/states/checkpoint_giver.h saves its
// parts.

#include <span>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/optimizer.h"

namespace poseidon {

/// Trainer's thread only. `values` have as many elements as the range.
class FactorState {
 public:
  virtual ~FactorState() = default;

  /// Of the optimizer's, so that the layer's ranges are of slots 0 to this.
  virtual int optimizer_slots() const = 0;
  virtual absl::Status read(LayerIndex layer, const StateRange& range, std::span<float> values) = 0;
  virtual absl::Status write(LayerIndex layer, const StateRange& range,
                             std::span<const float> values) = 0;
  /// Keeps a copy of these as they are now, where they are; the layer's earlier copy is gone, and
  /// with no ranges its memory.
  virtual absl::Status hold(LayerIndex layer, std::span<const StateRange> ranges) = 0;
  /// One of those that were held last.
  virtual absl::Status read_held(LayerIndex layer, const StateRange& range,
                                 std::span<float> values) = 0;
};

}  // namespace poseidon
