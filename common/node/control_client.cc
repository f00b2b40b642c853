// Called by: a daemon's main() and its job thread. Calls: coordinator/service.cc, through the
// transport.
//
// Concurrency contract
//  1. run() owns the conversation: it opens streams, waits for their messages and calls
//     ControlEvents. The transport's loop only adds messages to ControlStream under its mutex.
//  2. The heartbeat thread lives as long as run() and knows streams only through send().
//  3. Lock order: Impl::mutex_, ControlStream::mutex_, SharedOutbox::mutex; no lock is held while
//     ControlEvents runs.
//  4. Reports never wait for a stream: send() puts them into the outbox, and the current stream, if
//     any, draws them from it. Only run() begins, rewinds and ends the outbox.

#include "common/node/control_client.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/entropy.h"
#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/files/sha256.h"
#include "common/grpc/grpc_status.h"
#include "common/node/control_stream.h"
#include "common/probes/trace_report.h"
#include "common/threads/mutex.h"
#include "common/wire/snapshot.h"
#include "grpcpp/grpcpp.h"
#include "poseidon/v1/control.grpc.pb.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr Milliseconds kFirstBackoff{100};
constexpr Milliseconds kLongestBackoff{2000};
/// How long one try may take until the coordinator's Joined.
constexpr Milliseconds kAttemptTimeout{5000};
/// How long a clean end may take until the stream is cancelled instead.
constexpr Milliseconds kFarewellTimeout{1000};
/// How long the loop may take to cancel a stream.
constexpr Milliseconds kCancelTimeout{5000};
constexpr std::size_t kModelPartBytes = 1 << 20;
/// The upload's deadline: this much, and longer for a large model.
constexpr std::chrono::seconds kUploadBaseTimeout{60};
constexpr std::size_t kUploadMinBytesPerS = 1 << 20;
/// Before the coordinator has said how often it wants one.
constexpr Milliseconds kDefaultHeartbeat{500};
/// Of the heartbeats' loop, whatever lies between two of them.
constexpr Milliseconds kLongestTurn{1000};

/// For the upload, which has it for itself.
std::shared_ptr<grpc::Channel> make_upload_channel(const std::string& address,
                                                   const Security& security) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kAttachKeepalive.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kAttachKeepalive.count()));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Each try shall connect anew at our pace, not wait out a back-off shared with the last one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Nodes of a cluster talk directly, whatever proxy the environment names for web pages.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, security.channel_credentials(kCoordinatorMethods),
                                   arguments);
}

