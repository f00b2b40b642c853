#pragma once

// TLS 1.3 by OpenSSL on a nonblocking socket: one end of a connection on which both ends show
// certificates. It does not check certificates itself: it calls a function in the handshake.
//
// Called by: common/grpc/tls_sockets.h, which waits for the socket. Calls: OpenSSL, the socket, and
// common/security/security.h for the judgement.
//
// OpenSSL hands encryption to the kernel (kTLS) where both of them can; otherwise it encrypts
// itself. No session is resumed and no early data is taken, so that every connection is judged.
// The key of a direction is renewed long before AES-GCM's limit (RFC 8446, 5.5).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/security/certificates.h"

struct ssl_ctx_st;
struct ssl_st;
struct x509_store_ctx_st;

namespace poseidon {

struct TlsIdentity;

/// The shared state of all connections of one direction. Any thread.
class TlsContext {
 public:
  enum class End : std::uint8_t { kCalls, kAnswers };
  /// INVALID_ARGUMENT when OpenSSL does not take the identity.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> make(const TlsIdentity& identity,
                                                                End end);
  End end() const { return end_; }

 private:
  friend class TlsSession;
  TlsContext(std::shared_ptr<ssl_ctx_st> context, End end)
      : context_(std::move(context)), end_(end) {}
  const std::shared_ptr<ssl_ctx_st> context_;
  const End end_;
};

/// One connection. Not for concurrent use. The process ignores SIGPIPE: OpenSSL writes to sockets
/// whose other end may be gone.
class TlsSession {
 public:
  /// The certificates of the other end (PEM): its own, "" for none, and the chain that it sent.
  /// Nothing: it is accepted.
  using Judge = std::function<std::optional<PeerObjection>(const std::string& certificate_pem,
                                                           const std::string& chain_pem)>;
  enum class Outcome : std::uint8_t {
    kDone,
    kWantsRead,   ///< again when the socket has bytes
    kWantsWrite,  ///< again when the socket takes bytes; a write then with the same bytes
    kClosed,      ///< the other end has closed it properly (close_notify)
    kCut,         ///< the connection has ended in another way
    kAlert,       ///< the other end refused our certificate or message
    kJudged,      ///< the other end's certificate is refused, see objection()
    kBroken       ///< the received bytes are not TLS, or were changed on their way
  };
  struct Result {
    Outcome outcome = Outcome::kDone;
    std::size_t bytes = 0;  ///< of kDone: how many were read or written, 1 at least
    std::string what;       ///< of the last four: for people
  };

  /// `socket` is connected, nonblocking, and stays open for as long as this lives.
  TlsSession(const TlsContext& context, int socket, Judge judge);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  Result handshake();
  /// After the handshake, as write().
  Result read(absl::Span<std::byte> room);
  /// Takes the first bytes, one record's at most. After kWantsWrite the next call has to begin with
  /// the same bytes and have as many at least.
  Result write(absl::Span<const std::byte> bytes);
  /// Says that nothing follows, where the socket takes it.
  void close_notify();

  const std::optional<PeerObjection>& objection() const { return objection_; }
  /// Of the other end, once the handshake is done.
  CertificateFacts peer_certificate() const;
  /// "TLS_AES_128_GCM_SHA256, sent by the kernel"
  std::string description() const;

 private:
  static int verify(x509_store_ctx_st* store, void* unused);
  friend class TlsContext;
  Result failure(int returned);
  void renew_key_in_time(std::size_t written);

  const Judge judge_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  std::optional<PeerObjection> objection_;
  std::size_t since_key_ = 0;  ///< bytes written with the present key
  bool is_over_ = false;       ///< OpenSSL must not be called any more
};

}  // namespace poseidon
