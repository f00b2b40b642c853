#pragma once

// Access to a worker's parameters and optimizer state of SFB layers, in whatever memory they are,
// for example a GPU's.
//
// Called by: sync/states/checkpoint_giver.h, which saves its parts, and sync/node/worker_job.h,
// which restores them. Calls: nothing; worker/executor_factors.h implements it.

#include <span>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/optimizer.h"

namespace poseidon {

/// Trainer's thread only. `values` have as many elements as the range.
class FactorState {
 public:
  virtual ~FactorState() = default;

  /// The number of the optimizer's slots: a layer's ranges are in slots 0 (the parameters) to this
  /// number.
  virtual int optimizer_slots() const = 0;
  virtual absl::Status read(LayerIndex layer, const StateRange& range, std::span<float> values) = 0;
  virtual absl::Status write(LayerIndex layer, const StateRange& range,
                             std::span<const float> values) = 0;
  /// Keeps a copy of these ranges in the same memory; it replaces the layer's earlier copy. With no
  /// ranges, frees that copy.
  virtual absl::Status hold(LayerIndex layer, std::span<const StateRange> ranges) = 0;
  /// Reads one of the ranges of the last hold.
  virtual absl::Status read_held(LayerIndex layer, const StateRange& range,
                                 std::span<float> values) = 0;
};

}  // namespace poseidon