/// Refusals that another try would not change.
bool is_final(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

/// Failures of an upload that say nothing about the model.
bool may_be_away(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace

class ControlClient::Impl {
 public:
  Impl(ControlClientOptions options, ControlEvents* events)
      : options_(std::move(options)), events_(events) {
    POSEIDON_CHECK(events != nullptr, "somebody listens");
    POSEIDON_CHECK(options_.transport != nullptr, "a transport for kAttachMethod");
    options_.join.set_protocol_version(kProtocolVersion);
    options_.join.set_software_version(software_version());
    if (options_.join.incarnation() == 0) options_.join.set_incarnation(system_random());
  }

  ~Impl() {
    stop("the client is destroyed");
    MutexLock lock(mutex_);
    const bool idle =
        changed_.wait_for(mutex_, std::chrono::seconds(30),
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !running_; });
    POSEIDON_CHECK(idle, "run() returns soon after stop()");
  }

  absl::Status run() {
    {
      const MutexLock lock(mutex_);
      POSEIDON_CHECK(!running_, "run() is called once");
      running_ = true;
    }
    std::thread heartbeat([this] { heartbeat_loop(); });
    const absl::Status status = serve();
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    heartbeat.join();
    const MutexLock lock(mutex_);
    running_ = false;
    changed_.notify_all();
    return status;
  }

  void stop(const std::string& reason) {
    const MutexLock lock(mutex_);
    stop_now(reason);
  }

  void stop_when_released(const std::string& reason, Milliseconds patience) {
    const bool has_part = part().has_value();
    const MutexLock lock(mutex_);
    if (stopping_ || stays_until_) return;
    if (!has_part || !joined_ || patience <= Milliseconds::zero()) {
      stop_now(reason);
      return;
    }
    stop_reason_ = reason;
    stays_until_ = now() + patience;
    spdlog::info("says goodbye ({}): the job goes on without this node", reason);
    v1::NodeMessage goodbye;
    goodbye.mutable_goodbye()->set_reason(to_utf8(reason));
    stream_->send(std::move(goodbye));
  }

  bool send(v1::NodeMessage message) {
    const bool kept = keep(message);
    const MutexLock lock(mutex_);
    if (!kept) return joined_ && stream_->send(std::move(message));
    if (joined_) stream_->look_for_reports();
    return true;
  }

  absl::Status upload_model(std::uint64_t epoch, std::span<const std::string_view> pieces);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  static TimePoint now() { return std::chrono::steady_clock::now(); }

  void stop_now(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status serve();
  absl::Status converse(TimePoint give_up);
  void dispatch(const v1::CoordinatorMessage& message);
  bool answer_trace(const v1::CoordinatorMessage& message);
  absl::Status say_farewell(ControlStream& stream);
  static absl::Status cancel_and_wait(ControlStream& stream, absl::Status reason);
  void heartbeat_loop();
  absl::Status gave_up(Milliseconds after, const std::string& last) const;

  // The part in a job: from Assignment to StopJob, or until the coordinator does not take us back.
  bool keep(const v1::NodeMessage& message);
  std::optional<Epoch> part();
  void begin_part(const v1::Assignment& assignment);
  void end_part();
  v1::NodeMessage join_message();
  void take_up_part(const v1::Joined& joined);

  absl::Status try_upload(std::uint64_t epoch, std::span<const std::string_view> pieces,
                          std::uint64_t total_bytes, const std::string& digest);

  ControlClientOptions options_;
  ControlEvents* const events_;
  const std::shared_ptr<SharedOutbox> reports_ = std::make_shared<SharedOutbox>();
  std::uint64_t node_id_ = 0;  ///< of the last Joined; run()'s

  Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> stopping_{false};  ///< changed under mutex_, read also without it
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  /// Joined has come; joined_ is set once an old part is given up, too.
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t joins_ ABSL_GUARDED_BY(mutex_) = 0;  ///< how often we have joined
  /// The conversation that just ended had got as far as Joined.
  bool was_joined_ ABSL_GUARDED_BY(mutex_) = false;
  std::string stop_reason_ ABSL_GUARDED_BY(mutex_);
  /// It has said goodbye, and waits so long to be released.
  std::optional<TimePoint> stays_until_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ControlStream> stream_ ABSL_GUARDED_BY(mutex_);
  Milliseconds heartbeat_ ABSL_GUARDED_BY(mutex_) = kDefaultHeartbeat;
  grpc::ClientContext* upload_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

void ControlClient::Impl::stop_now(const std::string& reason) {
  if (stopping_) return;
  stopping_ = true;
  stop_reason_ = reason;
  if (upload_ != nullptr) upload_->TryCancel();
  changed_.notify_all();
  if (stream_) stream_->wake();
}

absl::Status ControlClient::Impl::serve() {
  TimePoint since = now();  // when the search began
  Milliseconds backoff = kFirstBackoff;
  std::string last_reason;  // why it was not reached
  bool knows_one = false;   // a coordinator has answered: it may have a job, with or without us
  while (!stopping_) {
    const Milliseconds patience = knows_one ? options_.away_timeout : options_.join_timeout;
    const TimePoint give_up = since + patience;
    absl::Status status = converse(give_up);
    bool was_joined = false;
    {
      const MutexLock lock(mutex_);
      was_joined = std::exchange(was_joined_, false);
    }
    if (stopping_) break;
    if (was_joined) {
      knows_one = true;
      events_->on_away(status);
      since = now();
      backoff = kFirstBackoff;
    } else if (now() >= give_up) {
      end_part();
      // The last attempt is cut off by our own patience, which explains nothing.
      const bool explains = !absl::IsDeadlineExceeded(status) || last_reason.empty();
      return gave_up(patience, explains ? std::string(status.message()) : last_reason);
    } else if (status.message() != std::exchange(last_reason, std::string(status.message()))) {
      spdlog::info("cannot reach the coordinator at {} yet: {}", options_.coordinator, last_reason);
    }
    if (is_final(status)) {
      end_part();
      return status;
    }
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, now() + backoff, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_.load();
    });
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
  return absl::OkStatus();
}

absl::Status ControlClient::Impl::gave_up(Milliseconds after, const std::string& last) const {
  return absl::UnavailableError(absl::StrFormat(
      "no coordinator answered at %s for %g s: is poseidon-coordinator running there? (last: %s)",
      options_.coordinator, seconds(after), last));
}

// ---- the part in a job ----

bool ControlClient::Impl::keep(const v1::NodeMessage& message) {
  const MutexLock lock(reports_->mutex);
  return reports_->outbox.add(message, SystemClock().now());
}

std::optional<Epoch> ControlClient::Impl::part() {
  const MutexLock lock(reports_->mutex);
  return reports_->outbox.epoch();
}

void ControlClient::Impl::begin_part(const v1::Assignment& assignment) {
  end_part();
  const Iteration first = assignment.has_restore()
                              ? snapshot_iteration(SnapshotId(assignment.restore().snapshot()))
                              : 0;
  {
    const MutexLock lock(reports_->mutex);
    reports_->outbox.begin(Epoch(assignment.plan().epoch()), assignment.index(), first);
  }
  const MutexLock lock(mutex_);
  stream_->send_reports();
}

void ControlClient::Impl::end_part() {
  {
    const MutexLock lock(reports_->mutex);
    reports_->outbox.end();
  }
  const MutexLock lock(mutex_);
  if (upload_ != nullptr) upload_->TryCancel();
  changed_.notify_all();
}

v1::NodeMessage ControlClient::Impl::join_message() {
  v1::NodeMessage message;
  *message.mutable_join() = options_.join;
  events_->fill_join(*message.mutable_join());
  const MutexLock lock(reports_->mutex);
  if (!reports_->outbox.epoch()) return message;
  *message.mutable_join()->mutable_resume() = reports_->outbox.resume();
  message.mutable_join()->mutable_resume()->set_node_id(node_id_);
  return message;
}

void ControlClient::Impl::take_up_part(const v1::Joined& joined) {
  const std::optional<Epoch> epoch = part();
  if (!epoch) return;
  if (!joined.has_resumed()) {
    end_part();
    events_->on_lost(absl::AbortedError(
        absl::StrCat("the coordinator does not take this node back into epoch ", epoch->value())));
    return;
  }
  {
    const MutexLock lock(reports_->mutex);
    reports_->outbox.rewind(joined.resumed());
  }
  const MutexLock lock(mutex_);
  stream_->send_reports();
}

// ---- one stream ----

absl::Status ControlClient::Impl::converse(TimePoint give_up) {
  const std::shared_ptr<ControlStream> stream =
      ControlStream::open(options_.coordinator, options_.transport, reports_);
  {
    const MutexLock lock(mutex_);
    stream_ = stream;
  }
  stream->send(join_message());
  const TimePoint joined_by = std::min(now() + kAttemptTimeout, give_up);
  bool joined = false;
  absl::Status end;
  while (true) {
    // After Join the stream may stay silent for any time; keepalive finds a dead coordinator.
    const TimePoint deadline = joined ? now() + std::chrono::seconds(1) : joined_by;
    const auto message = stream->wait(deadline, [this] { return stopping_.load(); });
    if (message) {
      dispatch(*message);
      joined = joined || message->has_joined();
    } else if (const auto ended = stream->end()) {
      end = ended->ok() ? absl::UnavailableError("the coordinator ended the stream") : *ended;
      break;
    } else if (stopping_) {
      end = say_farewell(*stream);
      break;
    } else if (!joined && now() >= joined_by) {
      end = cancel_and_wait(*stream, absl::DeadlineExceededError("no answer to Join"));
      break;
    }
  }
  {
    const MutexLock lock(mutex_);
    joined_ = answered_ = false;
    stream_.reset();
    if (stays_until_) stop_now(stop_reason_);  // nobody is there who would release it
  }
  if (options_.probe != nullptr) options_.probe->tracer().end();  // the caller is gone
  if (absl::IsUnimplemented(end)) {
    return absl::UnimplementedError(absl::StrCat("what listens at ", options_.coordinator,
                                                 " is no poseidon-coordinator (", end.message(),
                                                 ")"));
  }
  return end;
}

void ControlClient::Impl::dispatch(const v1::CoordinatorMessage& message) {
  if (message.has_joined()) {
    {
      const MutexLock lock(mutex_);
      answered_ = true;
      ++joins_;
      heartbeat_ =
          Milliseconds(std::clamp<std::uint32_t>(message.joined().heartbeat_ms(), 10, 60000));
      changed_.notify_all();
    }
    // An old part may take a whole backward pass to end, which is longer than the lease.
    take_up_part(message.joined());
    node_id_ = message.joined().node_id();
    {
      const MutexLock lock(mutex_);
      joined_ = true;
      was_joined_ = true;
    }
    events_->on_joined(message.joined());
    return;
  }
  if (stopping_) return;
  if (answer_trace(message)) return;
  if (message.has_calibrate()) events_->on_calibrate(message.calibrate());
  if (message.has_assign()) {
    begin_part(message.assign());
    events_->on_assign(message.assign());
  }
  if (message.has_start()) events_->on_start(message.start());
  if (message.has_stop()) {
    if (part() == Epoch(message.stop().epoch())) end_part();
    events_->on_stop(message.stop());
  }
  if (message.has_released()) {
    const MutexLock lock(mutex_);
    if (stays_until_) stop_now(stop_reason_);
  }
  if (message.has_halt()) events_->on_halt(message.halt());
  if (message.has_save_checkpoint()) events_->on_save_checkpoint(message.save_checkpoint());
  if (message.has_forget_checkpoint()) events_->on_forget_checkpoint(message.forget_checkpoint());
  if (message.has_keep_checkpoints()) events_->on_keep_checkpoints(message.keep_checkpoints());
}

/// Whether it was about traces.
bool ControlClient::Impl::answer_trace(const v1::CoordinatorMessage& message) {
  if (!message.has_clock() && !message.has_begin_trace() && !message.has_fetch_trace()) {
    return false;
  }
  const Nanoseconds received = SystemClock().now();
  Tracer* const tracer = options_.probe == nullptr ? nullptr : &options_.probe->tracer();
  v1::NodeMessage answer;
  if (message.has_clock()) {
    v1::ClockEcho& echo = *answer.mutable_clock();
    echo.set_number(message.clock().number());
    echo.set_received_ns(static_cast<std::uint64_t>(received.count()));
    echo.set_sent_ns(static_cast<std::uint64_t>(SystemClock().now().count()));
    send(std::move(answer));
  } else if (tracer != nullptr && message.has_begin_trace()) {
    begin_trace(message.begin_trace(), *tracer);
  } else if (tracer != nullptr) {
    if (fetch_trace(message.fetch_trace(), *tracer, *answer.mutable_trace())) {
      send(std::move(answer));
    }
  }
  return true;
}

absl::Status ControlClient::Impl::say_farewell(ControlStream& stream) {
  v1::NodeMessage leave;
  {
    const MutexLock lock(mutex_);
    leave.mutable_leave()->set_reason(to_utf8(stop_reason_));
  }
  stream.send(std::move(leave));
  stream.finish_sending();
  const TimePoint deadline = now() + kFarewellTimeout;
  while (!stream.end() && now() < deadline) {
    stream.wait(deadline, [] { return false; });  // later messages are ignored
  }
  return cancel_and_wait(stream, absl::CancelledError("stopped"));
}

absl::Status ControlClient::Impl::cancel_and_wait(ControlStream& stream, absl::Status reason) {
  stream.cancel();
  const TimePoint deadline = now() + kCancelTimeout;
  // The loop keeps it alive: should it never come to that, it is left behind, not waited for.
  while (!stream.end() && now() < deadline) stream.wait(deadline, [] { return false; });
  return reason;
}

void ControlClient::Impl::heartbeat_loop() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    // Every stream begins with a beat at once: only Joined says how long the lease is.
    const std::uint64_t joins = joins_;
    if (options_.on_turn) options_.on_turn();
    if (stays_until_ && now() >= *stays_until_) {
      spdlog::warn("the coordinator has not released this node in time; it leaves");
      stop_now(stop_reason_);
      return;
    }
    if (answered_) {
      v1::NodeMessage message;
      v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
      if (joined_) {
        lock.unlock();
        events_->fill_heartbeat(heartbeat);
        lock.lock();
      }
      if (answered_) stream_->send(std::move(message));
    }
    // It turns between heartbeats too, which may be as far apart as the operator likes.
    const TimePoint next_beat = now() + heartbeat_;
    const auto wanted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || joins_ != joins;
    };
    while (!changed_.wait_until(mutex_, std::min(next_beat, now() + kLongestTurn), wanted) &&
           now() < next_beat && !(stays_until_ && now() >= *stays_until_)) {
      if (options_.on_turn) options_.on_turn();
    }
  }
}

