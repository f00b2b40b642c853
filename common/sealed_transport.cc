#include "common/sealed_transport.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/printable.h"
#include "common/status_macros.h"
#include "common/text.h"

namespace poseidon {
namespace {

/// From the carrier's stream to the ticket that it shows.
constexpr Nanoseconds kTicketPatience = std::chrono::seconds(10);
/// From asking to a stream that is open.
constexpr Nanoseconds kOpenPatience = kTicketLife;
/// For the carrier to end once all is said.
constexpr Nanoseconds kEndPatience = std::chrono::seconds(10);
/// Sealed messages up to this fit into a prefix, which needs no memory of its own.
constexpr std::size_t kMaxInlineBytes = 224;

using Pieces = absl::InlinedVector<absl::Span<const std::byte>, 4>;

/// The bytes from `begin` on.
Pieces pieces_from(const Bytes& bytes, std::size_t begin) {
  Pieces pieces;
  for (absl::Span<const std::byte> piece : bytes.pieces) {
    const std::size_t here = std::min(begin, piece.size());
    piece.remove_prefix(here);
    begin -= here;
    if (!piece.empty()) pieces.push_back(piece);
  }
  return pieces;
}

void copy_to(const Bytes& bytes, std::span<std::byte> out) {
  for (const auto& piece : bytes.pieces) {
    const std::size_t here = std::min(out.size(), piece.size());
    std::copy_n(piece.begin(), here, out.begin());
    out = out.subspan(here);
  }
}

Bytes owned(const std::shared_ptr<std::byte[]>& memory, std::size_t size) {
  Bytes bytes;
  bytes.pieces.push_back(absl::Span<const std::byte>(memory.get(), size));
  bytes.owner = memory;
  return bytes;
}

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

OutgoingMessage message_of(std::string_view text) {
  return {.prefix = MessagePrefix(text), .payload = {}, .payload_owner = nullptr};
}

std::string text_of(const Ticket& ticket) {
  return {reinterpret_cast<const char*>(ticket.data()), ticket.size()};
}

}  // namespace

// ---- one end of a sealed stream ----

/// StreamHandler for the carrier's stream; its user has a Handle. Loop only.
class SealedTransport::End final : public StreamHandler {
 public:
  /// The caller's: agrees first.
  End(SealedTransport* transport, std::string address, StreamHandler* handler)
      : transport_(transport),
        state_(State::kAsks),
        address_(std::move(address)),
        handler_(handler) {
    agreed_ = transport_->agreed_->connect(address_, &asker_);
    agreed_->write(message_of(encode_seal_request()));
    after(kOpenPatience, [this] {
      if (state_ == State::kOpen) return;
      finish(
          absl::UnavailableError(absl::StrCat("no sealed stream to ", address_, " came about in ",
                                              kOpenPatience / std::chrono::seconds(1), " s")));
    });
  }
  /// The one that answers: it waits for a ticket.
  End(SealedTransport* transport, std::unique_ptr<Stream> carrier)
      : transport_(transport),
        state_(State::kAwaitsTicket),
        address_(carrier->peer()),
        carrier_(std::move(carrier)) {}
  ~End() override { *alive_ = false; }

  // For its user.
  void write(OutgoingMessage message) {
    POSEIDON_CHECK(!writing_ && !closing_, "one write at a time, and none after close");
    writing_ = true;
    if (ended_) return;  // the user hears of it by on_closed, and need not know before
    outgoing_ = std::move(message);
    pump();
  }
  void resume_reads() {
    if (carrier_ != nullptr) carrier_->resume_reads();
  }
  void close(const absl::Status& status) {
    if (std::exchange(closing_, true)) return;
    close_status_ = status;
    pump();
  }
  const std::string& peer() const { return address_; }
  /// The user is gone. False when there is nothing left to say for him.
  bool goes_on_alone() {
    handler_ = nullptr;
    if (!closing_ || ended_) return false;
    resume_reads();  // so that it hears of its end
    after(kEndPatience, [this] { finish(absl::OkStatus()); });
    return true;
  }

