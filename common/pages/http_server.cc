#include "common/pages/http_server.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/security/connection_door.h"
#include "common/threads/mutex.h"

namespace poseidon {
namespace {

constexpr unsigned kMaxPeerCertificates = 8;
/// What both Go's and OpenSSL's newest releases speak by themselves.
constexpr const char* kTlsVersions = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

/// 127.0.0.1 or ::1. No other address of 127.x.x.x: Debian's host name may resolve to 127.0.1.1,
/// and a client that uses the name does not see that (page_scheme).
bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return four.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
  }
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) ||
         (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr32[3] == htonl(INADDR_LOOPBACK));
}

/// Whether a connection is one of this machine with itself. Its own address alone does not say so:
/// with route_localnet others may be led to it.
bool is_local(int socket, const sockaddr_storage& peer) {
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  return is_loopback(peer) &&
         ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) == 0 && is_loopback(own);
}

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

std::string header_of(MHD_Connection* connection, const char* name) {
  return text_or_empty(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name));
}

/// "10.0.0.3"
std::string peer_of(MHD_Connection* connection) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  std::array<char, NI_MAXHOST> host{};
  if (info == nullptr || info->client_addr == nullptr) return "unknown";
  const socklen_t size =
      info->client_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const int failed =
      ::getnameinfo(info->client_addr, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? host.data() : "unknown";
}

int socket_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/// Shuts down the connections whose time is over. The library limits silence only: a client that
/// sends or reads a byte now and then would keep its connection without limit. Any thread.
class Deadlines {
 public:
  Deadlines() : thread_([this] { run(); }) {}
  ~Deadlines() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  /// In place of the one that it has.
  void set(int socket, unsigned patience_s) {
    {
      const MutexLock lock(mutex_);
      deadline_of_[socket] = clock_.now() + std::chrono::seconds(patience_s);
    }
    changed_.notify_one();
  }
  /// At the latest before the socket is closed: its number may be another's then.
  void clear(int socket) {
    const MutexLock lock(mutex_);
    deadline_of_.erase(socket);
  }

 private:
  void run() {
    MutexLock lock(mutex_);
    while (!stopping_) {
      const Nanoseconds now = clock_.now();
      std::optional<Nanoseconds> next;
      std::erase_if(deadline_of_, [&](const auto& entry) {
        const auto& [socket, deadline] = entry;
        const bool is_over = deadline <= now;
        if (is_over) {
          ::shutdown(socket, SHUT_RDWR);  // the library sees it, and closes
        } else {
          next = std::min(next.value_or(deadline), deadline);
        }
        return is_over;
      });
      if (next) {
        changed_.wait_for(mutex_, *next - now);
      } else {
        changed_.wait(mutex_);  // for set() or the destructor, one of which comes
      }
    }
  }

  const SystemClock clock_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<int, Nanoseconds> deadline_of_ ABSL_GUARDED_BY(mutex_);  ///< by socket
  std::thread thread_;
};

/// What the peer has shown in the handshake, its own certificate first; PEM.
std::vector<std::string> certificates_of(MHD_Connection* connection) {
  std::vector<std::string> shown;
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr) return shown;
  unsigned count = 0;
  const gnutls_datum_t* const certificates =
      gnutls_certificate_get_peers(static_cast<gnutls_session_t>(info->tls_session), &count);
  for (unsigned i = 0; i < std::min(count, kMaxPeerCertificates); ++i) {
    gnutls_datum_t pem{};
    if (gnutls_pem_base64_encode2("CERTIFICATE", &certificates[i], &pem) != 0) break;
    shown.emplace_back(reinterpret_cast<const char*>(pem.data), pem.size);
    gnutls_free(pem.data);
  }
  return shown;
}

