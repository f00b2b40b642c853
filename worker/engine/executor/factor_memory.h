#pragma once

// Parameters and optimizer slots of layers that are stepped from factors, in the memory of the
// device that steps them, and a copy there of the held version.
//
// Called by: network_executor.h, of which this is a part. Calls: the device, which copies.
//
// Parameters start in host memory, where they were initialised or received. They move to the device
// when it first needs them and stay there, so that a step of a 1 GB layer moves only factors over
// the bus.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/optimizer.h"
#include "worker/engine/device.h"

namespace poseidon {

/// One thread. Device and both memories of the parameters outlive it.
class FactorMemory {
 public:
  /// `host` and `device_parameters` are the same memory where the device shares the host's.
  static absl::StatusOr<std::unique_ptr<FactorMemory>> create(Device* device, std::span<float> host,
                                                              float* device_parameters,
                                                              int optimizer_slots);

  /// After it the device computes with the parameters. Returns at once but the first time.
  absl::Status bring_up();
  bool is_up() const { return is_up_; }
  /// As bring_up, within a pass: whatever is queued later reads them. `marks`: of the copy, if it
  /// is not up yet.
  absl::Status start_bringing_up(const CopyMarks& marks);
  /// Called after a step: the host's parameters are outdated.
  void stepped() { host_is_current_ = false; }

  absl::Status fetch_parameters();
  absl::Status read(const StateRange& range, std::span<float> values);
  absl::Status write(const StateRange& range, std::span<const float> values);
  absl::Status hold(std::span<const StateRange> ranges);
  absl::Status read_held(const StateRange& range, std::span<float> values);

  /// Of the optimizer, in device memory; empty where it has none.
  std::span<float> slot(int number);
  std::span<float> parameters() { return {device_parameters_, host_.size()}; }

 private:
  FactorMemory(Device* device, std::span<float> host, float* device_parameters)
      : device_(device),
        host_(host),
        device_parameters_(device_parameters),
        is_up_(device_parameters == host.data()) {}

  bool is_shared() const { return device_parameters_ == host_.data(); }
  /// Where the values are; of parameters that are not up, in the host's memory. The range is
  /// checked.
  float* place(const StateRange& range);

  Device* const device_;
  const std::span<float> host_;
  float* const device_parameters_;
  std::array<DeviceMemory, 2> slots_ = {DeviceMemory(nullptr, nullptr),
                                        DeviceMemory(nullptr, nullptr)};
  std::vector<StateRange> held_;  ///< end to end in held_values_
  DeviceMemory held_values_{nullptr, nullptr};
  bool is_up_;
  bool host_is_current_ = true;
};

}  // namespace poseidon
