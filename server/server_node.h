#pragma once

// One server process in the cluster: takes assignments from the coordinator and hands them to the
// shard service. Thin: no decisions about data.

#include <memory>
#include <mutex>
#include <string>

#include "common/control_client.h"
#include "common/link_probe.h"
#include "common/node_calibration.h"
#include "common/node_report.h"
#include "common/wire.h"
#include "server/shard_service.h"

namespace poseidon {

/// Callbacks come from the control client's threads.
class ServerNode final : public ControlEvents {
 public:
  /// All must outlive the node; `metrics` may be null. set_client before the client runs.
  /// `probe` may be null too: then nothing measures the network of this node.
  ServerNode(ShardService* service, const RefusalCounts* refusals, NodeMetrics* metrics,
             LinkProbe* probe);
  void set_client(ControlClient* client) {
    client_ = client;
    calibration_.set_client(client);
  }

  void on_joined(const v1::Joined& joined) override;
  void on_calibrate(const v1::Calibrate& calibrate) override { calibration_.begin(calibrate); }
  void on_assign(const v1::Assignment& assignment) override;
  void on_start(const v1::Start& /*start*/) override {}
  void on_stop(const v1::StopJob& stop) override;
  void on_lost(const absl::Status& reason) override;
  void fill_heartbeat(v1::Heartbeat& heartbeat) override;

 private:
  absl::Status assign(const v1::Assignment& assignment);
  void drop(Epoch epoch);

  ShardService* const service_;
  const RefusalCounts* const refusals_;
  NodeMetrics* const metrics_;
  ControlClient* client_ = nullptr;
  NodeCalibration calibration_;

  std::mutex mutex_;  ///< guards all below
  std::shared_ptr<TrafficProbe> traffic_;
  Epoch epoch_;
};

}  // namespace poseidon