  std::shared_ptr<const bool> alive() const { return alive_; }
  bool awaits_ticket() const { return state_ == State::kAwaitsTicket; }

  // StreamHandler
  ReadNext on_message(Bytes message) override {
    if (ended_) return ReadNext::kContinue;
    if (state_ == State::kAwaitsTicket) return on_ticket(message);
    const std::size_t size = message.size();
    if (size < kSealOverheadBytes) return refuse("a message without a seal");
    std::byte kind{};
    copy_to(message, {&kind, 1});
    const std::size_t text_bytes = size - kSealOverheadBytes;
    const auto text = std::make_shared_for_overwrite<std::byte[]>(text_bytes);
    if (!opener_->open(kind, pieces_from(message, 1), text.get())) {
      return refuse("a message that does not open");
    }
    message.pieces.clear();
    message.owner.reset();
    if (told_) return refuse("a message after the end");
    switch (static_cast<SealKind>(kind)) {
      case SealKind::kMessage:
        return closing_ ? ReadNext::kContinue : deliver(owned(text, text_bytes));
      case SealKind::kEnd:
        told_ = decode_seal_end({reinterpret_cast<const char*>(text.get()), text_bytes});
        if (!told_) return refuse("an end without a reason");
        after(kEndPatience, [this] { finish(*told_); });
        return ReadNext::kContinue;
    }
    return refuse("a message of an unknown kind");
  }
  void on_written() override {
    carrier_busy_ = false;
    const std::shared_ptr<const bool> alive = alive_;
    if (agreed_ != nullptr) {
      agreed_.reset();  // the ticket is shown
    } else if (writing_ && !outgoing_ && !closing_) {
      writing_ = false;
      handler_->on_written();
    }
    if (*alive) pump();
  }
  void on_closed(const absl::Status& status) override;

 private:
  enum class State {
    kAsks,          ///< the caller, over TLS
    kReaches,       ///< the caller has a ticket, and no stream yet
    kAwaitsTicket,  ///< the one that answers
    kOpen,
  };

  /// Hears what becomes of the question.
  class Asker final : public StreamHandler {
   public:
    explicit Asker(End* end) : end_(end) {}
    ReadNext on_message(Bytes message) override {
      if (end_->state_ == State::kAsks) end_->on_answer(message);
      return ReadNext::kContinue;
    }
    void on_written() override {}
    void on_closed(const absl::Status& status) override {
      if (end_->state_ != State::kAsks) return;  // it has served
      end_->finish(status.ok() ? absl::UnavailableError("the stream ended before it was agreed on")
                               : status);
    }

   private:
    End* const end_;
  };

  void on_answer(const Bytes& message) {
    const auto grant = read_seal_grant(message);
    if (!grant) {
      finish(absl::UnavailableError(
          absl::StrCat(address_, " does not agree on sealed streams: is it of another version?")));
      return;
    }
    state_ = State::kReaches;
    // Shared because functions that are posted are copied, and secrets are not to be.
    const auto agreed = std::make_shared<const SealGrant>(*grant);
    transport_->carrier_->reach(
        agreed_->reached(), agreed->ticket,
        [this, alive = alive_, agreed](absl::StatusOr<SealedCarrier::Open> open) {
          if (!*alive || ended_) return;
          if (!open.ok()) {
            finish(absl::UnavailableError(open.status().message()));
            return;
          }
          begin(agreed->secrets.to_server, agreed->secrets.to_caller);
          carrier_ = (*open)(this);
          carrier_busy_ = true;
          carrier_->write(message_of(text_of(agreed->ticket)));
        });
  }

  ReadNext on_ticket(const Bytes& message);

  ReadNext deliver(Bytes message) {
    const std::shared_ptr<const bool> alive = alive_;
    const ReadNext next = handler_->on_message(std::move(message));
    // Who has let go of the stream pauses it no more: it is to hear of its end.
    return *alive && handler_ == nullptr ? ReadNext::kContinue : next;
  }

  void begin(const SealSecret& sends, const SealSecret& receives) {
    sealer_.emplace(sends);
    opener_.emplace(receives);
    state_ = State::kOpen;
  }

