#include "common/security/security.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/security/connection_door.h"
#include "common/threads/mutex.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr const char* kTokenKey = "poseidon-join-token";
constexpr std::uint64_t kMaxFileBytes = 65536;
constexpr std::size_t kMinTokenBytes = 16;
constexpr std::size_t kMaxTokenBytes = 1024;
constexpr std::chrono::hours kExpiryWarning{30 * 24};
/// The roles that may connect at all; every call checks its caller's role again.
constexpr RoleSet kHandshakeCallers{PeerRole::kCoordinator, PeerRole::kServer, PeerRole::kWorker,
                                    PeerRole::kOperator};

std::int64_t now_unix_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Failed TLS handshakes of this process, as client or server: gRPC reports them only in its log,
/// which is one per process.
std::atomic<std::uint64_t>& failed_handshakes() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

/// The addresses that connected to a port of this process lately. Neither gRPC's log nor a verifier
/// names the peer of a failed handshake. It is one of these addresses, and mostly the only one,
/// because nodes of the cluster keep their connections. Any thread.
class RecentPeers {
 public:
  void add(int socket) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    auto* const peer = reinterpret_cast<sockaddr*>(&address);
    std::array<char, NI_MAXHOST> host{};
    if (::getpeername(socket, peer, &size) != 0 ||
        ::getnameinfo(peer, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
      return;  // gone again
    }
    const MutexLock lock(mutex_);
    std::erase_if(peers_, [&](const Peer& known) { return known.host == host.data(); });
    if (peers_.size() == kMostPeers) peers_.pop_front();
    peers_.push_back({.host = host.data(), .came = clock_.now()});
  }

  /// "; connected to us in the last 10 s: 10.0.0.3, 10.0.0.4", "" for nobody.
  std::string text() {
    const MutexLock lock(mutex_);
    std::string text;
    for (const auto& [host, came] : peers_) {
      if (clock_.now() - came > kRecent) continue;
      if (text.empty()) {
        absl::StrAppend(&text, "; connected to us in the last ", kRecent.count(), " s: ", host);
      } else {
        absl::StrAppend(&text, ", ", host);
      }
    }
    return text;
  }

 private:
  struct Peer {
    std::string host;
    Nanoseconds came{0};
  };
  static constexpr std::size_t kMostPeers = 8;
  /// As long as a handshake may take (PortLimits::handshake).
  static constexpr std::chrono::seconds kRecent{10};

  const SystemClock clock_{};
  Mutex mutex_;
  std::deque<Peer> peers_ ABSL_GUARDED_BY(mutex_);  ///< the newest is last
};

/// One, as gRPC's log is.
RecentPeers& recent_peers() {
  static RecentPeers peers;
  return peers;
}

void take_log_line(gpr_log_func_args* line) {
  const std::string_view message = line->message;
  if (message.starts_with("Handshake failed with fatal error")) {
    ++failed_handshakes();
    const bool plain = message.find("wrong version number") != std::string_view::npos ||
                       message.find("http request") != std::string_view::npos;
    spdlog::warn("a TLS handshake failed: {}{}{}", message,
                 plain ? " (the other side speaks plain text: it needs --tls-dir too)" : "",
                 recent_peers().text());
    return;
  }
  // With GRPC_TRACE=http it writes the headers of calls, the token among them.
  if (message.find(kTokenKey) != std::string_view::npos) return;
  spdlog::debug("gRPC: {}", line->message);
}

std::string text_of(const grpc::string_ref& text) { return {text.data(), text.size()}; }

/// What the caller has shown in the handshake, read as it was judged there; without names where it
/// has shown none.
CertificateFacts shown_certificate(const grpc::ServerContextBase& context) {
  const auto peer = context.auth_context();
  if (peer == nullptr) return {};
  const auto pems = peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (pems.size() != 1) return {};
  return read_certificate(text_of(pems.front())).value_or(CertificateFacts());
}

