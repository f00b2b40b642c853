#pragma once

// A node's end of the control stream: joins the coordinator, sends heartbeats from a thread of its
// own, hands over assignments. When the coordinator is away, a job in progress goes on: reports are
// kept (common/node/report_outbox.h) and told when it is back. Used by servers and workers alike.
//
// Before: worker/worker_node.h and server/server_node.h report. After: coordinator/service.h, by
// common/node/control_stream.h; what it says comes back through ControlEvents.
//
// Threads: the caller of run(), which is main()'s, reads the stream and calls ControlEvents;
// another one beats. The stream itself lives on the transport's loop.

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

/// What a daemon does with the coordinator's commands. Called one at a time, on the client's
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
  /// The stream broke. The client tries to join again by itself; a job in progress goes on, a
  /// calibration does not.
  virtual void on_away(const absl::Status& reason) = 0;
  /// The coordinator is back and did not take this node back into its job: that must end. Before
  /// on_joined.
  virtual void on_lost(const absl::Status& reason) = 0;
  /// What may have changed since the last Join of this process.
  virtual void fill_join(v1::Join& /*join*/) {}
  /// Fills the running totals of the next heartbeat. Called on the heartbeat thread.
  virtual void fill_heartbeat(v1::Heartbeat& heartbeat) = 0;
};

inline constexpr std::string_view kAttachMethod = "/poseidon.v1.Coordinator/Attach";
/// Of connections for it: a cut network shall not look like a quiet coordinator. One that is dead
/// while another would do is found out after once to twice this time.
inline constexpr Milliseconds kAttachKeepalive{2000};

struct ControlClientOptions {
  Transport* transport = nullptr;  ///< speaks kAttachMethod, on the loop of the rest
  std::string coordinator;         ///< HOST:PORT
  std::shared_ptr<Security> security = Security::none();
  v1::Join join;  ///< what to say of ourselves; versions and incarnation are filled in
  /// How long to try (with back-off from 100 ms to 2 s) to reach a coordinator at first.
  Milliseconds join_timeout{60000};
  /// The same for one that has answered once and is away (a job may wait for this node, whether it
  /// has a part by now or not), and for the upload of a model.
  Milliseconds away_timeout{3600000};
  /// Called on the heartbeat thread with every beat and at least once a second, joined or not: the
  /// client is alive. May be null.
  std::function<void()> on_turn;
  /// What records traces; the client answers the coordinator for it. May be null: there are none.
  std::shared_ptr<NodeProbe> probe = nullptr;
};

/// Where a daemon's reports go: to the control client, or its twin in simulations.
class ReportSink {
 public:
  virtual ~ReportSink() = default;
  /// Any thread; never waits for the network. Reports about the assignment in force are kept until
  /// it ends, whether there is a stream or not, and reach the coordinator in their order. Other
  /// messages are dropped (false) when there is no stream just now.
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

  bool send(v1::NodeMessage message) override;

  /// Any thread. Uploads a file's bytes, the pieces one after the other, as the job's model
  /// (Coordinator.UploadModel). While the coordinator is away and this node has its part in the
  /// job, tries again.
  absl::Status upload_model(std::uint64_t epoch, std::span<const std::string_view> pieces);
  absl::Status upload_model(std::uint64_t epoch, std::string_view bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
