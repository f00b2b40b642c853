#include "common/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/descriptor.h"

namespace poseidon {
namespace {

constexpr Milliseconds kKnockInterval{20};

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

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Error";
  }
}

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

std::vector<std::string> civetweb_options(const HostPort& listen, const HttpLimits& limits) {
  // No document root: it has no file to give. A browser that keeps its connection would keep one
  // of few threads.
  return {"listening_ports",    to_string(listen),
          "num_threads",        absl::StrCat(limits.threads),
          "connection_queue",   absl::StrCat(limits.max_waiting),
          "max_request_size",   absl::StrCat(limits.max_request_bytes),
          "request_timeout_ms", absl::StrCat(limits.request_timeout_ms),
          "enable_keep_alive",  "no",
          "tcp_nodelay",        "1"};
}

void close_by_knocking(const HostPort& place, const std::function<void()>& close) {
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  std::thread closing([&] {
    close();
    const std::lock_guard lock(mutex);
    closed = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kKnockInterval, [&] { return closed; })) knock(place);
  }
  closing.join();
}

class HttpServer::Impl {
 public:
  explicit Impl(Handler handler) : handler_(std::move(handler)) {}
  ~Impl() {
    if (context_ != nullptr) close_by_knocking(place_, [this] { mg_stop(context_); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool open(const HostPort& listen, const HttpLimits& limits) {
    const std::vector<std::string> options = civetweb_options(listen, limits);
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    pointers.push_back(nullptr);
    mg_callbacks callbacks{};
    callbacks.begin_request = &Impl::on_request;
    callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // not to stderr
    mg_init_library(0);
    context_ = mg_start(&callbacks, this, pointers.data());
    if (context_ == nullptr) return false;
    mg_server_port port{};
    const bool known = mg_get_server_ports(context_, 1, &port) == 1;
    place_ = {listen.host, known ? port.port : listen.port};
    address_ = to_string(place_);
    return true;
  }

  const std::string& address() const { return address_; }

 private:
  static int on_request(mg_connection* connection) {
    const mg_request_info& info = *mg_get_request_info(connection);
    const HttpRequest request{
        .method = text_or_empty(info.request_method),
        .path = text_or_empty(info.local_uri),
        .if_none_match = text_or_empty(mg_get_header(connection, "If-None-Match"))};
    const HttpResponse response = static_cast<Impl*>(info.user_data)->handler_(request);
    const std::string_view body = response.body ? std::string_view(*response.body) : "";
    std::string text = absl::StrCat("HTTP/1.1 ", response.status, " ",
                                    reason_phrase(response.status), "\r\nConnection: close\r\n");
    // A 304 speaks of a body that is elsewhere.
    if (response.status != 304) {
      absl::StrAppend(&text, "Content-Type: ", response.content_type,
                      "\r\nContent-Length: ", body.size(), "\r\n");
    }
    for (const auto& [name, value] : response.headers) {
      absl::StrAppend(&text, name, ": ", value, "\r\n");
    }
    text += "\r\n";
    const auto write = [connection](std::string_view bytes) {
      return bytes.empty() || mg_write(connection, bytes.data(), bytes.size()) > 0;
    };
    if (write(text) && request.method != "HEAD" && response.status != 304) (void)write(body);
    return response.status;
  }

  const Handler handler_;
  mg_context* context_ = nullptr;
  HostPort place_;
  std::string address_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(const HostPort& listen,
                                                              Handler handler,
                                                              const HttpLimits& limits) {
  auto impl = std::make_unique<Impl>(std::move(handler));
  if (!impl->open(listen, limits)) return explain_listen_failure(listen);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address(); }

}  // namespace poseidon