/// A secret is its owner's, or root's and one group's: as PostgreSQL has it.
absl::Status check_private(const std::filesystem::path& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path.string(), ": ", std::error_code(errno, std::generic_category()).message()));
  }
  const bool owned_by_root = file.st_uid == 0;
  const mode_t forbidden = owned_by_root ? S_IRWXO | S_IWGRP | S_IXGRP : S_IRWXO | S_IRWXG;
  if ((file.st_mode & forbidden) == 0) return absl::OkStatus();
  const bool is_anothers = owned_by_root && ::geteuid() != 0;  // 600 would lock us out
  return absl::InvalidArgumentError(absl::StrCat(path.string(),
                                                 " is a secret that others can read: chmod ",
                                                 is_anothers ? "640 " : "600 ", path.string()));
}

absl::StatusOr<std::string> read_named(const char* option, const std::filesystem::path& path,
                                       const char* remedy) {
  absl::StatusOr<std::string> text = read_file(path, kMaxFileBytes);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", text.status().message(), "; ", remedy));
}

absl::StatusOr<std::string> read_token(const std::string& path) {
  constexpr const char* kOption = "--join-token-file";
  POSEIDON_ASSIGN_OR_RETURN(
      std::string token,
      read_named(kOption, path, "make one with `head -c 32 /dev/urandom | base64 > FILE`"));
  POSEIDON_RETURN_IF_ERROR(check_private(path));
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back())) != 0) {
    token.pop_back();
  }
  const bool printable = std::ranges::all_of(token, [](char c) { return c > ' ' && c <= '~'; });
  if (!printable || token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOption, " ", path, ": one line of ", kMinTokenBytes, " to ", kMaxTokenBytes,
        " printable characters expected; make one with `head -c 32 /dev/urandom | base64`"));
  }
  return token;
}

}  // namespace

struct Security::Tls : TlsIdentity {
  CertificateFacts own;
  std::int64_t until_unix_s = 0;  ///< our certificate and its authority are good
  bool ends_with_authority = false;

  /// Which of the two expires then, and the remedy, for people.
  const char* what_ends() const {
    return ends_with_authority ? "the authority of the certificate" : "the certificate";
  }
  const char* remedy() const {
    return ends_with_authority ? "make a new one with `poseidon tls init`, for all of the cluster,"
                               : "make a new one with `poseidon tls issue`";
  }

  /// Judges the other side, once we are sure of ourselves.
  std::optional<PeerObjection> judge(const std::string& certificate_pem_of_peer,
                                     const std::string& chain_pem, CertificateUse use,
                                     RoleSet wanted) const {
    const std::int64_t now = now_unix_s();
    if (now < until_unix_s) {
      return judge_certificate(authority_pem, certificate_pem_of_peer, chain_pem, use, wanted, now);
    }
    return PeerObjection{PeerRefusal::kExpired,
                         absl::StrCat(what_ends(), " that is our own (--tls-dir) has expired at ",
                                      utc_text(until_unix_s), ": ", remedy(), " and start again")};
  }

  std::shared_ptr<grpc::experimental::StaticDataCertificateProvider> provider() const {
    return std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
        authority_pem, std::vector<grpc::experimental::IdentityKeyCertPair>{
                           {.private_key = key_pem, .certificate_chain = certificate_pem}});
  }
};

/// Judges the other side of one kind of connection, in its handshake. gRPC leaves the whole
/// judgement to it, so our messages can name the fault; TLS itself proves that the peer has the
/// key.
class Security::Verifier final : public ExternalCertificateVerifier {
 public:
  Verifier(std::shared_ptr<const Tls> tls, std::shared_ptr<Counts> counts, CertificateUse use,
           RoleSet wanted)
      : tls_(std::move(tls)), counts_(std::move(counts)), use_(use), wanted_(wanted) {}

