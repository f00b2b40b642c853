// Before: a daemon's main() or its job thread sends. After: coordinator/service.cc receives.
//
// Concurrency contract
//  1. run() owns the conversation: it opens streams, waits for what they deliver and calls
//     ControlEvents. gRPC's threads only put things into ControlStream under its mutex.
//  2. The heartbeat thread lives as long as run() and knows streams only through send().
//  3. Lock order: Impl::mutex_ before ControlStream::mutex_; no lock is held while
//     ControlEvents runs.

#include "common/control_client.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/daemon.h"
#include "common/ids.h"
#include "grpcpp/grpcpp.h"
#include "poseidon/v1/control.grpc.pb.h"

namespace poseidon {
namespace {

constexpr Milliseconds kFirstBackoff{100};
constexpr Milliseconds kLongestBackoff{2000};
/// How long one try may take until the coordinator's Joined.
constexpr Milliseconds kAttemptTimeout{5000};
/// How long a clean end may take until the stream is cancelled instead.
constexpr Milliseconds kFarewellTimeout{1000};
/// How long gRPC may take to confirm a cancelled stream.
constexpr Milliseconds kCancelTimeout{5000};
/// Beyond it the coordinator does not take what we send, and the stream is given up.
constexpr std::size_t kMaxQueuedMessages = 65536;
/// A plan for the largest networks in the smallest chunks is below it.
constexpr int kMaxReceiveBytes = 64 << 20;
constexpr std::size_t kModelPartBytes = 1 << 20;
/// The upload's deadline: this much, and longer for a large model.
constexpr std::chrono::seconds kUploadBaseTimeout{60};
constexpr std::size_t kUploadMinBytesPerS = 1 << 20;
/// Keeps a cut network from looking like a quiet coordinator.
constexpr int kKeepaliveMs = 3000;
/// Before the coordinator has said how often it wants one.
constexpr Milliseconds kDefaultHeartbeat{500};

absl::Status to_absl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
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

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Each try shall connect anew at our pace, not wait out a back-off shared with the last one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Nodes of a cluster talk directly, whatever proxy the environment names for web pages.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

/// One Attach call. Keeps itself alive until reap() after gRPC has reported its end.
///
/// It must never die on one of gRPC's threads: with it may go the process's last channel, and gRPC
/// then joins its callback threads, which ends in a double release when one of them does the
/// joining. So OnDone only reports, and the thread of run() reaps.
class ControlStream final
    : public grpc::ClientBidiReactor<v1::NodeMessage, v1::CoordinatorMessage> {
 public:
  static std::shared_ptr<ControlStream> open(const std::string& address) {
    auto stream = std::make_shared<ControlStream>();
    stream->self_ = stream;
    stream->stub_ = v1::Coordinator::NewStub(make_channel(address));
    stream->stub_->async()->Attach(&stream->context_, stream.get());
    stream->AddHold();  // released in close_locked(): until then any thread may start a write
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }

  /// False when the stream has ended. In order.
  bool send(v1::NodeMessage message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || half_closing_) return false;
    if (outgoing_.size() >= kMaxQueuedMessages) {
      context_.TryCancel();
      return false;
    }
    outgoing_.push_back(std::move(message));
    start_write_locked();
    return true;
  }

  /// No more from us: after what is queued, the coordinator sees the end of the stream.
  void finish_sending() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || half_closing_) return;
    half_closing_ = true;
    start_write_locked();
  }

  void cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    context_.TryCancel();
    close_locked();
  }

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
  void wake() {
    const std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }

  /// How the stream ended; nothing while it has not.
  std::optional<absl::Status> end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ok) {
      received_ = true;
    } else {
      close_locked();
    }
    changed_.notify_all();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    outgoing_.pop_front();
    changed_.notify_all();
    if (!ok) {
      outgoing_.clear();
      return;  // the failed read says the same
    }
    start_write_locked();
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    done_ = to_absl(status);
    changed_.notify_all();
  }

  /// After the last wait(). A stream that gRPC never reported the end of stays behind.
  void reap() {
    std::shared_ptr<ControlStream> self;  // declared first: released after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) self = std::move(self_);
  }

 private:
  void start_write_locked() {
    if (closed_ || writing_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (half_closing_ && !half_closed_) {
      half_closed_ = true;
      StartWritesDone();
    }
  }
  void close_locked() {
    if (closed_) return;
    closed_ = true;
    RemoveHold();
  }

  grpc::ClientContext context_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  v1::CoordinatorMessage incoming_;  ///< gRPC's until received_, then under mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<v1::NodeMessage> outgoing_;  ///< the front is gRPC's while writing_
  bool writing_ = false;
  bool half_closing_ = false;
  bool half_closed_ = false;
  bool received_ = false;
  bool closed_ = false;  ///< no further operation may be started
  std::optional<absl::Status> done_;
  std::shared_ptr<ControlStream> self_;
};

}  // namespace

