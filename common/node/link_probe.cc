#include "common/node/link_probe.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/wire/protobuf_walk.h"

namespace poseidon {
namespace {

enum Kind : std::uint32_t { kHello = 1, kPing = 2, kData = 3, kAck = 4, kResult = 5 };
enum Field : std::uint32_t {
  kVersionField = 1,
  kKindField = 2,
  kMaxBytesField = 3,
  kMaxUsField = 4,
  kDeliveredField = 5,
  kRateField = 6,
  kPayloadField = 15,
};

constexpr std::uint32_t kPings = 5;
constexpr std::uint64_t kMinPieceBytes = 16 << 10;
constexpr std::uint64_t kMaxPieceBytes = 1 << 20;
constexpr std::uint64_t kPieceShare = 16;  ///< of what has arrived
constexpr std::uint64_t kFirstWindowBytes = 64 << 10;
constexpr std::uint64_t kWindowShare = 4;            ///< likewise
constexpr std::uint64_t kMaxBytesPerS = 1ull << 50;  ///< beyond any network
/// Longest life of a stream: a longer one is not a measurement.
constexpr Nanoseconds kSessionTimeout = std::chrono::seconds(5);
constexpr std::size_t kMaxEnds = 16;  ///< streams at a time; a measurement has one

/// What every probe sends; never written after it was made.
absl::Span<const std::byte> payload_of(std::uint64_t bytes) {
  static const std::vector<std::byte> zeros(kMaxPieceBytes);
  return absl::MakeConstSpan(zeros).first(bytes);
}

}  // namespace

// ---- one end ----

struct ProbeSession::Decoded {
  std::uint64_t version = 0, kind = 0, max_bytes = 0, max_us = 0, delivered = 0, rate = 0;
  std::uint64_t payload_bytes = 0;
};

ProbeSession::ProbeSession(Role role, ProbeLimits limits) : role_(role), limits_(limits) {}

Objection ProbeSession::check(const Decoded& message) const {
  const auto object = [](DataRefusal reason, const auto&... what) {
    return Objection{reason, absl::StrCat("probe refused: ", what...)};
  };
  if (message.version != kProtocolVersion) {
    return object(DataRefusal::kVersion, "it speaks protocol ", message.version, ", this node ",
                  kProtocolVersion);
  }
  if (!greeted_ != (message.kind == kHello)) {
    return object(DataRefusal::kKind, "HELLO comes first, and once");
  }
  if (message.delivered < acknowledged_bytes_ || message.delivered > sent_bytes_) {
    return object(DataRefusal::kSize, "it has taken ", message.delivered, " of ", sent_bytes_,
                  " bytes");
  }
  if (message.payload_bytes > kMaxPieceBytes ||
      message.payload_bytes > limits_.max_bytes - received_bytes_) {
    return object(DataRefusal::kSize, "a piece of ", message.payload_bytes, " bytes after ",
                  received_bytes_, " of ", limits_.max_bytes);
  }
  const bool known =
      message.kind == kHello || message.kind == kData || message.kind == kAck ||
      message.kind == kPing ||
      (message.kind == kResult && role_ == Role::kCaller && send_start_ && !send_rate_);
  if (!known) return object(DataRefusal::kKind, "kind ", message.kind, " at this moment");
  if (message.kind == kPing && role_ == Role::kCaller && !ping_sent_) {
    return object(DataRefusal::kKind, "PING unasked");
  }
  if (message.kind == kPing && role_ == Role::kAnswerer && pings_ > 0) {
    return object(DataRefusal::kKind, "PING twice");
  }
  if (message.kind == kData && role_ == Role::kCaller && !send_rate_) {
    return object(DataRefusal::kKind, "DATA before the other direction's end");
  }
  return {};
}

Objection ProbeSession::on_message(const Bytes& bytes, Nanoseconds now) {
  Decoded message;
  Bytes payload;
  const absl::Status walked =
      protobuf::walk_message(bytes, "ProbeMessage", kPayloadField, payload,
                             [&](std::uint32_t field, protobuf::WireType, std::uint64_t value) {
                               if (field == kVersionField) message.version = value;
                               if (field == kKindField) message.kind = value;
                               if (field == kMaxBytesField) message.max_bytes = value;
                               if (field == kMaxUsField) message.max_us = value;
                               if (field == kDeliveredField) message.delivered = value;
                               if (field == kRateField) message.rate = value;
                             });
  if (!walked.ok()) return {DataRefusal::kMalformed, std::string(walked.message())};
  message.payload_bytes = message.kind == kData ? payload.size() : 0;
  if (Objection objection = check(message)) return objection;
  acknowledged_bytes_ = message.delivered;
  switch (message.kind) {
    case kHello:
      greeted_ = true;
      if (role_ == Role::kCaller) break;
      limits_.max_bytes = std::min(message.max_bytes, limits_.max_bytes);
      limits_.max_time = std::min(Nanoseconds(std::chrono::microseconds(protobuf::to_signed(
                                      std::min<std::uint64_t>(message.max_us, 1'000'000'000)))),
                                  limits_.max_time);
      break;
    case kPing:
      take_ping(now);
      break;
    case kData:
      take_data(message.payload_bytes, now);
      break;
    case kResult:
      send_rate_ = std::min(message.rate, kMaxBytesPerS);
      receive_start_ = now;
      break;
    default:
      break;
  }
  return {};
}

void ProbeSession::take_ping(Nanoseconds now) {
  if (role_ == Role::kAnswerer) {
    ++pings_;
    return;
  }
  const Nanoseconds took = now - *ping_sent_;
  round_trip_ = std::min(round_trip_.value_or(took), took);
  ping_sent_.reset();
}

void ProbeSession::take_data(std::uint64_t bytes, Nanoseconds now) {
  if (!receive_start_) receive_start_ = now;
  if (receiving_ended(now)) return;
  received_bytes_ += bytes;
  samples_.push_back({now, received_bytes_});
}

bool ProbeSession::receiving_ended(Nanoseconds now) const {
  if (received_bytes_ >= limits_.max_bytes) return true;
  return receive_start_ && now - *receive_start_ >= limits_.max_time;
}

/// Of the last half of the time, from the last piece before it: after a hitch there may be only one
/// within. 0 where too little came.
double ProbeSession::receive_rate() const {
  if (samples_.size() < 2) return 0.0;
  const Nanoseconds begin = samples_.front().time, end = samples_.back().time;
  const Nanoseconds from = begin + (end - begin) / 2;
  const auto first =
      std::prev(std::find_if(samples_.begin(), samples_.end(), [&](const Sample& sample) {
        return sample.time > from || &sample == &samples_.back();
      }));
  const double elapsed_s = seconds(end - first->time);
  if (elapsed_s <= 0.0) return 0.0;
  return static_cast<double>(samples_.back().bytes - first->bytes) / elapsed_s;
}

std::uint64_t ProbeSession::piece_bytes() const {
  return std::min(std::clamp(acknowledged_bytes_ / kPieceShare, kMinPieceBytes, kMaxPieceBytes),
                  limits_.max_bytes - sent_bytes_);
}

bool ProbeSession::may_send_data(Nanoseconds now) const {
  if (!send_start_ || sent_bytes_ >= limits_.max_bytes) return false;
  if (now - *send_start_ >= limits_.max_time) return false;
  return sent_bytes_ - acknowledged_bytes_ + piece_bytes() <=
         kFirstWindowBytes + acknowledged_bytes_ / kWindowShare;
}

OutgoingMessage ProbeSession::make(std::uint32_t kind, std::uint64_t payload_bytes) {
  OutgoingMessage message;
  protobuf::append_field(message.prefix, kVersionField, kProtocolVersion);
  protobuf::append_field(message.prefix, kKindField, kind);
  if (kind == kHello) {
    protobuf::append_field(message.prefix, kMaxBytesField, limits_.max_bytes);
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(limits_.max_time);
    protobuf::append_field(message.prefix, kMaxUsField, static_cast<std::uint64_t>(time.count()));
  }
  protobuf::append_field(message.prefix, kDeliveredField, received_bytes_);
  told_bytes_ = received_bytes_;
  if (kind == kResult) {
    protobuf::append_field(message.prefix, kRateField,
                           static_cast<std::uint64_t>(std::llround(receive_rate())));
  }
  if (payload_bytes > 0) {
    protobuf::append_tag(message.prefix, kPayloadField, protobuf::kLengthDelimited);
    protobuf::append_varint(message.prefix, payload_bytes);
    message.payload = payload_of(payload_bytes);
    sent_bytes_ += payload_bytes;
  }
  return message;
}

std::optional<OutgoingMessage> ProbeSession::next(Nanoseconds now) {
  const bool caller = role_ == Role::kCaller;
  if (!sent_hello_ && (caller || greeted_)) {
    sent_hello_ = true;
    return make(kHello, 0);
  }
  if (!greeted_) return std::nullopt;
  if (caller && pings_ < kPings) {
    if (ping_sent_) return std::nullopt;  // one at a time
    ping_sent_ = now;
    ++pings_;
    return make(kPing, 0);
  }
  if (caller && ping_sent_) return std::nullopt;
  if (!caller && pings_ > 0) {
    --pings_;
    return make(kPing, 0);
  }
  if (!caller && !send_start_ && receiving_ended(now)) {
    send_start_ = now;
    return make(kResult, 0);
  }
  if (caller && !send_start_) send_start_ = now;
  if (may_send_data(now)) return make(kData, piece_bytes());
  if (received_bytes_ > told_bytes_) return make(kAck, 0);
  return std::nullopt;
}

std::optional<Nanoseconds> ProbeSession::deadline() const {
  if (!receive_start_) return std::nullopt;
  return *receive_start_ + limits_.max_time;
}

std::optional<absl::StatusOr<ProbeResult>> ProbeSession::result(Nanoseconds now) const {
  if (role_ != Role::kCaller || !send_rate_ || !receiving_ended(now)) return std::nullopt;
  const ProbeResult result{.send_bytes_per_s = static_cast<double>(*send_rate_),
                           .receive_bytes_per_s = receive_rate(),
                           .latency_s = seconds(*round_trip_) / 2};
  if (result.send_bytes_per_s > 0.0 && result.receive_bytes_per_s > 0.0) return result;
  return absl::UnavailableError("too little came through to tell its speed");
}

// ---- the streams ----

class LinkProbe::End final : public StreamHandler {
 public:
  End(LinkProbe* probe, std::uint64_t number, ProbeSession::Role role, ProbeLimits limits)
      : number_(number), probe_(probe), session_(role, limits) {}
  void attach(std::unique_ptr<Stream> stream) { stream_ = std::move(stream); }

  /// May destroy this.
  void pump() {
    const Nanoseconds now = probe_->transport_->now();
    if (const auto result = session_.result(now)) {
      probe_->finish(*result);
      return;
    }
    if (writing_ || closing_) return;
    if (std::optional<OutgoingMessage> message = session_.next(now)) {
      writing_ = true;
      stream_->write(*std::move(message));
    }
    const std::optional<Nanoseconds> deadline = session_.deadline();
    if (!deadline || watched_ == deadline) return;
    watched_ = deadline;
    probe_->watch(number_, std::max(*deadline - now, Nanoseconds(0)));
  }
  void close(const absl::Status& why) {
    if (std::exchange(closing_, true)) return;
    stream_->close(why);
  }

  ReadNext on_message(Bytes message) override {
    if (closing_) return ReadNext::kContinue;
    const Objection objection = session_.on_message(message, probe_->transport_->now());
    if (!objection) {
      pump();
      return ReadNext::kContinue;
    }
    probe_->refuse(stream_->peer(), objection);
    const absl::Status status = absl::InvalidArgumentError(objection.message);
    if (number_ == probe_->calling_) {
      probe_->finish(status);
    } else {
      close(status);
    }
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    pump();
  }
  void on_closed(const absl::Status& status) override {
    if (number_ == probe_->calling_) {
      probe_->finish(status.ok() ? absl::UnavailableError("it ended the stream") : status);
    } else {
      probe_->remove(*this);
    }
  }

  const std::uint64_t number_;

 private:
  LinkProbe* const probe_;
  ProbeSession session_;
  bool writing_ = false;
  bool closing_ = false;
  std::optional<Nanoseconds> watched_;
  std::unique_ptr<Stream> stream_;  ///< destroyed first: no event comes after that
};

LinkProbe::LinkProbe(Transport* transport, RefusalCounts* refusals, RefusalLog log)
    : transport_(transport), refusals_(refusals), log_(std::move(log)) {}
LinkProbe::~LinkProbe() { *alive_ = false; }

void LinkProbe::refuse(const std::string& peer, const Objection& objection) {
  refusals_->add(objection.reason);
  if (log_) log_(peer, objection);
}

void LinkProbe::watch(std::uint64_t number, Nanoseconds delay) {
  transport_->post_after(delay, [this, alive = alive_, number] {
    if (!*alive) return;
    if (const auto end = ends_.find(number); end != ends_.end()) end->second->pump();
  });
}

void LinkProbe::measure(const std::string& address, ProbeLimits limits, Done done) {
  transport_->post([this, alive = alive_, address, limits, done = std::move(done)] {
    if (!*alive) return;
    if (calling_ != 0) finish(absl::CancelledError("another measurement took its place"));
    const std::uint64_t number = ++next_number_;
    calling_ = number;
    address_ = address;
    done_ = done;
    auto end = std::make_unique<End>(this, number, ProbeSession::Role::kCaller, limits);
    End* const handler = end.get();
    ends_[number] = std::move(end);
    handler->attach(transport_->connect(address, handler));
    handler->pump();
    transport_->post_after(kSessionTimeout, [this, watched = alive_, number] {
      if (!*watched || calling_ != number) return;
      finish(absl::DeadlineExceededError("no result within 5 s"));
    });
  });
}

void LinkProbe::cancel() {
  transport_->post([this, alive = alive_] {
    if (*alive && calling_ != 0) finish(absl::CancelledError("the measurement was stopped"));
  });
}

void LinkProbe::finish(const absl::StatusOr<ProbeResult>& result) {
  const absl::StatusOr<ProbeResult> answer =
      result.ok()
          ? result
          : absl::Status(result.status().code(), absl::StrCat("measuring the network to ", address_,
                                                              ": ", result.status().message()));
  ends_.erase(
      std::exchange(calling_, 0));  // may be where we are called from: nothing of it is used
  const Done done = std::exchange(done_, nullptr);
  done(answer);
}

void LinkProbe::remove(End& end) { ends_.erase(end.number_); }

StreamHandler* LinkProbe::on_accept(std::unique_ptr<Stream> stream) {
  const std::uint64_t number = ++next_number_;
  auto end = std::make_unique<End>(this, number, ProbeSession::Role::kAnswerer, kProbeCeiling);
  End* const handler = end.get();
  handler->attach(std::move(stream));
  ends_[number] = std::move(end);
  if (ends_.size() > kMaxEnds) {
    handler->close(absl::UnavailableError(
        absl::StrCat("this node has ", kMaxEnds, " measurements under way and no more")));
  }
  transport_->post_after(kSessionTimeout, [this, alive = alive_, number] {
    if (!*alive) return;
    const auto found = ends_.find(number);
    if (found != ends_.end()) {
      found->second->close(absl::DeadlineExceededError("a measurement takes no 5 s"));
    }
  });
  return handler;
}

}  // namespace poseidon