  bool Verify(TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    const auto objection = tls_->judge(text_of(request->peer_cert()),
                                       text_of(request->peer_cert_full_chain()), use_, wanted_);
    if (!objection) {
      *status = grpc::Status::OK;
      return true;
    }
    ++counts_->refused[static_cast<std::size_t>(objection->refusal)];
    const bool is_caller = use_ == CertificateUse::kCalls;
    spdlog::warn("refused a connection {} ({}): {}{}",
                 is_caller ? "from a peer" : absl::StrCat("to ", text_of(request->target_name())),
                 peer_refusal_name(objection->refusal), objection->message,
                 is_caller ? recent_peers().text() : "");
    *status = {grpc::StatusCode::UNAUTHENTICATED, objection->message};
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::shared_ptr<const Tls> tls_;
  const std::shared_ptr<Counts> counts_;
  const CertificateUse use_;
  const RoleSet wanted_;
};

Security::Security() = default;

std::shared_ptr<Security> Security::none() { return std::shared_ptr<Security>(new Security()); }

absl::StatusOr<std::shared_ptr<Security>> Security::load(const SecurityOptions& options,
                                                         PeerRole self) {
  std::shared_ptr<Security> security = none();
  if (!options.join_token_file.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(security->token_, read_token(options.join_token_file));
  }
  if (options.tls_dir.empty()) return security;

  constexpr const char* kOption = "--tls-dir";
  constexpr const char* kRemedy =
      "it needs ca.crt, tls.crt and tls.key, which `poseidon tls init` makes";
  const std::filesystem::path folder = options.tls_dir;
  auto tls = std::make_shared<Tls>();

  POSEIDON_ASSIGN_OR_RETURN(tls->authority_pem, read_named(kOption, folder / "ca.crt", kRemedy));
  POSEIDON_ASSIGN_OR_RETURN(tls->certificate_pem, read_named(kOption, folder / "tls.crt", kRemedy));
  POSEIDON_ASSIGN_OR_RETURN(tls->key_pem, read_named(kOption, folder / "tls.key", kRemedy));
  POSEIDON_RETURN_IF_ERROR(check_private(folder / "tls.key"));
  const auto broken = [&](const char* file, const absl::Status& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOption, ": ", (folder / file).string(), ": ", why.message(), "; ", kRemedy));
  };
  if (const auto authority = read_certificate(tls->authority_pem); !authority.ok()) {
    return broken("ca.crt", authority.status());
  }
  auto own = read_certificate(tls->certificate_pem);
  if (!own.ok()) return broken("tls.crt", own.status());
  tls->own = *std::move(own);
  if (const absl::Status fits = check_key(tls->certificate_pem, tls->key_pem); !fits.ok()) {
    return broken("tls.key", fits);
  }
  const std::optional<std::int64_t> authority =
      authority_until(tls->authority_pem, tls->certificate_pem);
  // Certificates are not issued for longer than their authority.
  tls->ends_with_authority = authority && *authority <= tls->own.validity.until_unix_s;
  tls->until_unix_s = tls->ends_with_authority ? *authority : tls->own.validity.until_unix_s;
  const std::int64_t now = now_unix_s();
  const bool answers = self != PeerRole::kOperator && self != PeerRole::kMonitor;
  for (const CertificateUse use : {CertificateUse::kAnswers, CertificateUse::kCalls}) {
    if (use == CertificateUse::kAnswers ? !answers : self == PeerRole::kCoordinator) continue;
    if (const auto objection = judge_certificate(tls->authority_pem, tls->certificate_pem,
                                                 tls->certificate_pem, use, {self}, now)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kOption, ": ", (folder / "tls.crt").string(), ": ", objection->message));
    }
  }
  const auto left = std::chrono::seconds(tls->until_unix_s - now);
  if (left < kExpiryWarning) {
    spdlog::warn("{} {} expires in {} days, at {}: {} and start again", tls->what_ends(),
                 (folder / "tls.crt").string(), left / std::chrono::hours(24),
                 utc_text(tls->until_unix_s), tls->remedy());
  }
  security->tls_ = std::move(tls);
  return security;
}

// ---- clients ----

std::shared_ptr<grpc::ChannelCredentials> Security::channel_credentials(
    std::string_view method) const {
  if (tls_ == nullptr) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(tls_->provider());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);  // the verifier does, and names its objection
  options.set_check_call_host(false);      // the name that counts is the role's
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<Verifier>(
      tls_, counts_, CertificateUse::kAnswers, rule_of(method).servers));
  return grpc::experimental::TlsCredentials(options);
}

void Security::sign(grpc::ClientContext& context) const {
  if (has_token()) context.AddMetadata(kTokenKey, token_);
}

