#pragma once

// The one place that makes gRPC credentials and opens gRPC ports: mutual TLS, the join token, the
// roles of callers, and the limits of a port (docs/security.md). It also decides which clients may
// read metrics and status pages (common/pages/http_server.h).
//
// With TLS both sides of every connection send a certificate of the cluster's authority, and both
// check the other's in the handshake (common/security/certificates.h). The client checks that the
// server has a role that may serve the method (common/security/roles.h), so a worker cannot pose as
// a coordinator. The server checks the client's role at every call. With a join token, every call
// carries the token. With neither, all clients are accepted.
//
// Called by: main() loads it; common/grpc/grpc_transport.cc, common/node/control_client.cc,
// coordinator/service.cc and cli/remote/coordinator_client.cc connect and listen through it.
// Calls: gRPC's credentials, common/security/certificates.h, common/security/connection_door.h.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/security/certificates.h"
#include "common/security/roles.h"
#include "common/security/security_options.h"

namespace grpc {
class ChannelCredentials;
class ClientContext;
class ServerBuilder;
class ServerContextBase;
class ServerCredentials;
namespace experimental {
class ExternalConnectionAcceptor;
}
}  // namespace grpc

namespace poseidon {

/// Prefix of the methods that the coordinator serves.
inline constexpr std::string_view kCoordinatorMethods = "/poseidon.v1.Coordinator/";

class ConnectionDoor;
class Security;

/// A listening port. Destroy it before its server.
class ServerPort {
 public:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;
  ServerPort(std::unique_ptr<ConnectionDoor> door, std::unique_ptr<Connections> acceptor,
             std::shared_ptr<Security> security);
  ~ServerPort();
  int port() const;
  /// Accepts connections; call once the server is built. `take_stream` is called on the door's
  /// thread with each socket that carries one stream in TLS (kGreeting in connection_door.h), and
  /// owns it; gRPC never sees these sockets. Without it all sockets go to gRPC.
  void start(std::function<void(int socket)> take_stream = nullptr);

 private:
  const std::shared_ptr<Security> security_;
  const std::unique_ptr<Connections> acceptor_;
  const std::unique_ptr<ConnectionDoor> door_;  ///< last: its thread uses the others
};

/// Limits of each connection to a gRPC port.
struct PortLimits {
  /// Time from accepting a connection until its TLS and HTTP/2 handshakes are done; then it is cut.
  Milliseconds handshake{10000};
  /// A connection without a call for this long is closed.
  Milliseconds idle{60000};
  int calls_per_connection = 16;  ///< at a time
  int metadata_bytes = 16384;     ///< the headers of one call
};

/// A server's certificate and key, and the authority that it checks clients against. PEM.
struct TlsIdentity {
  std::string authority_pem;
  std::string certificate_pem;
  std::string key_pem;
};

/// The known facts about the caller of a method.
struct MethodCaller {
  std::string peer;              ///< "10.0.0.3:4711"
  std::string method;            ///< "/poseidon.v1.Service/Method"
  CertificateFacts certificate;  ///< that it sent; empty without TLS
  std::optional<std::string> join_token;
};

/// Any thread. Only its counts change. Shared by all clients and servers of the process.
class Security : public std::enable_shared_from_this<Security> {
 public:
  /// Neither TLS nor token.
  static std::shared_ptr<Security> none();

  /// Reads the files that the options name, and checks that our own certificate is one of `self`,
  /// valid now and signed by ca.crt. INVALID_ARGUMENT names the file and the remedy. Logs a warning
  /// when the certificate expires within kExpiryWarning.
  static absl::StatusOr<std::shared_ptr<Security>> load(const SecurityOptions& options,
                                                        PeerRole self);

  bool has_tls() const { return tls_ != nullptr; }
  bool has_token() const { return !token_.empty(); }

  // ---- clients ----

  /// For a channel for `method` and other methods that the same roles serve.
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials(std::string_view method) const;
  /// Adds the token; call before the call starts.
  void sign(grpc::ClientContext& context) const;
  /// The same error, with advice when it is an error of connecting.
  absl::Status explain(const absl::Status& error) const;

  // ---- servers ----

  /// Listens on `address` (HOST:PORT, port 0: any) for the server that will be built, with our
  /// credentials, and these limits beside those of ConnectionDoor. ALREADY_EXISTS when the port is
  /// taken.
  absl::StatusOr<std::unique_ptr<ServerPort>> open_port(grpc::ServerBuilder& builder,
                                                        const std::string& address,
                                                        const PortLimits& limits = {});
  /// Whether the peer may make this call; the refusal is counted and logged. PERMISSION_DENIED for
  /// a wrong role, UNAUTHENTICATED for a certificate that has expired since the handshake or a
  /// token.
  absl::Status admit(const grpc::ServerContextBase& context, std::string_view method);
  absl::Status admit(const MethodCaller& caller);
  /// The roles in the peer's certificate; nullopt without TLS.
  std::optional<RoleSet> roles_of(const grpc::ServerContextBase& context) const;
  /// For a separate server that speaks TLS; null without TLS.
  const TlsIdentity* identity() const;
  /// Whether a client with these certificates (PEM: its own, "" for none, and the chain that it
  /// sent) may read metrics and status pages. PERMISSION_DENIED says why not; counted and logged.
  absl::Status admit_reader(const std::string& certificate_pem, const std::string& chain_pem,
                            std::string_view peer);
  // ---- for streams in TLS that gRPC does not carry ----

  /// "": off. What an opening carries.
  const std::string& join_token() const { return token_; }
  /// In the handshake: the fault of a caller's certificate, which is counted and logged.
  std::optional<PeerObjection> judge_caller(const std::string& certificate_pem,
                                            const std::string& chain_pem, std::string_view peer);
  /// The same of one that is called at `address` for `method`.
  std::optional<PeerObjection> judge_answerer(const std::string& certificate_pem,
                                              const std::string& chain_pem, std::string_view method,
                                              std::string_view address);

  /// Counts and logs a refusal that is found after admit(). `peer` as gRPC names it.
  void refuse(PeerRefusal refusal, std::string_view peer, const std::string& message);

  // ---- for metrics ----

  std::uint64_t refused(PeerRefusal refusal) const;
  /// Of our own certificate or its authority, since 1970; nothing without TLS.
  std::optional<std::int64_t> expires_unix_s() const;

 private:
  struct Tls;
  struct Counts {
    std::array<std::atomic<std::uint64_t>, kPeerRefusals> refused{};
  };
  class Verifier;
  Security();
  std::shared_ptr<grpc::ServerCredentials> server_credentials() const;

  std::shared_ptr<const Tls> tls_;  ///< null: off
  std::string token_;               ///< "": off
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

/// Whether two secrets are the same, in a time that does not tell where they differ.
bool same_secret(std::string_view a, std::string_view b);

/// Advice for an operator when a connection failed with this text. `tls`: whether we speak it. ""
/// when nothing can be told. Pure.
std::string connection_hint(std::string_view error, bool tls);

/// Routes gRPC's own log lines to ours (debug), and counts the TLS handshakes that failed in this
/// process; gRPC has one log per process. Once, before gRPC is used.
void take_grpc_log();

}  // namespace poseidon
