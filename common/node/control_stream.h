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
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/node/report_outbox.h"
#include "common/transport/transport.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// The reports of the job in progress, which outlive streams. Its mutex is the innermost lock.
struct SharedOutbox {
  std::mutex mutex;
  ReportOutbox outbox;  ///< guarded by mutex
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
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return incoming_ || done_ || interrupt(); });
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

  // Loop only.
  void write_next();
  void give_up();
  void end_with(const absl::Status& status);

  Transport* const transport_;
  const std::shared_ptr<SharedOutbox> reports_;
  std::unique_ptr<Stream> stream_;  ///< loop only; gone with the end
  bool writing_ = false;            ///< loop only
  bool half_closed_ = false;        ///< loop only

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<v1::NodeMessage> outgoing_;
  bool sends_reports_ = false;
  bool half_closing_ = false;
  std::optional<v1::CoordinatorMessage> incoming_;
  std::optional<absl::Status> done_;
};

}  // namespace poseidon