absl::Status Security::explain(const absl::Status& error) const {
  if (!absl::IsUnavailable(error)) return error;
  const std::string hint = connection_hint(from_absl(error.message()), has_tls());
  return hint.empty() ? error
                      : absl::UnavailableError(absl::StrCat(error.message(), " (", hint, ")"));
}

// ---- servers ----

absl::StatusOr<std::unique_ptr<ServerPort>> Security::open_port(grpc::ServerBuilder& builder,
                                                                const std::string& address,
                                                                const PortLimits& limits) {
  POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<ConnectionDoor> door, ConnectionDoor::open(address));
  const auto milliseconds = [](Milliseconds time) { return static_cast<int>(time.count()); };
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, milliseconds(limits.handshake));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, milliseconds(limits.idle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.calls_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, limits.metadata_bytes);
  // Our processes do not compress, and a message that is decompressed before it is checked has no
  // size limit.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  return std::make_unique<ServerPort>(
      std::move(door),
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          server_credentials()),
      shared_from_this());
}

std::shared_ptr<grpc::ServerCredentials> Security::server_credentials() const {
  if (tls_ == nullptr) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(tls_->provider());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // The verifier refuses a missing or invalid certificate, with a message.
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<Verifier>(
      tls_, counts_, CertificateUse::kCalls, kHandshakeCallers));
  return grpc::experimental::TlsServerCredentials(options);
}

ServerPort::ServerPort(std::unique_ptr<ConnectionDoor> door, std::unique_ptr<Connections> acceptor,
                       std::shared_ptr<Security> security)
    : security_(std::move(security)), acceptor_(std::move(acceptor)), door_(std::move(door)) {}
ServerPort::~ServerPort() = default;

int ServerPort::port() const { return door_->port(); }

void ServerPort::start(std::function<void(int socket)> take_stream) {
  door_->start(
      [this](int socket) {
        recent_peers().add(socket);
        Connections::NewConnectionParameters connection;
        connection.fd = socket;
        acceptor_->HandleNewConnection(&connection);
      },
      [this](const std::string& peer, ConnectionDoor::Refusal refusal) {
        if (refusal == ConnectionDoor::Refusal::kTooMany) {
          security_->refuse(PeerRefusal::kTooMany, peer,
                            "this port has its maximum number of connections");
        } else {
          security_->refuse(PeerRefusal::kHandshake, peer,
                            "it began neither a TLS handshake nor a stream");
        }
      },
      std::move(take_stream));
}

std::optional<RoleSet> Security::roles_of(const grpc::ServerContextBase& context) const {
  if (tls_ == nullptr) return std::nullopt;
  return roles_of_names(shown_certificate(context).dns_names);
}

absl::Status Security::admit(const grpc::ServerContextBase& context, std::string_view method) {
  MethodCaller caller{
      .peer = context.peer(),
      .method = std::string(method),
      .certificate = tls_ == nullptr ? CertificateFacts() : shown_certificate(context),
      .join_token = std::nullopt};
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find(kTokenKey); found != metadata.end()) {
    caller.join_token = text_of(found->second);
  }
  return admit(caller);
}

absl::Status Security::admit(const MethodCaller& caller) {
  if (tls_ != nullptr) {
    const CertificateFacts& shown = caller.certificate;
    const RoleSet roles = roles_of_names(shown.dns_names);
    const RoleSet callers = rule_of(caller.method).callers;
    if (!roles.meets(callers)) {
      std::string message =
          str_cat(caller.method, " is for the certificate of ", to_string(callers),
                  "; the caller's is that of ", to_string(roles));
      refuse(PeerRefusal::kWrongRole, caller.peer, message);
      return absl::PermissionDeniedError(message);
    }
    // It was good in the handshake, which may be long ago.
    if (now_unix_s() > shown.validity.until_unix_s) {
      std::string message = absl::StrCat("the caller's certificate (", shown.subject,
                                         ") has expired at ", utc_text(shown.validity.until_unix_s),
                                         ": make a new one with `poseidon tls issue`");
      refuse(PeerRefusal::kExpired, caller.peer, message);
      return absl::UnauthenticatedError(message);
    }
  }
  if (!has_token()) return absl::OkStatus();
  if (!caller.join_token) {
    refuse(PeerRefusal::kNoToken, caller.peer, "the call carries no join token");
    return absl::UnauthenticatedError(
        "this cluster asks for a join token: give --join-token-file with the file that its "
        "coordinator has");
  }
  if (!same_secret(*caller.join_token, token_)) {
    refuse(PeerRefusal::kWrongToken, caller.peer, "the call carries a wrong join token");
    return absl::UnauthenticatedError(
        "the join token is not this cluster's: give --join-token-file with the file that its "
        "coordinator has");
  }
  return absl::OkStatus();
}

