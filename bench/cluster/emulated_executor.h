#pragma once

// An engine that computes nothing and takes as long as a GPU: it sleeps until the GPU would be
// done. Everything around it is real.
//
// Called by: worker/trainer.h, like any Executor. Calls: device_profile.h, device_timeline.h.
//
// All times of the profile and the device's rates are slowed by a factor. The benchmark slows the
// network by the same factor and divides the measured times by it.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/cluster/device_profile.h"
#include "bench/cluster/device_timeline.h"
#include "common/base/clock.h"
#include "worker/engine/executor.h"

namespace poseidon::bench {

/// A wait in before_forward that lasted longer than this was for parameters, and the device was
/// idle meanwhile; shorter waits are noise of the host.
inline constexpr Nanoseconds kHostDelay = Milliseconds(2);

/// What communication overlaps with, for ablations; Poseidon does kAll.
enum class Overlap {
  kAll,       ///< of backward and of forward, layer by layer
  kBackward,  ///< of backward only: forward begins when all parameters have arrived
  kNone,      ///< also, gradients are sent only when all of backward is done
};

struct EmulationOptions {
  DeviceProfile profile;
  double slow = 1.0;  ///< the factor; above 0
  Overlap overlap = Overlap::kAll;
  /// Parameters and gradients lie in this file, which all workers of this machine share: their
  /// parameters are equal, and gradients are not read. "": each has memory of its own.
  std::string shared_file;
  const Clock* clock = nullptr;
  std::function<void(Nanoseconds)> sleep_until;  ///< a time of `clock`
};

/// The rules, beside the profile's times:
///  - forward(l) begins when the device is free, and not before l's parameters are there;
///  - a layer whose factors are kept computes no weight gradient: half of its backward is left out,
///    as the other half, the gradient of its input, has as many operations;
///  - step_from_factors is the stacked product (2 rows M N operations) and the optimizer's step
///    (20 bytes per parameter: gradient, weight and momentum read, both written).
/// Losses are 1; tests are not emulated (UNIMPLEMENTED).
absl::StatusOr<std::unique_ptr<Executor>> make_emulated_executor(const NetSpec& net,
                                                                 const ExecutorOptions& options,
                                                                 const EmulationOptions& emulation);

}  // namespace poseidon::bench
