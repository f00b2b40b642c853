#pragma once

// What a worker computes on, chosen when its process starts: the seam between the worker and its
// kinds of hardware. open_engine.h knows those that poseidon-worker offers.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/executor.h"

namespace poseidon {

struct Engine {
  std::string device;  ///< as `poseidon status` shows it: "cpu"
  /// Any thread; each executor is then used by one alone.
  std::function<absl::StatusOr<std::unique_ptr<Executor>>(const NetSpec&, const ExecutorOptions&)>
      make_executor;
  /// Asked when a job has failed: why this process can use the device no more (a GPU that met an
  /// error of its own takes nothing from it any more), OK when it can or nobody knows. Any thread.
  std::function<absl::Status()> health = [] { return absl::OkStatus(); };
};

}  // namespace poseidon