std::optional<PeerObjection> Security::judge_caller(const std::string& certificate_pem,
                                                    const std::string& chain_pem,
                                                    std::string_view peer) {
  auto objection =
      tls_->judge(certificate_pem, chain_pem, CertificateUse::kCalls, kHandshakeCallers);
  if (objection) refuse(objection->refusal, peer, objection->message);
  return objection;
}

std::optional<PeerObjection> Security::judge_answerer(const std::string& certificate_pem,
                                                      const std::string& chain_pem,
                                                      std::string_view method,
                                                      std::string_view address) {
  auto objection =
      tls_->judge(certificate_pem, chain_pem, CertificateUse::kAnswers, rule_of(method).servers);
  if (objection) {
    ++counts_->refused[static_cast<std::size_t>(objection->refusal)];
    spdlog::warn("refused a connection to {} ({}): {}", address,
                 peer_refusal_name(objection->refusal), objection->message);
  }
  return objection;
}

const TlsIdentity* Security::identity() const { return tls_.get(); }

absl::Status Security::admit_reader(const std::string& certificate_pem,
                                    const std::string& chain_pem, std::string_view peer) {
  POSEIDON_CHECK(tls_ != nullptr, "readers show certificates where there is TLS");
  const auto objection =
      tls_->judge(certificate_pem, chain_pem, CertificateUse::kCalls, kPageReaders);
  if (!objection) return absl::OkStatus();
  refuse(objection->refusal, peer, objection->message);
  return absl::PermissionDeniedError(objection->message);
}

void Security::refuse(PeerRefusal refusal, std::string_view peer, const std::string& message) {
  ++counts_->refused[static_cast<std::size_t>(refusal)];
  spdlog::warn("refused {} ({}): {}", peer, peer_refusal_name(refusal), message);
}

// ---- for metrics ----

std::uint64_t Security::refused(PeerRefusal refusal) const {
  const std::uint64_t ours = counts_->refused[static_cast<std::size_t>(refusal)];
  return refusal == PeerRefusal::kHandshake ? ours + failed_handshakes() : ours;
}

std::optional<std::int64_t> Security::expires_unix_s() const {
  if (tls_ == nullptr) return std::nullopt;
  return tls_->until_unix_s;
}

// ---- the rest ----

bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

std::string connection_hint(std::string_view error, bool tls) {
  const auto says = [error](std::string_view words) {
    return error.find(words) != std::string_view::npos;
  };
  if (says("Custom verification check failed") || says("its certificate is refused")) {
    return "";  // says it all
  }
  if (tls && says("alert")) {
    return "the other side may not accept our certificate; its log says why";
  }
  const bool closed = says("Socket closed") || says("Connection reset") || says("GOAWAY");
  if (tls && says("andshake")) {
    return "the TLS handshake failed: does the other side speak plain text? It needs --tls-dir too";
  }
  if (tls && closed) {
    return "closed right after the TLS handshake: the other side may not accept our certificate; "
           "its log says why";
  }
  if (!tls && closed) return "does the other side speak TLS? Then --tls-dir is needed here too";
  return "";
}

void take_grpc_log() { ::gpr_set_log_function(take_log_line); }

void add_security_options(CLI::App& app, SecurityOptions& options) {
  app.add_option("--tls-dir", options.tls_dir,
                 "folder with ca.crt, tls.crt and tls.key (poseidon tls init): TLS on every "
                 "connection, both sides show certificates");
  app.add_option("--join-token-file", options.join_token_file,
                 "file with the cluster's shared secret; without TLS it travels in plain text");
}

}  // namespace poseidon
