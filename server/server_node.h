#pragma once

// One server process in the cluster: passes the coordinator's assignments to the shard service, and
// restores chunks when the job resumes from a checkpoint. It makes no decisions about data.
//
// Called by: common/node/control_client.h, with the coordinator's commands. Calls:
// server/shard/shard_service.h, server/store/checkpoint_keeper.h, common/checkpoint/store_client.h.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/checkpoint/restore_source.h"
#include "common/checkpoint/store_client.h"
#include "common/node/control_client.h"
#include "common/node/link_probe.h"
#include "common/node/node_calibration.h"
#include "common/node/node_counters.h"
#include "common/pages/node_metrics.h"
#include "common/threads/mutex.h"
#include "common/threads/thread_roles.h"
#include "common/wire/wire.h"
#include "server/shard/shard_service.h"
#include "server/store/checkpoint_keeper.h"
#include "server/store/replica_sender.h"

namespace poseidon {

/// The parts of a server; all outlive the node.
struct ServerNodeParts {
  ShardService* service = nullptr;
  CheckpointKeeper* keeper = nullptr;
  Transport* stores = nullptr;  ///< speaks kStoreMethod, on the service's loop
  std::shared_ptr<NodeProbe> probe;
  const RefusalCounts* refusals = nullptr;
  NodeMetrics* metrics = nullptr;  ///< may be null
  LinkProbe* link = nullptr;       ///< null: this node's network is not measured
  int threads = 1;                 ///< threads of the service's team, for measurements
  /// Sets the window of the service's transport to Plan::window_bytes. May be null.
  std::function<void(std::int64_t)> set_window = nullptr;
  CounterSources counters;  ///< of the heartbeats
};

/// Callbacks come from the control client's threads.
class ServerNode final : public ControlEvents {
 public:
  /// set_client before the client runs. Destroyed only once the loop has stopped.
  explicit ServerNode(const ServerNodeParts& parts);
  void set_client(ReportSink* client) {
    client_ = client;
    calibration_.set_client(client);
  }
  /// Ends measurements. Afterwards stop the loop and the disk thread, which also report; then
  /// destroy the client.
  void end() { calibration_.end(); }

  void on_joined(const v1::Joined& joined) override;
  void on_calibrate(const v1::Calibrate& calibrate) override { calibration_.begin(calibrate); }
  void on_assign(const v1::Assignment& assignment) override;
  void on_start(const v1::Start& /*start*/) override {}
  void on_stop(const v1::StopJob& stop) override;
  void on_halt(const v1::Halt& halt) override;
  void on_save_checkpoint(const v1::SaveCheckpoint& save) override;
  void on_forget_checkpoint(const v1::ForgetCheckpoint& forget) override;
  void on_keep_checkpoints(const v1::KeepCheckpoints& keep) override;
  void on_away(const absl::Status& reason) override;
  void on_lost(const absl::Status& reason) override;
  void fill_join(v1::Join& join) override;
  void fill_heartbeat(v1::Heartbeat& heartbeat) override;

 private:
  absl::Status assign(const v1::Assignment& assignment);
  void drop(Epoch epoch);
  void send_checkpoint_report(const SnapshotResult& result, bool too_late = false);
  absl::Status save_held(Shard& shard, SnapshotId snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_);
  absl::Status restore(const v1::RestoreSource& message, const Plan& plan, ServerIndex self,
                       int state_slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_);

  ShardService* const service_;
  CheckpointKeeper* const keeper_;
  Transport* const stores_;
  const std::shared_ptr<NodeProbe> probe_;
  const RefusalCounts* const refusals_;
  NodeMetrics* const metrics_;
  ReportSink* client_ = nullptr;
  NodeCalibration calibration_;

  Mutex mutex_;
  std::shared_ptr<TrafficProbe> traffic_ ABSL_GUARDED_BY(mutex_);
  Epoch epoch_ ABSL_GUARDED_BY(mutex_);

  LoopRole loop_;  ///< the service's and the stores'
  /// The piece of worker 0's own state, if this server keeps it.
  std::optional<PieceId> own_state_piece_ ABSL_GUARDED_BY(loop_);
  std::unique_ptr<StoreTransfer> transfer_ ABSL_GUARDED_BY(loop_);
  ReplicaSender replicas_ ABSL_GUARDED_BY(loop_);
  const std::function<void(std::int64_t)> set_window_;
  const CounterSources counters_;
};

}  // namespace poseidon
