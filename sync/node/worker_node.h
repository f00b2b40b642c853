#pragma once

// One worker process in the cluster: carries out the coordinator's commands.
//
// Called by: common/node/control_client.h, with the coordinator's commands. Calls: worker_job.h,
// which runs each assignment; framework.h, which measures the speed of a job's network before it.

#include <atomic>
#include <memory>

#include "common/node/control_client.h"
#include "common/node/link_probe.h"
#include "common/node/node_calibration.h"
#include "common/pages/node_metrics.h"
#include "common/threads/mutex.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/node/worker_job.h"

namespace poseidon {

/// Callbacks come from the control client's threads.
class WorkerNode final : public ControlEvents {
 public:
  /// All must outlive the node; `metrics` and `probe` may be null. set_client before the client
  /// runs.
  WorkerNode(Transport* transport, RefusalCounts* refusals, NodeMetrics* metrics, LinkProbe* probe,
             WorkerNodeOptions options);
  ~WorkerNode() override;
  void set_client(ControlClient* client) {
    client_ = client;
    calibration_.set_client(client);
  }
  /// Why the framework is broken (Framework::broken_by); OK while it is not. On an error the node
  /// has left the cluster and ControlClient::run has returned. The process should then end at once:
  /// freeing the device's memory or waiting for readers may never return.
  absl::Status failure();
  /// Ends the job in progress; call it before the client is destroyed.
  void end() { end_job(absl::CancelledError("the worker stops")); }

  void on_joined(const v1::Joined& joined) override;
  void on_calibrate(const v1::Calibrate& calibrate) override;
  void on_assign(const v1::Assignment& assignment) override;
  void on_start(const v1::Start& start) override;
  void on_stop(const v1::StopJob& stop) override;
  void on_halt(const v1::Halt& halt) override;
  void on_save_checkpoint(const v1::SaveCheckpoint& save) override;
  void on_forget_checkpoint(const v1::ForgetCheckpoint& /*forget*/) override {}
  void on_away(const absl::Status& reason) override;
  void on_lost(const absl::Status& reason) override;
  void fill_heartbeat(v1::Heartbeat& heartbeat) override;

 private:
  /// Measures, before a job, how fast its network computes here.
  absl::Status measure(const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                       v1::CalibrationReport& report);
  /// Ends the job in progress or the measurement before it, if there is one, and waits until its
  /// thread is gone.
  void end_job(const absl::Status& reason);
  void end_epoch(const absl::Status& reason);
  void leave(const absl::Status& failure);

  Transport* const transport_;
  RefusalCounts* const refusals_;
  NodeMetrics* const metrics_;
  const WorkerNodeOptions options_;
  ControlClient* client_ = nullptr;
  NodeCalibration calibration_;

  Mutex mutex_;
  std::shared_ptr<WorkerJob> job_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
