#pragma once

// The engine that a worker computes on, chosen when its process starts: the seam between the worker
// and the kinds of hardware.
//
// Called by: worker/worker_main.h, worker/native_framework.h. Calls: an implementation;
// open_engine.h has those of poseidon-worker.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/executor.h"

namespace poseidon {

struct Engine {
  std::string device;  ///< as `poseidon status` shows it: "cpu"
  /// Any thread; each executor is then used by one alone.
  std::function<absl::StatusOr<std::unique_ptr<Executor>>(const NetSpec&, const ExecutorOptions&)>
      make_executor;
  /// Called when a job has failed. Returns why this process can no longer use the device (after an
  /// error of its own a GPU accepts no work of the process), or OK when it can or the state is
  /// unknown. Any thread.
  std::function<absl::Status()> health = [] { return absl::OkStatus(); };
  std::string gpu_bus_id = "";  ///< where it is, "0000:3b:00.0"; "" of a CPU
};

/// After `failure` of a job: why the process should end, because no other job can succeed here and
/// a replacement lets this job continue. OK when the device is not at fault.
inline absl::Status device_failure(const Engine& engine, const absl::Status& failure) {
  const absl::Status health = engine.health();
  if (health.ok()) return health;
  return absl::UnavailableError(absl::StrCat(
      engine.device, " cannot be used any more by this process, which ends: ", health.message(),
      " (", failure.message(), ")"));
}

}  // namespace poseidon