  /// Unless the stream has ended by then.
  template <typename Function>
  void after(Nanoseconds patience, Function function) {
    transport_->post_after(patience, [this, alive = alive_, function] {
      if (*alive && !ended_) function();
    });
  }

  /// Within an event: the stream is over, whatever those below say. By value: who hears it may
  /// destroy the stream before he reads it.
  void finish(absl::Status why);

  ReadNext refuse(const std::string& what) {
    transport_->broken_(address_, what);
    finish(absl::UnavailableError(absl::StrCat(
        "from ", address_, ": ", what,
        ": somebody between the two changes what passes, or memory is failing; the stream ends")));
    return ReadNext::kContinue;
  }

  absl::Status reason(const absl::Status& carriers) const {
    if (told_) return *told_;
    if (end_sent_ && carriers.ok()) return carriers;  // we ended it
    // What the carrier tells of the other side is not proved.
    return absl::UnavailableError(
        carriers.ok()
            ? "the connection was cut: its end is not sealed"
            : absl::StrCat("the connection was cut: ", printable(from_absl(carriers.message()))));
  }

  void pump() {
    if (state_ != State::kOpen || carrier_busy_ || ended_) return;
    if (outgoing_) {
      const OutgoingMessage message = *std::exchange(outgoing_, std::nullopt);
      send(SealKind::kMessage, bytes_of(message.prefix.view()), message.payload);
    } else if (closing_ && !end_sent_) {
      end_sent_ = true;
      send(SealKind::kEnd, bytes_of(encode_seal_end(close_status_)), {});
      carrier_->close(absl::OkStatus());
    }
  }

  /// Whoever owns the bytes is needed no more after it.
  void send(SealKind kind, absl::Span<const std::byte> front, absl::Span<const std::byte> rest) {
    const std::size_t sealed_bytes = front.size() + rest.size() + kSealTagBytes;
    const std::array<absl::Span<const std::byte>, 2> text{front, rest};
    OutgoingMessage message;
    message.prefix.push_back(static_cast<char>(kind));
    if (sealed_bytes <= kMaxInlineBytes) {
      std::array<std::byte, kMaxInlineBytes> sealed;
      sealer_->seal(static_cast<std::byte>(kind), text, sealed.data());
      message.prefix.append({reinterpret_cast<const char*>(sealed.data()), sealed_bytes});
    } else {
      const auto sealed = std::make_shared_for_overwrite<std::byte[]>(sealed_bytes);
      sealer_->seal(static_cast<std::byte>(kind), text, sealed.get());
      message.payload = {sealed.get(), sealed_bytes};
      message.payload_owner = sealed;
    }
    carrier_busy_ = true;
    carrier_->write(std::move(message));
  }

  SealedTransport* const transport_;
  State state_;
  const std::string address_;
  StreamHandler* handler_ = nullptr;  ///< null before there is a user, and once he is gone
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
  bool carrier_busy_ = false;  ///< a message of ours is being written
  bool writing_ = false;       ///< the user waits for on_written
  bool closing_ = false;       ///< the user called close
  bool end_sent_ = false;
  bool ended_ = false;
  std::optional<OutgoingMessage> outgoing_;  ///< the user's, not sealed yet
  absl::Status close_status_;
  std::optional<absl::Status> told_;  ///< how the other end ends
  Asker asker_{this};
  // They die first: nothing is heard after it.
  std::unique_ptr<Stream> agreed_;  ///< over TLS, until the ticket is shown
  std::unique_ptr<Stream> carrier_;
};

/// Ends that nobody has a handle of, until they have ended, too.
class SealedTransport::Farewells {
 public:
  void keep(std::unique_ptr<End> end) {
    End* const key = end.get();
    ends_.emplace(key, std::move(end));
  }
  void drop(End* end) { ends_.erase(end); }

