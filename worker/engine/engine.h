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
};

}  // namespace poseidon