class ControlClient::Impl {
 public:
  Impl(ControlClientOptions options, ControlEvents* events)
      : options_(std::move(options)), events_(events) {
    POSEIDON_CHECK(events != nullptr, "somebody listens");
    options_.join.set_protocol_version(kProtocolVersion);
    options_.join.set_software_version(software_version());
  }

  ~Impl() {
    stop("the client is destroyed");
    std::unique_lock<std::mutex> lock(mutex_);
    const bool idle =
        changed_.wait_for(lock, std::chrono::seconds(30), [this] { return !running_; });
    POSEIDON_CHECK(idle, "run() returns soon after stop()");
  }

  absl::Status run() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      POSEIDON_CHECK(!running_, "run() is called once");
      running_ = true;
    }
    std::thread heartbeat([this] { heartbeat_loop(); });
    const absl::Status status = serve();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    heartbeat.join();
    const std::lock_guard<std::mutex> lock(mutex_);
    running_ = false;
    changed_.notify_all();
    return status;
  }

  void stop(const std::string& reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    stop_reason_ = reason;
    if (upload_ != nullptr) upload_->TryCancel();
    changed_.notify_all();
    if (stream_) stream_->wake();
  }

  bool send(v1::NodeMessage message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return joined_ && stream_->send(std::move(message));
  }

  absl::Status upload_model(std::uint64_t epoch, std::span<const std::string_view> pieces);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  static TimePoint now() { return std::chrono::steady_clock::now(); }

  absl::Status serve();
  absl::Status converse(TimePoint give_up);
  void dispatch(const v1::CoordinatorMessage& message);
  absl::Status say_farewell(ControlStream& stream);
  static absl::Status cancel_and_wait(ControlStream& stream, absl::Status reason);
  void heartbeat_loop();
  absl::Status gave_up(const absl::Status& last) const;

  ControlClientOptions options_;
  ControlEvents* const events_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, but stopping_ may be read without it.
  std::atomic<bool> stopping_{false};
  bool running_ = false;
  bool joined_ = false;
  std::uint64_t joins_ = 0;  ///< how often we have joined
  bool was_joined_ = false;  ///< the conversation that just ended had got as far as Joined
  std::string stop_reason_;
  std::shared_ptr<ControlStream> stream_;
  Milliseconds heartbeat_ = kDefaultHeartbeat;
  grpc::ClientContext* upload_ = nullptr;
};

absl::Status ControlClient::Impl::serve() {
  TimePoint give_up = now() + options_.join_timeout;
  Milliseconds backoff = kFirstBackoff;
  while (!stopping_) {
    absl::Status status = converse(give_up);
    bool was_joined = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      was_joined = std::exchange(was_joined_, false);
    }
    if (stopping_) break;
    if (was_joined) {
      events_->on_lost(status);
      give_up = now() + options_.join_timeout;
      backoff = kFirstBackoff;
    }
    if (is_final(status)) return status;
    if (now() >= give_up) return gave_up(status);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, std::min(now() + backoff, give_up),
                        [this] { return stopping_.load(); });
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
  return absl::OkStatus();
}

absl::Status ControlClient::Impl::gave_up(const absl::Status& last) const {
  return absl::UnavailableError(absl::StrFormat(
      "no coordinator answered at %s for %g s: is poseidon-coordinator running there? (last: %s)",
      options_.coordinator, std::chrono::duration<double>(options_.join_timeout).count(),
      last.message()));
}

