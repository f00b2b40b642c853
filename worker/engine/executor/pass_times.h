#pragma once

// Times, measured by an asynchronous device itself, at which each parameter layer computed in a
// pass and, on request, at which copies ran. On such a device the hooks only tell when work was
// queued.
//
// Called by: the walk (network_executor.h), which assigns work to layers; Executor::device_times.
// Calls: the device's marks.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/probes/stage.h"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// One thread only, the executor's. A synchronous device has no intervals, and these calls cost
/// nothing. All marks are made in create(): a pass makes none.
class PassTimes {
 public:
  /// For passes of at most this many of each; the device must outlive it. Errors: the device's.
  static absl::StatusOr<PassTimes> create(Device* device, std::size_t intervals,
                                          std::size_t copies);
  PassTimes() = default;

  /// Before a pass.
  void time(PassTiming wanted) { wanted_ = wanted; }
  /// False of a synchronous device.
  bool has_clock() const { return origin_ != nullptr; }

  /// While the device has nothing queued: its times are counted from here.
  absl::Status begin_pass();
  /// Work queued from now on, until end(), belongs to the layer. At most as often in a pass as
  /// there are intervals.
  absl::Status begin(LayerIndex layer);
  absl::Status end();
  /// The marks for the next copy. None when times are not wanted, or beyond the limit of copies in
  /// a pass. `layer`: as in CopyInterval.
  CopyMarks copy(Stage stage, std::optional<LayerIndex> layer, std::int64_t bytes);
  /// When the device has nothing queued any more: makes times().
  absl::Status read();

  /// None before read().
  DeviceTimes times() const { return {.layers = intervals_, .copies = copies_}; }

 private:
  struct Marks {
    std::unique_ptr<DeviceMark> begin, end;
  };
  static absl::StatusOr<std::vector<Marks>> make_marks(Device* device, std::size_t count);
  /// Fills begin and end.
  template <typename Interval>
  absl::Status read(const Marks& marks, Interval& interval);

  Device* device_ = nullptr;
  std::unique_ptr<DeviceMark> origin_;           ///< null of a synchronous device, which has ...
  std::vector<Marks> layer_marks_, copy_marks_;  ///< ... none of these
  PassTiming wanted_ = PassTiming::kLayers;
  // Begun in this pass, without their times.
  std::vector<LayerInterval> begun_;
  std::vector<CopyInterval> started_;
  // With their times.
  std::vector<LayerInterval> intervals_;
  std::vector<CopyInterval> copies_;
};

}  // namespace poseidon
