#pragma once

// A node's end of the control stream: joins the coordinator, sends heartbeats from a thread of its
// own, delivers assignments. A job in progress continues while the coordinator is away: reports are
// kept (common/node/report_outbox.h) and sent when it is back. Used by servers and workers.
//
// Called by: sync/node/worker_node.h and server/server_node.h, which report. Calls:
// coordinator/service.h, through common/node/control_stream.h; its commands come back through
// ControlEvents.
//
// Threads: the caller of run() (main()'s thread) reads the stream and calls ControlEvents; another
// thread sends heartbeats. The stream itself lives on the transport's loop.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/probes/node_probe.h"
#include "common/security/security.h"
#include "common/transport/transport.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// A daemon's reactions to the coordinator's commands. Called one at a time, on the client's
/// thread; must return quickly (long work belongs on a thread of the daemon's own).
class ControlEvents {
 public:
  virtual ~ControlEvents() = default;
  virtual void on_joined(const v1::Joined& joined) = 0;
  virtual void on_calibrate(const v1::Calibrate& calibrate) = 0;
  virtual void on_assign(const v1::Assignment& assignment) = 0;
  virtual void on_start(const v1::Start& start) = 0;
  virtual void on_stop(const v1::StopJob& stop) = 0;
  virtual void on_halt(const v1::Halt& halt) = 0;
  virtual void on_save_checkpoint(const v1::SaveCheckpoint& save) = 0;
  virtual void on_forget_checkpoint(const v1::ForgetCheckpoint& forget) = 0;
  /// Servers only.
  virtual void on_keep_checkpoints(const v1::KeepCheckpoints& /*keep*/) {}
  /// The stream broke. The client tries to join again by itself. A job in progress continues; a
  /// calibration ends.
  virtual void on_away(const absl::Status& reason) = 0;
  /// The coordinator is back but did not reattach this node to its job, so the job must end here.
  /// Called before on_joined.
  virtual void on_lost(const absl::Status& reason) = 0;
  /// Updates the fields that may have changed since the last Join of this process.
  virtual void fill_join(v1::Join& /*join*/) {}
  /// Fills the running totals of the next heartbeat. Called on the heartbeat thread.
  virtual void fill_heartbeat(v1::Heartbeat& heartbeat) = 0;
};

inline constexpr std::string_view kAttachMethod = "/poseidon.v1.Coordinator/Attach";
/// Keepalive of the coordinator's connections, so that a cut network does not look like a quiet
/// coordinator. A dead connection is detected within one to two of these intervals.
inline constexpr Milliseconds kAttachKeepalive{2000};

struct ControlClientOptions {
  Transport* transport = nullptr;  ///< speaks kAttachMethod, on the loop of the rest
  std::string coordinator;         ///< HOST:PORT
  std::shared_ptr<Security> security = Security::none();
  v1::Join join;  ///< describes this node; the client fills in versions and incarnation
  /// How long to try to reach a coordinator the first time (with back-off from 100 ms to 2 s).
  Milliseconds join_timeout{60000};
  /// The same after the first contact (a job may wait for this node, even if it has no part in it
  /// yet), and for the upload of a model.
  Milliseconds away_timeout{3600000};
  /// Called on the heartbeat thread with every beat and at least once a second, joined or not: the
  /// client is alive. May be null.
  std::function<void()> on_turn;
  /// Records traces; the client answers the coordinator's requests for them. Null: no traces.
  std::shared_ptr<NodeProbe> probe = nullptr;
};

/// Receives a daemon's reports: the control client, or its twin in simulations.
class ReportSink {
 public:
  virtual ~ReportSink() = default;
  /// Any thread; never waits for the network. Reports about the current assignment are kept until
  /// it ends, with or without a stream, and reach the coordinator in order. Other messages are
  /// dropped (false) when there is no stream.
  virtual bool send(v1::NodeMessage message) = 0;
};

class ControlClient final : public ReportSink {
 public:
  ControlClient(ControlClientOptions options, ControlEvents* events);
  ~ControlClient() override;  ///< stops, joins all threads

  /// Joins and serves events until stop() (then OK), until the coordinator refuses us (its reason),
  /// or until it cannot be reached for join_timeout or away_timeout (UNAVAILABLE naming address and
  /// seconds).
  absl::Status run();

  /// Any thread. Sends Leave if joined, ends run(). Idempotent.
  void stop(const std::string& reason);

  /// Any thread. Says Goodbye, so that the job goes on without this node, and works on until the
  /// coordinator releases it or cannot be reached, for `patience` at most. Then as stop(). At once
  /// where the node has no part in a job, or is not joined. Idempotent.
  void stop_when_released(const std::string& reason, Milliseconds patience);

  bool send(v1::NodeMessage message) override;

  /// Any thread. Uploads a file's bytes, the pieces one after the other, as the job's model
  /// (Coordinator.UploadModel), announced on the control stream by their SHA-256, without which the
  /// coordinator takes nothing. While the coordinator is away and this node has its part in the
  /// job, tries again.
  absl::Status upload_model(std::uint64_t epoch, std::span<const std::string_view> pieces);
  absl::Status upload_model(std::uint64_t epoch, std::string_view bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