absl::Status ControlClient::Impl::converse(TimePoint give_up) {
  const std::shared_ptr<ControlStream> stream = ControlStream::open(options_.coordinator);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream_ = stream;
  }
  v1::NodeMessage join;
  *join.mutable_join() = options_.join;
  stream->send(std::move(join));
  const TimePoint joined_by = std::min(now() + kAttemptTimeout, give_up);
  bool joined = false;
  absl::Status end;
  while (true) {
    // Joined, the stream may rightly be silent for ever; keepalive finds a dead coordinator.
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
    const std::lock_guard<std::mutex> lock(mutex_);
    joined_ = false;
    stream_.reset();
  }
  stream->reap();
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
      const std::lock_guard<std::mutex> lock(mutex_);
      joined_ = true;
      was_joined_ = true;
      ++joins_;
      heartbeat_ =
          Milliseconds(std::clamp<std::uint32_t>(message.joined().heartbeat_ms(), 10, 60000));
      changed_.notify_all();
    }
    events_->on_joined(message.joined());
    return;
  }
  if (stopping_) return;
  if (message.has_calibrate()) events_->on_calibrate(message.calibrate());
  if (message.has_assign()) events_->on_assign(message.assign());
  if (message.has_start()) events_->on_start(message.start());
  if (message.has_stop()) events_->on_stop(message.stop());
  if (message.has_halt()) events_->on_halt(message.halt());
  if (message.has_save_checkpoint()) events_->on_save_checkpoint(message.save_checkpoint());
  if (message.has_forget_checkpoint()) events_->on_forget_checkpoint(message.forget_checkpoint());
}

absl::Status ControlClient::Impl::say_farewell(ControlStream& stream) {
  v1::NodeMessage leave;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leave.mutable_leave()->set_reason(stop_reason_);
  }
  stream.send(std::move(leave));
  stream.finish_sending();
  const TimePoint deadline = now() + kFarewellTimeout;
  while (!stream.end() && now() < deadline) {
    stream.wait(deadline, [] { return false; });  // what still comes is of no interest
  }
  return cancel_and_wait(stream, absl::CancelledError("stopped"));
}

absl::Status ControlClient::Impl::cancel_and_wait(ControlStream& stream, absl::Status reason) {
  stream.cancel();
  const TimePoint deadline = now() + kCancelTimeout;
  // The stream keeps itself alive: should gRPC never confirm, it is left behind, not waited for.
  while (!stream.end() && now() < deadline) stream.wait(deadline, [] { return false; });
  return reason;
}

void ControlClient::Impl::heartbeat_loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    // Every stream begins with a beat at once: only Joined says how long the lease is.
    const std::uint64_t joins = joins_;
    if (joined_) {
      lock.unlock();
      v1::NodeMessage message;
      events_->fill_heartbeat(*message.mutable_heartbeat());
      send(std::move(message));
      lock.lock();
    }
    changed_.wait_for(lock, heartbeat_, [&] { return stopping_ || joins_ != joins; });
  }
}

absl::Status ControlClient::Impl::upload_model(std::uint64_t epoch,
                                               std::span<const std::string_view> pieces) {
  std::uint64_t total_bytes = 0;
  for (const std::string_view piece : pieces) total_bytes += piece.size();
  if (total_bytes == 0) return absl::InvalidArgumentError("an empty model is not uploaded");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kUploadBaseTimeout +
                       std::chrono::seconds(total_bytes / kUploadMinBytesPerS));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return absl::CancelledError("stopped before the upload of the model");
    if (upload_ != nullptr) return absl::FailedPreconditionError("an upload is under way");
    upload_ = &context;
  }
  const auto stub = v1::Coordinator::NewStub(make_channel(options_.coordinator));
  v1::UploadModelResponse response;
  const auto writer = stub->UploadModel(&context, &response);
  const auto finish = [&] {  // says why, when a write failed
    const absl::Status status = to_absl(writer->Finish());
    const std::lock_guard<std::mutex> lock(mutex_);
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
bool ControlClient::send(v1::NodeMessage message) { return impl_->send(std::move(message)); }
absl::Status ControlClient::upload_model(std::uint64_t epoch,
                                         std::span<const std::string_view> pieces) {
  return impl_->upload_model(epoch, pieces);
}
absl::Status ControlClient::upload_model(std::uint64_t epoch, std::string_view bytes) {
  return upload_model(epoch, std::span<const std::string_view>(&bytes, 1));
}

v1::Failure failure_of(const absl::Status& status, bool restoring) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return v1::FAILURE_PEER;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kNotFound:
      return restoring ? v1::FAILURE_CHECKPOINT : v1::FAILURE_JOB;
    default:
      return v1::FAILURE_JOB;
  }
}

}  // namespace poseidon
