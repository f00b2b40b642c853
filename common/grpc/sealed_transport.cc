#include "common/grpc/sealed_transport.h"

#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// From asking to a stream that is open.
constexpr Nanoseconds kOpenPatience = kTicketLife;

OutgoingMessage message_of(std::string_view text) {
  return {.prefix = MessagePrefix(text), .payload = {}, .payload_owner = nullptr};
}

/// In the place of a user who is gone.
class Nobody final : public StreamHandler {
 public:
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& /*status*/) override {}
};

StreamHandler* nobody() {
  static Nobody nobody;
  return &nobody;
}

}  // namespace

// ---- agreeing, at the end that calls ----

/// A stream until it is open, and what its user says meanwhile. Loop only.
class SealedTransport::Opening final : public StreamHandler,
                                       public std::enable_shared_from_this<Opening> {
 public:
  Opening(SealedTransport* transport, std::string address, StreamHandler* handler)
      : transport_(transport), address_(std::move(address)), handler_(handler) {}

  void begin() {
    agreed_ = transport_->agreed_->connect(address_, this);
    agreed_->write(message_of(encode_seal_request()));
    transport_->post_after(kOpenPatience, [self = weak_from_this()] {
      const std::shared_ptr<Opening> opening = self.lock();
      if (opening == nullptr || opening->is_over()) return;
      opening->fail(absl::UnavailableError(
          absl::StrCat("no sealed stream to ", opening->address_, " came about in ",
                       kOpenPatience / std::chrono::seconds(1), " s")));
    });
  }

  // For the user.
  const std::string& address() const { return address_; }
  void write(OutgoingMessage message) {
    if (stream_ != nullptr) {
      stream_->write(std::move(message));
      return;
    }
    POSEIDON_CHECK(!outgoing_ && !end_, "one write at a time, and none after close");
    if (!failed_) outgoing_ = std::move(message);
  }
  void resume_reads() {
    if (stream_ != nullptr) stream_->resume_reads();
  }
  void close(const absl::Status& status) {
    if (stream_ != nullptr) {
      stream_->close(status);
    } else if (!end_) {
      end_ = status;
    }
  }
  /// What was said before close() is said yet.
  void let_go() {
    handler_ = nullptr;
    stream_.reset();
    if (!is_over() && end_) {
      transport_->farewells_.insert(shared_from_this());
    } else {
      agreed_.reset();
      failed_ = true;
    }
  }

  // StreamHandler, of the stream over TLS
  ReadNext on_message(Bytes message) override {
    if (std::exchange(is_answered_, true)) return ReadNext::kContinue;
    const auto grant = read_seal_grant(message);
    if (!grant) {
      fail(absl::UnavailableError(
          absl::StrCat(address_, " does not agree on sealed streams: is it of another version?")));
      return ReadNext::kContinue;
    }
    // Shared because functions that are posted are copied, and secrets are not to be.
    const auto secrets = std::make_shared<const SealEnds>(
        SealEnds{.sends = grant->secrets.to_server, .receives = grant->secrets.to_caller});
    transport_->carrier_->reach(
        agreed_->reached(), grant->ticket,
        [self = weak_from_this(), secrets](absl::StatusOr<std::unique_ptr<SealedConnection>> made) {
          const std::shared_ptr<Opening> opening = self.lock();
          if (opening == nullptr || opening->is_over()) return;
          if (made.ok()) {
            opening->open(**made, *secrets);
          } else {
            opening->fail(absl::UnavailableError(made.status().message()));
          }
        });
    return ReadNext::kContinue;
  }
  void on_written() override {}
  void on_closed(const absl::Status& status) override {
    if (is_answered_) return;  // it has served
    fail(status.ok() ? absl::UnavailableError("the stream ended before it was agreed on") : status);
  }

 private:
  bool is_over() const { return failed_ || stream_ != nullptr; }

  void open(SealedConnection& connection, const SealEnds& secrets) {
    agreed_.reset();
    stream_ = connection.open(secrets, handler_ == nullptr ? nobody() : handler_);
    if (outgoing_) stream_->write(*std::exchange(outgoing_, std::nullopt));
    if (end_) stream_->close(*end_);
    if (handler_ != nullptr) return;
    stream_.reset();  // which says it to its end
    failed_ = true;
    transport_->farewells_.erase(shared_from_this());
  }

  /// By value: who tells of it may go with a stream.
  void fail(absl::Status why) {  // NOLINT: see above
    const std::shared_ptr<Opening> alive = shared_from_this();
    failed_ = true;
    agreed_.reset();
    outgoing_.reset();
    transport_->farewells_.erase(alive);
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
  }

  SealedTransport* const transport_;
  const std::string address_;
  StreamHandler* handler_;  ///< null once the user is gone, or has heard the end
  bool is_answered_ = false;
  bool failed_ = false;                      ///< there will be no stream
  std::optional<OutgoingMessage> outgoing_;  ///< written before there is one
  std::optional<absl::Status> end_;
  std::unique_ptr<Stream> stream_;  ///< null until it is open
  std::unique_ptr<Stream> agreed_;  ///< over TLS, until the ticket is shown
};

