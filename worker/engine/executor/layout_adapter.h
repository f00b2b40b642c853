#pragma once

// Adapts operators that only compute on plain tensors to neighbours with another layout. Shared by
// the devices; each converts layouts in its own way.
//
// Called by: worker/engine/cpu/cpu_device.h and worker/engine/cuda/cuda_device.cc. Calls: the
// adapted operator.

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/device.h"

namespace poseidon {

/// Types between convolutions, whose operators compute in a device's own layout too: all inputs and
/// the output in it.
bool passes_layouts_on(LayerType type);

/// The plain twin of a tensor in the device's layout. Its memory may be that of other operators'
/// twins: nothing in it outlives a forward or a backward.
class PlainTwin {
 public:
  virtual ~PlainTwin() = default;
  virtual float* values() = 0;  ///< device; asked for anew in each pass
  /// To values() what is at `tensor`; in order with the operators' work.
  virtual absl::Status take(const float* tensor) = 0;
  /// From values() to `tensor`; likewise.
  virtual absl::Status give(float* tensor) = 0;
};
/// Of a batch of that shape, and the layout that is not kPlain.
using MakePlainTwin = std::function<absl::StatusOr<std::unique_ptr<PlainTwin>>(
    std::int64_t batch, const Shape& shape, Layout layout)>;

/// `plain`, made with all layouts plain, between tensors in the layouts of `options`.
absl::StatusOr<std::unique_ptr<LayerOperator>> adapt_layouts(std::unique_ptr<LayerOperator> plain,
                                                             const LayerSpec& layer,
                                                             const OperatorOptions& options,
                                                             const MakePlainTwin& make_twin);

}  // namespace poseidon
