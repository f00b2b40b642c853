#pragma once

// A transport whose streams are agreed on over one transport and carried, sealed, by another.
//
// Before: common/paced_transport.h writes a message. After: common/grpc_transport.h carries it,
// whole and sealed by common/seal.h; what comes is opened into memory of its own.
//
// What for: gRPC 1.51 over TLS takes three times the CPU per GB of plain sockets, half of it copies
// around OpenSSL. So TLS does what it is good at, proving who is who and agreeing on secrets, and
// the messages go over a plain connection, each encrypted and authenticated by us as it is
// (common/seal.h). docs/decisions/0017-tls.md says what that does and does not protect.
//
// How two ends agree (common/seal_wire.h)
//  1. The caller opens a stream over TLS, as for any method, and asks. Certificates, roles and
//     tokens are judged there as always.
//  2. The one that answers grants: a ticket and a secret for each direction, fresh from the random
//     source, for this stream alone.
//  3. The caller opens the carrier's stream, which shows the ticket, and closes the first. From
//     here on everything that is sent either way is sealed, the reason of the end included.
// A caller that begins with anything else (a stock gRPC client) stays where it is, under TLS.
//
// What is on the carrier: first the caller's ticket, as a message of its own. Then messages of one
// byte, what it is (SealKind), and what that seals: a message of the user, or the end with its
// reason. An end without such a message was not the other side's doing: UNAVAILABLE, whatever the
// carrier says. A message that does not open ends the stream likewise, and is told to `broken`.
//
// Bounds: kMaxTickets streams over TLS wait for their first message or for their ticket to be
// shown, for 30 s each; streams of the carrier 10 s for theirs. A caller waits 30 s for an
// agreement. Who was told the other's end, or has said ours and is gone, waits 10 s for the carrier
// to end.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/seal.h"
#include "common/seal_wire.h"
#include "common/ticket_book.h"
#include "common/transport.h"

namespace poseidon {

/// What a sealed message is longer than what it carries.
inline constexpr std::size_t kSealOverheadBytes = kSealTagBytes + 1;

/// The first byte of a sealed message, and part of what its seal proves.
enum class SealKind : std::uint8_t {
  kMessage = 0,
  kEnd = 1,  ///< the sender's last: a status code (4 bytes, little endian) and its text
};

/// Brings streams to who has given out a ticket. The real one is in common/grpc_transport.h; tests
/// have one over the in-memory twin.
class SealedCarrier {
 public:
  /// Makes the stream; its handler must outlive it.
  using Open = std::function<std::unique_ptr<Stream>(StreamHandler* handler)>;
  using Reached = std::function<void(absl::StatusOr<Open>)>;

  virtual ~SealedCarrier() = default;
  /// On the loop, as are all. Connects and shows the ticket; `reached` hears of it on the loop, not
  /// before this returns, and within a few seconds; not at all when the loop ends before.
  virtual void reach(const std::string& address, const Ticket& ticket, Reached reached) = 0;
  /// Streams of those who have shown a ticket, and perhaps of strangers: their first message says.
  virtual absl::Status listen(const std::string& address, Acceptor* acceptor) = 0;
  /// Who shows this ticket is to be let in.
  virtual void expect(const Ticket& ticket) = 0;
};

class SealedTransport final : public Transport {
 public:
  /// Hears of a message that nobody could have sent who has the secret, or of a stranger's ticket.
  using Broken = std::function<void(const std::string& peer, const std::string& what)>;

  /// `agreed` and `carrier` share a loop and must outlive it, and it its streams.
  SealedTransport(Transport* agreed, SealedCarrier* carrier, Broken broken);
  ~SealedTransport() override;

  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override;
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override;
  void post(std::function<void()> function) override { agreed_->post(std::move(function)); }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    agreed_->post_after(delay, std::move(function));
  }
  Nanoseconds now() const override { return agreed_->now(); }

 private:
  class Agreement;
  class Agreements;
  class Arrivals;
  class End;
  class Farewells;
  class Handle;

  Transport* const agreed_;
  SealedCarrier* const carrier_;
  const Broken broken_;
  std::unique_ptr<Farewells> farewells_;  ///< streams that their users have ended and forgotten
  // Of who listens.
  Acceptor* acceptor_ = nullptr;
  TicketMap<SealSecrets> granted_;
  std::unique_ptr<Agreements> agreements_;  ///< streams over TLS that have no user
  std::unique_ptr<Arrivals> arrivals_;  ///< streams of the carrier that have shown no ticket yet
};

}  // namespace poseidon
