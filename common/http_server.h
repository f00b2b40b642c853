#pragma once

// A small HTTP server for pages that are only read: a bound address, a few threads, one function
// that answers. Before: browsers and scripts. After: coordinator/status_site.h.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/daemon.h"

namespace poseidon {

struct HttpRequest {
  std::string method;         ///< "GET"
  std::string path;           ///< decoded, without the query
  std::string if_none_match;  ///< the header's value, "" without
};

struct HttpResponse {
  int status = 200;
  std::string content_type;
  std::vector<std::pair<std::string, std::string>> headers;  ///< besides type and length
  std::shared_ptr<const std::string> body;                   ///< null: empty. Left out for HEAD
};

/// What every HTTP server of ours keeps to.
struct HttpLimits {
  int threads = 4;                  ///< requests answered at a time
  int max_waiting = 32;             ///< connections; more are turned away
  int max_request_bytes = 16384;    ///< line and headers
  int request_timeout_ms = 10'000;  ///< a client silent for so long is cut off
};

/// Names and values in turn, for civetweb and for what is made of it.
std::vector<std::string> civetweb_options(const HostPort& listen, const HttpLimits& limits);

class HttpServer {
 public:
  /// Called on the server's threads, up to HttpLimits::threads at a time. Must not throw.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  /// `listen`: port 0 for any. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT for a host
  /// that is not ours. Bodies of requests are never read; every connection carries one request.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(const HostPort& listen, Handler handler,
                                                           const HttpLimits& limits = {});
  /// From its end on, the handler is called no more. Waits for requests under way.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// HOST:PORT really listened on.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Runs `close`, which ends an HTTP server of civetweb's that listens at `place`, without the up to
/// 2 s that it takes by itself: its thread that accepts looks for its end only then, or when
/// somebody comes. So somebody comes, until it is closed.
void close_by_knocking(const HostPort& place, const std::function<void()>& close);

}  // namespace poseidon