 private:
  std::unordered_map<End*, std::unique_ptr<End>> ends_;
};

/// What the user holds. What he wrote before he closed still goes out when he lets it go.
class SealedTransport::Handle final : public Stream {
 public:
  Handle(SealedTransport* transport, std::unique_ptr<End> end)
      : transport_(transport), end_(std::move(end)) {}
  ~Handle() override {
    *held_ = false;
    if (end_->goes_on_alone()) transport_->farewells_->keep(std::move(end_));
  }
  void write(OutgoingMessage message) override { end_->write(std::move(message)); }
  void resume_reads() override { end_->resume_reads(); }
  void close(const absl::Status& status) override { end_->close(status); }
  std::string peer() const override { return end_->peer(); }
  /// False once the user has let go of it.
  std::shared_ptr<const bool> held() const { return held_; }

 private:
  SealedTransport* const transport_;
  const std::shared_ptr<bool> held_ = std::make_shared<bool>(true);
  std::unique_ptr<End> end_;
};

class SealedTransport::Arrivals final : public Acceptor {
 public:
  explicit Arrivals(SealedTransport* transport) : transport_(transport) {}
  StreamHandler* on_accept(std::unique_ptr<Stream> carrier) override {
    auto end = std::make_unique<End>(transport_, std::move(carrier));
    End* const handler = end.get();
    waiting_.emplace(handler, std::move(end));
    transport_->post_after(kTicketPatience, [this, handler, alive = handler->alive()] {
      if (*alive && handler->awaits_ticket()) waiting_.erase(handler);
    });
    return handler;
  }
  std::unique_ptr<End> take(End* end) { return std::move(waiting_.extract(end).mapped()); }

 private:
  SealedTransport* const transport_;
  std::unordered_map<End*, std::unique_ptr<End>> waiting_;
};

ReadNext SealedTransport::End::on_ticket(const Bytes& message) {
  Ticket ticket{};
  std::optional<SealSecrets> secrets;
  if (message.size() == ticket.size()) {
    copy_to(message, ticket);
    secrets = transport_->granted_.take(ticket, transport_->now());
  }
  std::unique_ptr<End> self = transport_->arrivals_->take(this);
  if (!secrets) {
    transport_->broken_(address_, "a stream without a ticket of ours");
    return ReadNext::kContinue;
  }
  begin(secrets->to_caller, secrets->to_server);
  auto handle = std::make_unique<Handle>(transport_, std::move(self));
  const std::shared_ptr<const bool> held = handle->held();
  StreamHandler* const user = transport_->acceptor_->on_accept(std::move(handle));
  if (*held) handler_ = user;
  return ReadNext::kContinue;
}

void SealedTransport::End::on_closed(const absl::Status& status) {
  if (ended_) return;
  if (state_ == State::kAwaitsTicket) {
    transport_->arrivals_->take(this).reset();
    return;
  }
  finish(reason(status));
}

void SealedTransport::End::finish(absl::Status why) {  // NOLINT: see the declaration
  ended_ = true;
  outgoing_.reset();
  agreed_.reset();
  carrier_.reset();
  if (handler_ != nullptr) {
    handler_->on_closed(why);
  } else {
    transport_->farewells_->drop(this);
  }
}

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
    transport_->granted_.add(grant.ticket, grant.secrets, transport_->now());
    transport_->carrier_->expect(grant.ticket);
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

SealedTransport::SealedTransport(Transport* agreed, SealedCarrier* carrier, Broken broken)
    : agreed_(agreed),
      carrier_(carrier),
      broken_(std::move(broken)),
      farewells_(std::make_unique<Farewells>()),
      agreements_(std::make_unique<Agreements>(this)),
      arrivals_(std::make_unique<Arrivals>(this)) {}
SealedTransport::~SealedTransport() = default;

std::unique_ptr<Stream> SealedTransport::connect(const std::string& address,
                                                 StreamHandler* handler) {
  return std::make_unique<Handle>(this, std::make_unique<End>(this, address, handler));
}

absl::StatusOr<std::string> SealedTransport::listen(const std::string& address,
                                                    Acceptor* acceptor) {
  acceptor_ = acceptor;
  POSEIDON_ASSIGN_OR_RETURN(std::string in_force, agreed_->listen(address, agreements_.get()));
  POSEIDON_RETURN_IF_ERROR(carrier_->listen(in_force, arrivals_.get()));
  return in_force;
}

}  // namespace poseidon
