#pragma once

// One Attach call, a node's side. Inside of common/control_client.cc, which has the concurrency
// contract; nobody else includes this.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/report_outbox.h"
#include "common/security.h"
#include "grpcpp/grpcpp.h"
#include "poseidon/v1/control.grpc.pb.h"

namespace poseidon {

absl::Status to_absl(const grpc::Status& status);

/// To the coordinator: notices a cut cable within two keepalives.
std::shared_ptr<grpc::Channel> make_control_channel(const std::string& address,
                                                    const Security& security);

/// The reports of the job in progress, which outlive streams. Its mutex is the last that anybody
/// takes.
struct SharedOutbox {
  std::mutex mutex;
  ReportOutbox outbox;  ///< guarded by mutex
};

/// Keeps itself alive until reap() after gRPC has reported its end.
///
/// It must never die on one of gRPC's threads: with it may go the process's last channel, and gRPC
/// then joins its callback threads, which ends in a double release when one of them does the
/// joining. So OnDone only reports, and the thread of run() reaps.
class ControlStream final
    : public grpc::ClientBidiReactor<v1::NodeMessage, v1::CoordinatorMessage> {
 public:
  ControlStream(std::shared_ptr<SharedOutbox> reports, std::shared_ptr<const Security> security)
      : reports_(std::move(reports)), security_(std::move(security)) {}
  static std::shared_ptr<ControlStream> open(const std::string& address,
                                             std::shared_ptr<SharedOutbox> reports,
                                             std::shared_ptr<const Security> security);

  /// False when the stream has ended. In order, and before reports that wait.
  bool send(v1::NodeMessage message);
  /// From now on what the outbox has, and gets, is sent.
  void send_reports();
  /// The outbox got something.
  void look_for_reports();
  /// No more from us: after what is queued, the coordinator sees the end of the stream.
  void finish_sending();
  void cancel();

  /// Waits for a message, the end, or the deadline; `interrupt` (set under wake()) ends it as well.
  template <typename Predicate>
  std::optional<v1::CoordinatorMessage> wait(std::chrono::steady_clock::time_point deadline,
                                             Predicate interrupt) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return received_ || done_ || interrupt(); });
    if (!received_) return std::nullopt;
    received_ = false;
    std::optional<v1::CoordinatorMessage> message(std::move(incoming_));
    incoming_.Clear();
    // Only now the next read: what the daemon has not taken stays with the coordinator.
    if (!closed_) StartRead(&incoming_);
    return message;
  }
  void wake();

  /// How the stream ended; nothing while it has not.
  std::optional<absl::Status> end();
  /// After the last wait(). A stream that gRPC never reported the end of stays behind.
  void reap();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void start_write_locked();
  void draw_report_locked();
  void close_locked();

  const std::shared_ptr<SharedOutbox> reports_;
  const std::shared_ptr<const Security> security_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  v1::CoordinatorMessage incoming_;  ///< gRPC's until received_, then under mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<v1::NodeMessage> outgoing_;  ///< the front is gRPC's while writing_
  bool sends_reports_ = false;
  bool writing_ = false;
  bool half_closing_ = false;
  bool half_closed_ = false;
  bool received_ = false;
  bool closed_ = false;  ///< no further operation may be started
  std::optional<absl::Status> done_;
  std::shared_ptr<ControlStream> self_;
};

}  // namespace poseidon