/// What the user holds.
class SealedTransport::Handle final : public Stream {
 public:
  explicit Handle(std::shared_ptr<Opening> opening) : opening_(std::move(opening)) {}
  ~Handle() override { opening_->let_go(); }
  void write(OutgoingMessage message) override { opening_->write(std::move(message)); }
  void resume_reads() override { opening_->resume_reads(); }
  void close(const absl::Status& status) override { opening_->close(status); }
  std::string peer() const override { return opening_->address(); }

 private:
  const std::shared_ptr<Opening> opening_;
};

// ---- agreeing, at the end that answers ----

/// A stream over TLS: it asks, or is another one's and stays where it is. Loop only.
class SealedTransport::Agreement final : public Stream, public StreamHandler {
 public:
  Agreement(SealedTransport* transport, std::unique_ptr<Stream> inner)
      : transport_(transport), inner_(std::move(inner)) {}
  ~Agreement() override { *alive_ = false; }

  std::shared_ptr<const bool> alive() const { return alive_; }
  bool has_no_user() const { return handler_ == nullptr; }

  // Stream, of who did not ask.
  void write(OutgoingMessage message) override { inner_->write(std::move(message)); }
  void resume_reads() override { inner_->resume_reads(); }
  void close(const absl::Status& status) override { inner_->close(status); }
  std::string peer() const override { return inner_->peer(); }

  // StreamHandler
  ReadNext on_message(Bytes message) override;
  void on_written() override {
    if (handler_ != nullptr) handler_->on_written();
  }
  void on_closed(const absl::Status& status) override;

 private:
  void answer(std::uint32_t version) {
    if (version != kSealVersion) {
      inner_->close(absl::FailedPreconditionError(
          absl::StrCat("sealed streams of version ", version, " are asked for; this is ",
                       kSealVersion, ": run the same version of Poseidon everywhere")));
      return;
    }
    SealGrant grant;
    fill_with_secret_bytes(absl::MakeSpan(grant.ticket));
    fill_with_secret_bytes(absl::MakeSpan(grant.secrets.to_server));
    fill_with_secret_bytes(absl::MakeSpan(grant.secrets.to_caller));
    const auto secrets = std::make_shared<const SealEnds>(
        SealEnds{.sends = grant.secrets.to_caller, .receives = grant.secrets.to_server});
    transport_->carrier_->expect(grant.ticket,
                                 [acceptor = transport_->acceptor_,
                                  secrets](const std::unique_ptr<SealedConnection>& connection) {
                                   connection->offer(*secrets, acceptor);
                                 });
    std::string text = encode_seal_grant(grant);
    inner_->write(message_of(text));
    forget_secret(text.data(), text.size());
  }

  SealedTransport* const transport_;
  StreamHandler* handler_ = nullptr;  ///< of who did not ask
  bool is_first_ = true;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Stream> inner_;  ///< dies first: nothing is heard after it
};

class SealedTransport::Agreements final : public Acceptor {
 public:
  explicit Agreements(SealedTransport* transport) : transport_(transport) {}
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    auto agreement = std::make_unique<Agreement>(transport_, std::move(stream));
    Agreement* const handler = agreement.get();
    if (open_.size() >= kMaxTickets) {
      // Whoever asks comes again: others must not end a run.
      handler->close(absl::UnavailableError(
          absl::StrCat(kMaxTickets, " streams wait to be agreed on already")));
    }
    open_.emplace(handler, std::move(agreement));
    transport_->post_after(kTicketLife, [this, handler, alive = handler->alive()] {
      if (*alive && handler->has_no_user()) open_.erase(handler);
    });
    return handler;
  }
  std::unique_ptr<Agreement> take(Agreement* agreement) {
    return std::move(open_.extract(agreement).mapped());
  }

 private:
  SealedTransport* const transport_;
  std::unordered_map<Agreement*, std::unique_ptr<Agreement>> open_;
};

ReadNext SealedTransport::Agreement::on_message(Bytes message) {
  if (handler_ != nullptr) return handler_->on_message(std::move(message));
  if (!std::exchange(is_first_, false)) return ReadNext::kContinue;  // it has been answered
  if (const auto version = read_seal_request(message)) {
    answer(*version);
    return ReadNext::kContinue;
  }
  const std::shared_ptr<const bool> alive = alive_;
  StreamHandler* const user = transport_->acceptor_->on_accept(transport_->agreements_->take(this));
  if (!*alive) return ReadNext::kContinue;
  handler_ = user;
  return handler_->on_message(std::move(message));
}

void SealedTransport::Agreement::on_closed(const absl::Status& status) {
  if (handler_ != nullptr) {
    handler_->on_closed(status);
  } else {
    transport_->agreements_->take(this).reset();
  }
}

// ---- the transport ----

SealedTransport::SealedTransport(Transport* agreed, SealedCarrier* carrier)
    : agreed_(agreed), carrier_(carrier), agreements_(std::make_unique<Agreements>(this)) {}
SealedTransport::~SealedTransport() = default;

std::unique_ptr<Stream> SealedTransport::connect(const std::string& address,
                                                 StreamHandler* handler) {
  auto opening = std::make_shared<Opening>(this, address, handler);
  opening->begin();
  return std::make_unique<Handle>(std::move(opening));
}

absl::StatusOr<std::string> SealedTransport::listen(const std::string& address,
                                                    Acceptor* acceptor) {
  acceptor_ = acceptor;
  return agreed_->listen(address, agreements_.get());
}

}  // namespace poseidon