absl::Status ControlClient::Impl::upload_model(std::uint64_t epoch,
                                               std::span<const std::string_view> pieces) {
  std::uint64_t total_bytes = 0;
  for (const std::string_view piece : pieces) total_bytes += piece.size();
  if (total_bytes == 0) return absl::InvalidArgumentError("an empty model is not uploaded");
  const std::string digest = sha256(pieces);
  const TimePoint give_up = now() + options_.away_timeout;
  Milliseconds backoff = kFirstBackoff;
  while (true) {
    v1::NodeMessage announcement;
    announcement.mutable_model()->set_epoch(epoch);
    announcement.mutable_model()->set_sha256(digest);
    send(std::move(announcement));
    absl::Status status = try_upload(epoch, pieces, total_bytes, digest);
    const auto pointless = [&] { return stopping_ || part() != Epoch(epoch) || now() >= give_up; };
    if (!may_be_away(status) || pointless()) return status;
    MutexLock lock(mutex_);
    if (changed_.wait_until(mutex_, std::min(now() + backoff, give_up), pointless)) return status;
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

absl::Status ControlClient::Impl::try_upload(std::uint64_t epoch,
                                             std::span<const std::string_view> pieces,
                                             std::uint64_t total_bytes, const std::string& digest) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kUploadBaseTimeout +
                       std::chrono::seconds(total_bytes / kUploadMinBytesPerS));
  {
    const MutexLock lock(mutex_);
    if (stopping_) return absl::CancelledError("stopped before the upload of the model");
    if (upload_ != nullptr) return absl::FailedPreconditionError("an upload is under way");
    upload_ = &context;
  }
  const auto stub =
      v1::Coordinator::NewStub(make_upload_channel(options_.coordinator, *options_.security));
  options_.security->sign(context);
  v1::UploadModelResponse response;
  const auto writer = stub->UploadModel(&context, &response);
  const auto finish = [&] {  // says why, when a write failed
    const absl::Status status = to_absl(writer->Finish());
    const MutexLock lock(mutex_);
    upload_ = nullptr;
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("upload of the model (", total_bytes, " bytes) to ",
                                     options_.coordinator, ": ", status.message()));
  };
  std::uint64_t offset = 0;
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      const std::string_view data = piece.substr(0, kModelPartBytes);
      v1::ModelPart part;
      part.set_epoch(epoch);
      part.set_total_bytes(total_bytes);
      part.set_offset(offset);
      if (offset == 0) part.set_sha256(digest);
      part.set_data(data.data(), data.size());
      if (!writer->Write(part)) return finish();
      offset += data.size();
      piece.remove_prefix(data.size());
    }
  }
  writer->WritesDone();
  return finish();
}

ControlClient::ControlClient(ControlClientOptions options, ControlEvents* events)
    : impl_(std::make_unique<Impl>(std::move(options), events)) {}
ControlClient::~ControlClient() = default;
absl::Status ControlClient::run() { return impl_->run(); }
void ControlClient::stop(const std::string& reason) { impl_->stop(reason); }
void ControlClient::stop_when_released(const std::string& reason, Milliseconds patience) {
  impl_->stop_when_released(reason, patience);
}
bool ControlClient::send(v1::NodeMessage message) { return impl_->send(std::move(message)); }
absl::Status ControlClient::upload_model(std::uint64_t epoch,
                                         std::span<const std::string_view> pieces) {
  return impl_->upload_model(epoch, pieces);
}
absl::Status ControlClient::upload_model(std::uint64_t epoch, std::string_view bytes) {
  return upload_model(epoch, std::span<const std::string_view>(&bytes, 1));
}

}  // namespace poseidon
