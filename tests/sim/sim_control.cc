#include "tests/sim/sim_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/sha256.h"
#include "common/wire/snapshot.h"

namespace poseidon::sim {
namespace {

// As in common/node/control_client.cc.
constexpr Milliseconds kFirstBackoff{100};
constexpr Milliseconds kLongestBackoff{2000};
constexpr Milliseconds kAttemptTimeout{5000};
constexpr Milliseconds kJoinTimeout{60000};
constexpr Milliseconds kAwayTimeout{3600000};

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

}  // namespace

std::string text_of(const Bytes& bytes) {
  std::string text;
  for (const auto& piece : bytes.pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return text;
}

/// One try after the other to bring the model to the coordinator.
class SimControl::Upload final : public StreamHandler {
 public:
  Upload(SimControl* control, std::uint64_t of_epoch, std::string model,
         std::function<void(const absl::Status&)> when_done)
      : epoch(of_epoch), bytes(std::move(model)), done(std::move(when_done)), control_(control) {}
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& status) override { control_->upload_ended(status); }

  const std::uint64_t epoch;
  const std::string bytes;
  const std::function<void(const absl::Status&)> done;
  Nanoseconds backoff{kFirstBackoff};
  std::unique_ptr<Stream> stream;

 private:
  SimControl* const control_;
};

SimControl::SimControl(Transport* transport, v1::Join join, ControlEvents* events,
                       std::function<void(const absl::Status&)> ended)
    : transport_(transport),
      join_(std::move(join)),
      events_(events),
      ended_(std::move(ended)),
      since_(transport->now()) {
  join_.set_protocol_version(kProtocolVersion);
}

SimControl::~SimControl() { *alive_ = false; }

void SimControl::after(Nanoseconds delay, std::function<void()> function) {
  transport_->post_after(delay, [alive = alive_, function = std::move(function)] {
    if (*alive) function();
  });
}

// ---- one stream after the other ----

void SimControl::connect() {
  v1::NodeMessage message;
  *message.mutable_join() = join_;
  events_->fill_join(*message.mutable_join());
  if (outbox_.epoch()) {
    *message.mutable_join()->mutable_resume() = outbox_.resume();
    message.mutable_join()->mutable_resume()->set_node_id(node_id_);
  }
  outgoing_.clear();
  outgoing_.push_back(std::move(message));
  writing_ = false;
  sends_reports_ = false;
  stream_ = transport_->connect(kCoordinatorAddress, this);
  pump();
  after(kAttemptTimeout, [this, attempt = ++attempts_] {
    if (attempt != attempts_ || joined_ || stream_ == nullptr) return;
    stream_.reset();
    conversation_ended(absl::DeadlineExceededError("no answer to Join"));
  });
}

void SimControl::on_closed(const absl::Status& status) {
  stream_.reset();
  conversation_ended(status.ok() ? absl::UnavailableError("the coordinator ended the stream")
                                 : status);
}

void SimControl::conversation_ended(const absl::Status& status) {
  const Nanoseconds patience = outbox_.epoch() ? kAwayTimeout : kJoinTimeout;
  ++attempts_;
  bool gives_up = is_final(status) || leaves_;
  if (std::exchange(joined_, false)) {
    events_->on_away(status);
    since_ = transport_->now();
    backoff_ = kFirstBackoff;
  } else if (transport_->now() >= since_ + patience) {
    gives_up = true;
  }
  if (gives_up) {
    end_part();
    ended_(status);
    return;
  }
  after(backoff_, [this] { connect(); });
  backoff_ = std::min<Nanoseconds>(2 * backoff_, kLongestBackoff);
}

void SimControl::pump() {
  if (stream_ == nullptr || writing_) return;
  if (outgoing_.empty() && sends_reports_) {
    if (std::optional<v1::NodeMessage> report = outbox_.next(transport_->now())) {
      outgoing_.push_back(*std::move(report));
    }
  }
  if (outgoing_.empty()) return;
  writing_ = true;
  const v1::NodeMessage message = std::move(outgoing_.front());
  outgoing_.pop_front();
  stream_->write(to_wire(message));
}

void SimControl::on_written() {
  writing_ = false;
  pump();
}

bool SimControl::send(v1::NodeMessage message) {
  if (outbox_.add(message, transport_->now())) {
    pump();
    return true;
  }
  if (!joined_) return false;
  outgoing_.push_back(std::move(message));
  pump();
  return true;
}

void SimControl::say_goodbye() {
  if (!outbox_.epoch()) {
    ended_(absl::CancelledError("it has no part in a job"));
    return;
  }
  if (!joined_) {
    ended_(absl::CancelledError("nobody is there who would release it"));
    return;
  }
  leaves_ = true;
  v1::NodeMessage message;
  message.mutable_goodbye()->set_reason("SIGTERM");
  send(std::move(message));
}

void SimControl::beat(std::uint64_t join) {
  if (join != joins_ || !joined_) return;
  v1::NodeMessage message;
  events_->fill_heartbeat(*message.mutable_heartbeat());
  send(std::move(message));
  after(heartbeat_, [this, join] { beat(join); });
}

// ---- what the coordinator says ----

ReadNext SimControl::on_message(Bytes message) {
  v1::CoordinatorMessage parsed;
  POSEIDON_CHECK(parsed.ParseFromString(text_of(message)), "a whole message");
  dispatch(parsed);
  return ReadNext::kContinue;
}

void SimControl::take_up_part(const v1::Joined& joined) {
  const std::optional<Epoch> epoch = outbox_.epoch();
  if (!epoch) return;
  if (!joined.has_resumed()) {
    end_part();
    events_->on_lost(absl::AbortedError(
        absl::StrCat("the coordinator does not take this node back into epoch ", epoch->value())));
    return;
  }
  outbox_.rewind(joined.resumed());
  sends_reports_ = true;
  pump();
}

void SimControl::end_part() {
  outbox_.end();
  if (upload_ != nullptr && upload_->stream != nullptr) {
    upload_->stream.reset();
    upload_ended(absl::CancelledError("the job was stopped"));
  }
}

void SimControl::dispatch(const v1::CoordinatorMessage& message) {
  if (message.has_joined()) {
    take_up_part(message.joined());
    node_id_ = message.joined().node_id();
    joined_ = true;
    heartbeat_ = Milliseconds(message.joined().heartbeat_ms());
    events_->on_joined(message.joined());
    beat(++joins_);
  }
  if (message.has_released()) ended_(absl::CancelledError("released"));
  if (message.has_assign()) {
    end_part();
    const v1::Assignment& assignment = message.assign();
    outbox_.begin(Epoch(assignment.plan().epoch()), assignment.index(),
                  assignment.has_restore()
                      ? snapshot_iteration(SnapshotId(assignment.restore().snapshot()))
                      : 0);
    sends_reports_ = true;
    events_->on_assign(assignment);
  }
  if (message.has_start()) events_->on_start(message.start());
  if (message.has_stop()) {
    if (outbox_.epoch() == Epoch(message.stop().epoch())) end_part();
    events_->on_stop(message.stop());
  }
  if (message.has_halt()) events_->on_halt(message.halt());
  if (message.has_save_checkpoint()) events_->on_save_checkpoint(message.save_checkpoint());
  if (message.has_forget_checkpoint()) events_->on_forget_checkpoint(message.forget_checkpoint());
}

// ---- the model ----

void SimControl::upload(std::uint64_t epoch, std::string bytes,
                        std::function<void(const absl::Status&)> done) {
  upload_ = std::make_unique<Upload>(this, epoch, std::move(bytes), std::move(done));
  try_upload();
}

void SimControl::try_upload() {
  const std::string digest = sha256(upload_->bytes);
  v1::NodeMessage announcement;
  announcement.mutable_model()->set_epoch(upload_->epoch);
  announcement.mutable_model()->set_sha256(digest);
  send(std::move(announcement));
  v1::ModelPart part;
  part.set_sha256(digest);
  part.set_epoch(upload_->epoch);
  part.set_total_bytes(upload_->bytes.size());
  part.set_data(upload_->bytes);
  upload_->stream = transport_->connect(kUploadAddress, upload_.get());
  upload_->stream->write(to_wire(part));
}

void SimControl::upload_ended(const absl::Status& status) {
  upload_->stream.reset();
  const bool may_be_away = absl::IsUnavailable(status) || absl::IsCancelled(status);
  if (may_be_away && outbox_.epoch() == Epoch(upload_->epoch)) {
    after(upload_->backoff, [this, upload = upload_.get()] {
      if (upload_.get() != upload) return;
      if (outbox_.epoch() == Epoch(upload->epoch)) {
        try_upload();
      } else {
        upload_ended(absl::CancelledError("the job was stopped"));
      }
    });
    upload_->backoff = std::min<Nanoseconds>(2 * upload_->backoff, kLongestBackoff);
    return;
  }
  const auto done = upload_->done;
  transport_->post([alive = alive_, done, status] {
    if (*alive) done(status);
  });
}

}  // namespace poseidon::sim
