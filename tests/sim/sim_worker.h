#pragma once

// A worker process on the in-memory network: the real Syncer and CheckpointGiver, driven in the
// order of sync/node/worker_job.cc and worker/trainer.cc, with compute that is a random delay. It
// checks everything that it reads against the reference.
//
// Called by: protocol_sim.cc, which starts and kills it. Calls: sync/client/syncer.h,
// tests/sim/truth.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/random.h"
#include "common/probes/node_probe.h"
#include "sync/client/syncer.h"
#include "sync/links/peer_stream.h"
#include "sync/relay/relay_service.h"
#include "tests/sim/sim_control.h"
#include "tests/sim/truth.h"

namespace poseidon::sim {

struct SimWorkerOptions {
  std::string address;
  std::uint32_t process_id = 0;
  std::uint64_t seed = 0;
  Nanoseconds max_compute{0};            ///< of one layer's forward or backward
  Nanoseconds server_timeout{0};         ///< --server-timeout-s
  std::int64_t pending_limit_bytes = 0;  ///< of its relay
};

/// One process. Killed by destroying it, after MemoryNetwork::kill.
class SimWorker final : public ControlEvents {
 public:
  SimWorker(Transport* transport, SimWorkerOptions options, Truth* truth,
            std::function<void(const absl::Status&)> ended);
  ~SimWorker() override;

  void on_joined(const v1::Joined& /*joined*/) override {}
  void on_calibrate(const v1::Calibrate& calibrate) override;
  void on_assign(const v1::Assignment& assignment) override;
  void on_start(const v1::Start& start) override;
  void on_stop(const v1::StopJob& stop) override;
  void on_halt(const v1::Halt& halt) override;
  void on_save_checkpoint(const v1::SaveCheckpoint& save) override;
  void on_forget_checkpoint(const v1::ForgetCheckpoint& /*forget*/) override {}
  void on_away(const absl::Status& /*reason*/) override {}
  void on_lost(const absl::Status& /*reason*/) override;
  void fill_heartbeat(v1::Heartbeat& heartbeat) override;

  void say_goodbye() { control_.say_goodbye(); }

  /// How many streams of its group its relay does not read from just now.
  std::int64_t paused_by_relay() const { return probe_->value(NodeGauge::kPausedStreams); }

 private:
  class Job;
  void end_job();

  Transport* const transport_;
  const SimWorkerOptions options_;
  Truth* const truth_;
  MethodTransport factors_, stores_, relays_;
  const std::shared_ptr<NodeProbe> probe_ = std::make_shared<NodeProbe>();
  RefusalCounts refusals_;
  PeerDoor door_;
  RelayService relay_;
  SimControl control_;
  std::uint64_t jobs_ = 0;
  std::unique_ptr<Job> job_;
};

}  // namespace poseidon::sim
