#pragma once

// One worker process in the cluster: takes assignments from the coordinator and runs each on a
// thread of its own: network, data, synchronisation, training, tests, model.
//
// Before: the coordinator's Assignment. After: worker/trainer.h.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/control_client.h"
#include "common/link_probe.h"
#include "common/node_calibration.h"
#include "common/node_metrics.h"
#include "common/transport.h"
#include "common/wire.h"
#include "worker/engine/engine.h"
#include "worker/sync_client.h"

namespace poseidon {

struct WorkerNodeOptions {
  Engine engine;
  int threads = 0;              ///< of the engine; 0: all cores
  int data_threads = 1;         ///< that read and decode; 1 to kMaxDataThreads
  SyncClientOptions sync;       ///< but for sync.syncer.sfb, which the job decides
  Transport* stores = nullptr;  ///< speaks kStoreMethod, on the loop of the rest
  /// Of the transports of synchronisation, to the plan's Plan::window_bytes. May be null.
  std::function<void(std::int64_t)> set_windows;
  PeerAccess peers;  ///< for layers that go by SFB; what it points to outlives the node
  std::shared_ptr<NodeProbe> probe = std::make_shared<NodeProbe>();
};

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
  /// Ends the job in progress; call it before the client goes.
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
  class Job;

  /// Before a job: how fast its network computes here.
  absl::Status measure(const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                       v1::CalibrationReport& report) const;
  /// Ends the job in progress or the measurement before it, if there is one, and waits until its
  /// thread is gone.
  void end_job(const absl::Status& reason);

  Transport* const transport_;
  RefusalCounts* const refusals_;
  NodeMetrics* const metrics_;
  const WorkerNodeOptions options_;
  ControlClient* client_ = nullptr;
  NodeCalibration calibration_;

  std::mutex mutex_;  ///< guards job_
  std::shared_ptr<Job> job_;
};

}  // namespace poseidon
