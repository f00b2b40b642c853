#pragma once

// The node's side of one Attach call. Part of common/node/control_client.cc, which states the
// concurrency contract; no other file includes this.
//
// Called by: common/node/control_client.cc. Calls: common/node/report_outbox.h for reports;
// coordinator/service.cc on the other side, whose messages wait here until the client takes them.
//
// It is a stream of the daemon's own transport and lives on its loop. gRPC's callback interface
// would add polling threads, and in gRPC any polling thread reads all connections: half of the data
// path would run on those threads (bench/RESULTS.md).

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/node/report_outbox.h"
#include "common/threads/mutex.h"
#include "common/threads/thread_roles.h"
#include "common/transport/transport.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// The reports of the job in progress, which outlive streams. Its mutex is the innermost lock.
struct SharedOutbox {
  Mutex mutex;
  ReportOutbox outbox ABSL_GUARDED_BY(mutex);
};

/// All public functions: any thread but the loop's own.
class ControlStream final : public StreamHandler,
                            public std::enable_shared_from_this<ControlStream> {
 public:
  /// `transport` (for kAttachMethod) must outlive it.
  static std::shared_ptr<ControlStream> open(const std::string& address, Transport* transport,
                                             std::shared_ptr<SharedOutbox> reports);

  /// False when the stream has ended. Sent in order, before waiting reports.
  bool send(v1::NodeMessage message);
  /// From now on, sends present and future reports of the outbox.
  void send_reports();
  /// Tells the stream that the outbox has a new report.
  void look_for_reports();
  /// Half-closes: the coordinator sees the end of the stream after the queued messages.
  void finish_sending();
  /// Ends with CANCELLED, unless it has ended already.
  void cancel();

  /// Waits for a message, the end, or the deadline; `interrupt` (set under wake()) ends it as well.
  template <typename Predicate>
  std::optional<v1::CoordinatorMessage> wait(std::chrono::steady_clock::time_point deadline,
                                             Predicate interrupt) {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return incoming_ || done_ || interrupt();
    });
    std::optional<v1::CoordinatorMessage> message;
    message.swap(incoming_);
    // Reads on only now, so that back-pressure reaches the coordinator.
    if (message) resume_reads();
    return message;
  }
  void wake();

  /// How the stream ended; nullopt while it is open.
  std::optional<absl::Status> end();

  // On the loop.
  ReadNext on_message(Bytes message) override;
  void on_written() override;
  void on_closed(const absl::Status& status) override;

 private:
  ControlStream(Transport* transport, std::shared_ptr<SharedOutbox> reports)
      : transport_(transport), reports_(std::move(reports)) {}
  void on_loop(void (ControlStream::*function)());
  void resume_reads();

  void write_next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_);
  void give_up() ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_);
  void end_with(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_);

  Transport* const transport_;
  const std::shared_ptr<SharedOutbox> reports_;
  LoopRole loop_;
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(loop_);  ///< gone with the end
  bool writing_ ABSL_GUARDED_BY(loop_) = false;
  bool half_closed_ ABSL_GUARDED_BY(loop_) = false;

  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::NodeMessage> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool sends_reports_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::CoordinatorMessage> incoming_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
