#pragma once

// Our own engine as a worker's framework: network, data, initial values, training, model.
//
// Called by: sync/node/worker_node.h, through sync/node/framework.h; worker/worker_main.h makes it.
// Calls: worker/engine/engine.h, worker/data/feed/batches.h, worker/trainer.h,
// worker/measure_compute.h.

#include <memory>
#include <utility>

#include "sync/node/framework.h"
#include "worker/engine/engine.h"

namespace poseidon {

struct NativeFrameworkOptions {
  Engine engine;
  int threads = 0;       ///< of the engine; 0: all cores
  int data_threads = 1;  ///< that read and decode; 1 to kMaxDataThreads
};

class NativeFramework final : public Framework {
 public:
  explicit NativeFramework(NativeFrameworkOptions options) : options_(std::move(options)) {}

  std::unique_ptr<FrameworkJob> begin_job() override;
  absl::Status measure(const v1::CalibrateCompute& task, const std::atomic<bool>& cancelled,
                       v1::CalibrationReport& report) override;
  /// An error of the device, or of reading samples (worker/data/formats/storage_failure.h).
  absl::Status broken_by(const absl::Status& failure) override;

 private:
  const NativeFrameworkOptions options_;
};

}  // namespace poseidon
