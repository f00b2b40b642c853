#pragma once

// A transport whose streams are agreed on over one transport and carried, sealed, by another.
//
// Before: common/transport/paced_transport.h opens a stream. After: what it writes goes, encrypted
// and authenticated, over a connection of its own (common/grpc/sealed_sockets.h).
//
// What for: gRPC 1.51 over TLS takes three times the CPU per GB of plain sockets, half of it copies
// around OpenSSL. So TLS does what it is good at, proving who is who and agreeing on secrets, and
// the messages go over another connection, sealed by us (common/grpc/sealed_pipe.h).
// docs/decisions/0017-tls.md says what that does and does not protect.
//
// How two ends agree (common/grpc/seal_wire.h)
//  1. The caller opens a stream over TLS, as for any method, and asks. Certificates, roles and
//     tokens are judged there as always.
//  2. The one that answers grants: a ticket and a secret for each direction, fresh from the random
//     source, for this stream alone.
//  3. The caller connects to the same port, shows the ticket, and closes the first stream. From
//     here on everything that is sent either way is sealed, the reason of the end included.
// A caller that begins with anything else (a stock gRPC client) stays where it is, under TLS.
//
// An end that is not sealed was not the other side's doing: UNAVAILABLE. What does not open ends
// the stream likewise.
//
// Bounds: kMaxTickets streams over TLS wait for their first message or for their ticket to be
// shown, for 30 s each. A caller waits 30 s for an agreement.

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "common/grpc/seal_wire.h"
#include "common/grpc/sealed_pipe.h"
#include "common/security/ticket_book.h"
#include "common/transport/transport.h"

namespace poseidon {

/// A connection on which a ticket was shown. Destroying it closes it. Loop only.
class SealedConnection {
 public:
  virtual ~SealedConnection() = default;
  /// Once: the stream over it. `handler` must outlive that.
  virtual std::unique_ptr<Stream> open(const SealEnds& secrets, StreamHandler* handler) = 0;
  /// The same for one that came: the stream goes to `acceptor`.
  virtual void offer(const SealEnds& secrets, Acceptor* acceptor) = 0;
};

/// Brings connections to who has given out a ticket. The real one is in
/// common/grpc/grpc_transport.cc; tests have common/grpc/memory_carrier.h.
class SealedCarrier {
 public:
  using Reached = std::function<void(absl::StatusOr<std::unique_ptr<SealedConnection>>)>;
  using Arrived = std::function<void(std::unique_ptr<SealedConnection>)>;

  virtual ~SealedCarrier() = default;
  /// On the loop, as are all. Connects and shows the ticket; `reached` hears of it on the loop, not
  /// before this returns, and within a few seconds; not at all when the loop ends before.
  virtual void reach(const std::string& address, const Ticket& ticket, Reached reached) = 0;
  /// Who shows this ticket, where agreed streams are listened for, is let in.
  virtual void expect(const Ticket& ticket, Arrived arrived) = 0;
};

class SealedTransport final : public Transport {
 public:
  /// `agreed` and `carrier` share a loop and must outlive it, and it its streams.
  SealedTransport(Transport* agreed, SealedCarrier* carrier);
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
  class Handle;
  class Opening;

  Transport* const agreed_;
  SealedCarrier* const carrier_;
  /// Of users who are gone, while something is to be said for them.
  std::set<std::shared_ptr<Opening>> farewells_;
  // Of who listens.
  Acceptor* acceptor_ = nullptr;
  std::unique_ptr<Agreements> agreements_;  ///< streams over TLS that have no user
};

}  // namespace poseidon
