#include "common/metrics_server.h"

#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/daemon.h"
#include "common/descriptor.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr std::size_t kThreads = 2;  ///< a second scraper need not wait for a slow first
constexpr Milliseconds kKnockInterval{20};

class PageCollectable final : public prometheus::Collectable {
 public:
  explicit PageCollectable(MetricsServer::Page page) : page_(std::move(page)) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return page_(); }

 private:
  const MetricsServer::Page page_;
};

/// ":PORT" is this machine alone: the page asks nobody who he is.
absl::StatusOr<HostPort> parse_page_address(const std::string& listen) {
  POSEIDON_ASSIGN_OR_RETURN(
      const HostPort address,
      parse_host_port(listen.starts_with(':') ? "127.0.0.1" + listen : listen, PortZero::kAllowed));
  if (!is_loopback_host(address.host)) {
    spdlog::warn(
        "whoever reaches {} may read the metrics: they are served without TLS, to everybody",
        listen);
  }
  return address;
}

/// Connects and hangs up.
void knock(const HostPort& address) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* const host = is_wildcard_host(address.host) ? nullptr : address.host.c_str();
  if (getaddrinfo(host, absl::StrCat(address.port).c_str(), &wanted, &found) != 0) return;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Descriptor socket(
        ::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.is_open()) (void)connect(socket.get(), each->ai_addr, each->ai_addrlen);
  }
  freeaddrinfo(found);
}

}  // namespace

class MetricsServer::Impl {
 public:
  explicit Impl(Page page) : page_(std::make_shared<PageCollectable>(std::move(page))) {}
  ~Impl() {
    if (exposer_ != nullptr) close();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Throws what the HTTP server throws.
  void open(const HostPort& listen) {
    exposer_ = std::make_unique<prometheus::Exposer>(to_string(listen), kThreads);
    const std::vector<int> ports = exposer_->GetListeningPorts();
    place_ = {listen.host, ports.empty() ? listen.port : ports.front()};
    address_ = to_string(place_);
    exposer_->RegisterCollectable(page_);
  }

  const std::string& address() const { return address_; }

 private:
  /// The library's thread that accepts looks for its end when somebody comes, else every 2 s.
  void close() {
    std::mutex mutex;
    std::condition_variable changed;
    bool closed = false;
    std::thread closing([&] {
      exposer_.reset();
      const std::lock_guard lock(mutex);
      closed = true;
      changed.notify_all();
    });
    {
      std::unique_lock lock(mutex);
      while (!changed.wait_for(lock, kKnockInterval, [&] { return closed; })) knock(place_);
    }
    closing.join();
  }

  const std::shared_ptr<PageCollectable> page_;  ///< shared: the HTTP server holds it weakly
  HostPort place_;
  std::string address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& listen,
                                                                    Page page) {
  POSEIDON_ASSIGN_OR_RETURN(const HostPort address, parse_page_address(listen));
  auto impl = std::make_unique<Impl>(std::move(page));
  try {  // the library's error channel ends here
    impl->open(address);
  } catch (const std::exception& error) {
    const absl::Status why = explain_listen_failure(address);
    return absl::Status(why.code(),
                        absl::StrCat("--metrics-listen: ", why.message(), " (", error.what(), ")"));
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

const std::string& MetricsServer::address() const { return impl_->address(); }

}  // namespace poseidon