MHD_Result answer(MHD_Connection* connection, const HttpResponse& answer) {
  using Body = std::shared_ptr<const std::string>;
  auto body = std::make_unique<Body>(answer.body ? answer.body : std::make_shared<std::string>());
  const std::string& bytes = **body;
  MHD_Response* const response = MHD_create_response_from_buffer_with_free_callback_cls(
      bytes.size(), const_cast<char*>(bytes.data()),
      [](void* kept) { delete static_cast<Body*>(kept); }, body.get());
  if (response == nullptr) return MHD_NO;
  (void)body.release();  // the response's
  MHD_add_response_header(response, "Connection", "close");
  if (answer.status != 304) {  // it speaks of a body that is elsewhere
    MHD_add_response_header(response, "Content-Type", answer.content_type.c_str());
  }
  for (const auto& [name, value] : answer.headers) {
    MHD_add_response_header(response, name.c_str(), value.c_str());
  }
  const MHD_Result queued =
      MHD_queue_response(connection, static_cast<unsigned>(answer.status), response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace

HttpResponse text_response(int status, std::string text) {
  return {.status = status,
          .content_type = "text/plain; charset=utf-8",
          .headers = {},
          .body = std::make_shared<const std::string>(std::move(text))};
}

class HttpServer::Impl {
 public:
  Impl(std::shared_ptr<Security> security, Handler handler, const HttpLimits& limits)
      : security_(std::move(security)), handler_(std::move(handler)), limits_(limits) {}
  ~Impl() {
    door_.reset();
    for (MHD_Daemon* const daemon : {plain_, tls_}) {
      if (daemon != nullptr) MHD_stop_daemon(daemon);
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status open(const HostPort& listen) {
    POSEIDON_ASSIGN_OR_RETURN(
        door_, ConnectionDoor::open(to_string(listen), {.connections = limits_.connections,
                                                        .per_address = limits_.per_address}));
    address_ = to_string({listen.host, door_->port()});
    plain_ = start_daemon(nullptr);
    const TlsIdentity* const identity = security_->identity();
    if (identity != nullptr) tls_ = start_daemon(identity);
    if (plain_ == nullptr || (identity != nullptr && tls_ == nullptr)) {
      return absl::InternalError(
          absl::StrCat("cannot serve HTTP at ", address_, ": ",
                       last_words_.empty() ? "no threads, memory or files left?" : last_words_));
    }
    has_started_ = true;
    door_->start([this](int socket) { take(socket); },
                 [this](const std::string& peer, ConnectionDoor::Refusal /*too many*/) {
                   security_->refuse(PeerRefusal::kTooMany, peer,
                                     "this port has its maximum number of connections");
                 });
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }
  std::string url() const {
    return absl::StrCat(page_scheme(address_, tls_ != nullptr), "://", address_);
  }

 private:
  MHD_Daemon* start_daemon(const TlsIdentity* identity) {
    const auto option = [](MHD_OPTION name, std::intptr_t value, void* pointer = nullptr) {
      return MHD_OptionItem{name, value, pointer};
    };
    const auto text = [](const std::string& pem) { return const_cast<char*>(pem.c_str()); };
    std::vector<MHD_OptionItem> options = {
        option(MHD_OPTION_THREAD_POOL_SIZE, limits_.threads),
        // The library gives each thread a share of the connections; the door alone must enforce the
        // limit.
        option(MHD_OPTION_CONNECTION_LIMIT,
               static_cast<std::intptr_t>(limits_.connections * limits_.threads)),
        option(MHD_OPTION_CONNECTION_TIMEOUT, limits_.request_timeout_s),
        option(MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<std::intptr_t>(&Impl::on_connection),
               this),
        option(MHD_OPTION_CONNECTION_MEMORY_LIMIT, limits_.max_request_bytes)};
    // Not epoll: with it 0.9.75 turns in circles while a TLS handshake waits for its other half.
    unsigned flags = MHD_USE_NO_LISTEN_SOCKET | MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ITC;
    if (identity != nullptr) {
      flags |= MHD_USE_TLS | MHD_USE_ERROR_LOG;
      // The logger first, as the library wants it.
      options.insert(options.begin(), option(MHD_OPTION_EXTERNAL_LOGGER,
                                             reinterpret_cast<std::intptr_t>(&Impl::on_log), this));
      options.push_back(option(MHD_OPTION_HTTPS_MEM_KEY, 0, text(identity->key_pem)));
      options.push_back(option(MHD_OPTION_HTTPS_MEM_CERT, 0, text(identity->certificate_pem)));
      // With it, the peer is asked for a certificate.
      options.push_back(option(MHD_OPTION_HTTPS_MEM_TRUST, 0, text(identity->authority_pem)));
      options.push_back(option(MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(kTlsVersions)));
    }
    options.push_back(option(MHD_OPTION_END, 0));
    return MHD_start_daemon(
        flags, 0, nullptr, nullptr,
        identity == nullptr ? &Impl::on_request<false> : &Impl::on_request<true>, this,
        MHD_OPTION_ARRAY, options.data(), MHD_OPTION_END);
  }

  /// On the door's thread.
  void take(int socket) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      ::close(socket);  // gone again
      return;
    }
    hand_over(tls_ == nullptr || is_local(socket, peer) ? plain_ : tls_, socket, peer, size);
  }

  /// In a function of its own because of ThreadSanitizer (cmake/sanitizers/tsan.supp): it sees who
  /// called the one that calls a library.
  [[gnu::noinline]] static void hand_over(MHD_Daemon* daemon, int socket,
                                          const sockaddr_storage& peer, socklen_t size) {
    MHD_add_connection(daemon, socket, reinterpret_cast<const sockaddr*>(&peer), size);
  }

  /// The library reports a failed handshake in its log only, without the peer, as it does the
  /// reason why it cannot start.
  static void on_log(void* self, const char* format, va_list values) {
    auto& impl = *static_cast<Impl*>(self);
    if (!impl.has_started_) {
      std::array<char, 512> text{};
      std::vsnprintf(text.data(), text.size(), format, values);
      impl.last_words_ = std::string(absl::StripAsciiWhitespace(text.data()));
    } else if (std::string_view(format).find("handshake") != std::string_view::npos) {
      impl.security_->refuse(
          PeerRefusal::kHandshake, "a request for a page",
          "a TLS handshake failed: does the other side speak plain text (http:// for https://), "
          "did it reject our certificate, or did it take too long?");
    }
  }

  /// On the library's thread that has the connection. Told of the end before the socket is closed.
  static void on_connection(void* self, MHD_Connection* connection, void** /*state*/,
                            MHD_ConnectionNotificationCode what) {
    auto& impl = *static_cast<Impl*>(self);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
      impl.deadlines_.set(socket_of(connection), impl.limits_.request_timeout_s);
    } else {
      impl.deadlines_.clear(socket_of(connection));
    }
  }

  template <bool kIsTls>
  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* url,
                               const char* method, const char* version, const char* /*upload*/,
                               std::size_t* /*upload_bytes*/, void** /*state*/) {
    auto& impl = *static_cast<Impl*>(self);
    impl.deadlines_.clear(socket_of(connection));  // how long we take is not the client's affair
    const MHD_Result queued = impl.respond(connection, url, method, version, kIsTls);
    impl.deadlines_.set(socket_of(connection), impl.limits_.answer_timeout_s);
    return queued;
  }

  MHD_Result respond(MHD_Connection* connection, const char* url, const char* method,
                     const char* version, bool is_tls) const {
    const std::string path = text_or_empty(url);
    if (!path.starts_with('/') || !text_or_empty(version).starts_with("HTTP/1.")) {
      return answer(connection, text_response(400, "this is not an HTTP/1.1 request\n"));
    }
    if (is_tls) {
      const std::vector<std::string> shown = certificates_of(connection);
      std::string chain;
      for (const std::string& certificate : shown) chain += certificate;
      const absl::Status may =
          security_->admit_reader(shown.empty() ? "" : shown.front(), chain, peer_of(connection));
      if (!may.ok())
        return answer(connection, text_response(403, absl::StrCat(may.message(), "\n")));
    }
    return answer(connection,
                  handler_({.method = text_or_empty(method),
                            .path = path,
                            .if_none_match = header_of(connection, "If-None-Match"),
                            .accept_encoding = header_of(connection, "Accept-Encoding")}));
  }

  const std::shared_ptr<Security> security_;
  const Handler handler_;
  const HttpLimits limits_;
  Deadlines deadlines_;
  std::string address_;
  std::string last_words_;                ///< of the library, until has_started_
  std::atomic<bool> has_started_{false};  ///< from then on connections come
  MHD_Daemon* plain_ = nullptr;
  MHD_Daemon* tls_ = nullptr;  ///< null without TLS
  std::unique_ptr<ConnectionDoor> door_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(const HostPort& listen,
                                                              std::shared_ptr<Security> security,
                                                              Handler handler,
                                                              const HttpLimits& limits) {
  auto impl = std::make_unique<Impl>(std::move(security), std::move(handler), limits);
  POSEIDON_RETURN_IF_ERROR(impl->open(listen));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address(); }
std::string HttpServer::url() const { return impl_->url(); }

}  // namespace poseidon
