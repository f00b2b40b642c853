#include "common/control_stream.h"

#include <utility>

namespace poseidon {
namespace {

/// Beyond it the coordinator does not take what we send, and the stream is given up. Heartbeats and
/// answers only: reports wait in the outbox.
constexpr std::size_t kMaxQueuedMessages = 1024;
/// A plan for the largest networks in the smallest chunks is below it.
constexpr int kMaxReceiveBytes = 64 << 20;
/// Keeps a cut network from looking like a quiet coordinator.
constexpr int kKeepaliveMs = 3000;

}  // namespace

absl::Status to_absl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::shared_ptr<grpc::Channel> make_control_channel(const std::string& address,
                                                    const Security& security) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Each try shall connect anew at our pace, not wait out a back-off shared with the last one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Nodes of a cluster talk directly, whatever proxy the environment names for web pages.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, security.channel_credentials(kCoordinatorMethods),
                                   arguments);
}

std::shared_ptr<ControlStream> ControlStream::open(const std::string& address,
                                                   std::shared_ptr<SharedOutbox> reports,
                                                   std::shared_ptr<const Security> security) {
  auto stream = std::make_shared<ControlStream>(std::move(reports), std::move(security));
  stream->self_ = stream;
  stream->stub_ = v1::Coordinator::NewStub(make_control_channel(address, *stream->security_));
  stream->security_->sign(stream->context_);
  stream->stub_->async()->Attach(&stream->context_, stream.get());
  stream->AddHold();  // released in close_locked(): until then any thread may start a write
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

bool ControlStream::send(v1::NodeMessage message) {
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

void ControlStream::send_reports() {
  const std::lock_guard<std::mutex> lock(mutex_);
  sends_reports_ = true;
  start_write_locked();
}

void ControlStream::look_for_reports() {
  const std::lock_guard<std::mutex> lock(mutex_);
  start_write_locked();
}

void ControlStream::finish_sending() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || half_closing_) return;
  half_closing_ = true;
  start_write_locked();
}

void ControlStream::cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_.TryCancel();
  close_locked();
}

void ControlStream::wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

std::optional<absl::Status> ControlStream::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void ControlStream::reap() {
  std::shared_ptr<ControlStream> self;  // declared first: released after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (done_) self = std::move(self_);
}

void ControlStream::OnReadDone(bool ok) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ok) {
    received_ = true;
  } else {
    close_locked();
  }
  changed_.notify_all();
}

void ControlStream::OnWriteDone(bool ok) {
  const std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  outgoing_.pop_front();
  changed_.notify_all();
  if (!ok) {
    outgoing_.clear();
    sends_reports_ = false;
    return;  // the failed read says the same
  }
  start_write_locked();
}

void ControlStream::OnDone(const grpc::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  done_ = security_->explain(to_absl(status));
  changed_.notify_all();
}

void ControlStream::start_write_locked() {
  if (closed_ || writing_) return;
  if (outgoing_.empty() && sends_reports_ && !half_closing_) draw_report_locked();
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (half_closing_ && !half_closed_) {
    half_closed_ = true;
    StartWritesDone();
  }
}

void ControlStream::draw_report_locked() {
  const std::lock_guard<std::mutex> lock(reports_->mutex);
  if (std::optional<v1::NodeMessage> report = reports_->outbox.next()) {
    outgoing_.push_back(*std::move(report));
  } else if (reports_->outbox.overrun()) {
    sends_reports_ = false;
    context_.TryCancel();  // the next stream says what is gone
  }
}

void ControlStream::close_locked() {
  if (closed_) return;
  closed_ = true;
  RemoveHold();
}

}  // namespace poseidon
