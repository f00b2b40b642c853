#pragma once

// The one place that makes gRPC credentials and opens gRPC ports: mutual TLS, the join token, the
// roles of callers, and the limits of a port (docs/security.md). It also judges who reads pages of
// figures (common/pages/http_server.h).
//
// With TLS both sides of every connection show a certificate of the cluster's authority, and both
// judge it in the handshake (common/security/certificates.h). Who answers must have the role that
// the method asks for (common/security/roles.h), so that no worker poses as a coordinator; who
// calls is asked for its role at every call. With a join token every call carries it. With neither,
// everybody is let in.
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

/// The methods that the coordinator answers begin so.
inline constexpr std::string_view kCoordinatorMethods = "/poseidon.v1.Coordinator/";

class ConnectionDoor;
class Security;

/// A port that is listened on. Goes before its server does.
class ServerPort {
 public:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;
  ServerPort(std::unique_ptr<ConnectionDoor> door, std::unique_ptr<Connections> acceptor,
             std::shared_ptr<Security> security);
  ~ServerPort();
  int port() const;
  /// Once the server is built: lets callers in. `take_stream`: on the door's thread, gets the
  /// sockets that carry one stream in TLS (kGreeting in connection_door.h) to own; gRPC never hears
  /// of them. Without it all go to gRPC.
  void start(std::function<void(int socket)> take_stream = nullptr);

 private:
  const std::shared_ptr<Security> security_;
  const std::unique_ptr<Connections> acceptor_;
  const std::unique_ptr<ConnectionDoor> door_;  ///< last: its thread uses the others
};

/// Of each connection to a gRPC port.
struct PortLimits {
  /// From accepting it until TLS and HTTP/2 have greeted; then it is cut.
  Milliseconds handshake{10000};
  /// One without a call is closed.
  Milliseconds idle{60000};
  int calls_per_connection = 16;  ///< at a time
  int metadata_bytes = 16384;     ///< the headers of one call
};

/// What one who answers shows, and what it knows the others by. PEM.
struct TlsIdentity {
  std::string authority_pem;
  std::string certificate_pem;
  std::string key_pem;
};

/// What is known of one who calls a method.
struct MethodCaller {
  std::string peer;              ///< "10.0.0.3:4711"
  std::string method;            ///< "/poseidon.v1.Service/Method"
  CertificateFacts certificate;  ///< that it has shown; without TLS, empty
  std::optional<std::string> join_token;
};

/// Any thread. Unchanging but for its counts; shared by all that connects and listens.
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

  // ---- who connects ----

  /// For a channel on which only `method` (and others that the same roles answer) is called.
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials(std::string_view method) const;
  /// Before the call starts: adds the token.
  void sign(grpc::ClientContext& context) const;
  /// The same error, and what to look at when it is one of connecting.
  absl::Status explain(const absl::Status& error) const;

  // ---- who listens ----

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
  /// What the peer's certificate says that it is; without TLS nothing is known of it.
  std::optional<RoleSet> roles_of(const grpc::ServerContextBase& context) const;
  /// For a server of its own that speaks TLS; null without.
  const TlsIdentity* identity() const;
  /// Whether one who has shown these certificates (PEM: its own, "" for none, and what it sent with
  /// it) may read pages of figures. PERMISSION_DENIED says why not; counted and logged.
  absl::Status admit_reader(const std::string& certificate_pem, const std::string& chain_pem,
                            std::string_view peer);
  // ---- for streams in TLS that gRPC does not carry ----

  /// "": off. What an opening carries.
  const std::string& join_token() const { return token_; }
  /// In the handshake: what is wrong with the certificate of a caller; counted and logged.
  std::optional<PeerObjection> judge_caller(const std::string& certificate_pem,
                                            const std::string& chain_pem, std::string_view peer);
  /// The same of one that is called at `address` for `method`.
  std::optional<PeerObjection> judge_answerer(const std::string& certificate_pem,
                                              const std::string& chain_pem, std::string_view method,
                                              std::string_view address);

  /// For what turns out later than admit(): counts and logs. `peer` as gRPC names it.
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

/// What an operator should look at when a connection failed with this text. `tls`: whether we speak
/// it. "" when nothing can be told. Pure.
std::string connection_hint(std::string_view error, bool tls);

/// Routes gRPC's own log lines to ours (debug), and counts the TLS handshakes that failed in this
/// process; gRPC has one log per process. Once, before gRPC is used.
void take_grpc_log();

}  // namespace poseidon
