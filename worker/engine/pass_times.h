#pragma once

// When each parameter layer computed in a pass, told by an asynchronous device itself: there the
// hooks tell when work was queued. Before: the walk (network_executor.h), which says what belongs
// to which layer. After: Executor::device_times.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// One thread only, the executor's. Of a synchronous device there are no intervals, and nothing
/// here costs anything.
class PassTimes {
 public:
  /// For passes of up to `intervals`; the device outlives it. Errors: the device's.
  static absl::StatusOr<PassTimes> create(Device* device, std::size_t intervals);
  PassTimes() = default;

  void begin_pass();
  /// What the device is given from now on, until end(), is the layer's. At most as often in a pass
  /// as there are intervals.
  absl::Status begin(LayerIndex layer);
  absl::Status end();
  /// When the device has nothing queued any more: makes intervals().
  absl::Status read();

  /// In the order of the pass, counted from the first one's begin. None before read().
  std::span<const LayerInterval> intervals() const { return intervals_; }

 private:
  struct Marks {
    std::unique_ptr<DeviceMark> begin, end;
  };

  Device* device_ = nullptr;
  std::vector<Marks> marks_;        ///< none of a synchronous device
  std::vector<LayerIndex> layers_;  ///< begun in this pass
  std::vector<LayerInterval> intervals_;
};

}  // namespace poseidon
