#include "common/node/control_stream.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

/// Beyond it the coordinator does not take what we send, and the stream is given up. Heartbeats and
/// answers only: reports wait in the outbox.
constexpr std::size_t kMaxQueuedMessages = 1024;

OutgoingMessage encode(const v1::NodeMessage& message) {
  auto text = std::make_shared<const std::string>(message.SerializeAsString());
  OutgoingMessage outgoing;
  outgoing.payload = {reinterpret_cast<const std::byte*>(text->data()), text->size()};
  outgoing.payload_owner = std::move(text);
  return outgoing;
}

std::optional<v1::CoordinatorMessage> decode(const Bytes& bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const auto& piece : bytes.pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  v1::CoordinatorMessage message;
  if (!message.ParseFromString(text)) return std::nullopt;
  return message;
}

}  // namespace

std::shared_ptr<ControlStream> ControlStream::open(const std::string& address, Transport* transport,
                                                   std::shared_ptr<SharedOutbox> reports) {
  const std::shared_ptr<ControlStream> stream(new ControlStream(transport, std::move(reports)));
  transport->post([stream, address] {
    stream->loop_.assert_held();
    stream->stream_ = stream->transport_->connect(address, stream.get());
    stream->write_next();
  });
  return stream;
}

bool ControlStream::send(v1::NodeMessage message) {
  bool fits = true;
  {
    const MutexLock lock(mutex_);
    if (done_ || half_closing_) return false;
    fits = outgoing_.size() < kMaxQueuedMessages;
    if (fits) outgoing_.push_back(std::move(message));
  }
  on_loop(fits ? &ControlStream::write_next : &ControlStream::give_up);
  return fits;
}

void ControlStream::send_reports() {
  {
    const MutexLock lock(mutex_);
    sends_reports_ = true;
  }
  on_loop(&ControlStream::write_next);
}

void ControlStream::look_for_reports() { on_loop(&ControlStream::write_next); }

void ControlStream::finish_sending() {
  {
    const MutexLock lock(mutex_);
    half_closing_ = true;
  }
  on_loop(&ControlStream::write_next);
}

void ControlStream::cancel() {
  transport_->post([self = shared_from_this()] {
    self->loop_.assert_held();
    self->end_with(absl::CancelledError(""));
  });
}

void ControlStream::wake() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

std::optional<absl::Status> ControlStream::end() {
  const MutexLock lock(mutex_);
  return done_;
}

void ControlStream::on_loop(void (ControlStream::*function)()) {
  transport_->post([self = shared_from_this(), function] { (self.get()->*function)(); });
}

void ControlStream::resume_reads() {
  transport_->post([self = shared_from_this()] {
    self->loop_.assert_held();
    if (self->stream_ != nullptr) self->stream_->resume_reads();
  });
}

// ---- the loop ----

ReadNext ControlStream::on_message(Bytes message) {
  loop_.assert_held();
  std::optional<v1::CoordinatorMessage> decoded = decode(message);
  if (!decoded) {
    end_with(absl::UnavailableError(
        absl::StrCat("the coordinator sent ", message.size(), " bytes that are not a message")));
    return ReadNext::kPause;
  }
  const MutexLock lock(mutex_);
  incoming_ = std::move(decoded);
  changed_.notify_all();
  return ReadNext::kPause;
}

void ControlStream::on_written() {
  loop_.assert_held();
  writing_ = false;
  write_next();
}

void ControlStream::on_closed(const absl::Status& status) {
  loop_.assert_held();
  end_with(status);
}

void ControlStream::write_next() {
  if (stream_ == nullptr || writing_ || half_closed_) return;
  std::optional<v1::NodeMessage> message;
  bool overrun = false;
  {
    const MutexLock lock(mutex_);
    if (!outgoing_.empty()) {
      message = std::move(outgoing_.front());
      outgoing_.pop_front();
    } else if (half_closing_) {
      half_closed_ = true;
    } else if (sends_reports_) {
      const MutexLock reports_lock(reports_->mutex);
      message = reports_->outbox.next(SystemClock().now());
      overrun = !message && reports_->outbox.overrun();
    }
  }
  if (message) {
    writing_ = true;
    stream_->write(encode(*message));
  } else if (half_closed_) {
    stream_->close(absl::OkStatus());
  } else if (overrun) {
    give_up();  // the next stream reports the loss
  }
}

void ControlStream::give_up() {
  end_with(absl::UnavailableError("the coordinator does not take what this node sends"));
}

void ControlStream::end_with(const absl::Status& status) {
  stream_.reset();
  const MutexLock lock(mutex_);
  if (!done_) done_ = status;
  changed_.notify_all();
}

}  // namespace poseidon
