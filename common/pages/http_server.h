#pragma once

// A small HTTP server for pages that are only read: a bound address, a few threads, one function
// that answers. Before: Prometheus, browsers and scripts. After: common/pages/metrics_server.h,
// coordinator/watch/status_site.h.
//
// Where the process has a certificate (common/security/security.h), every address speaks TLS but
// 127.0.0.1 and ::1, which only this machine reaches, and whoever asks must show the certificate of
// one who may read (kPageReaders in common/security/roles.h); others get a 403 that says why, and
// are counted.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/daemon/daemon.h"
#include "common/security/security.h"

namespace poseidon {

struct HttpRequest {
  std::string method;           ///< "GET"
  std::string path;             ///< decoded, without the query
  std::string if_none_match;    ///< the header's value, "" without
  std::string accept_encoding;  ///< likewise
};

struct HttpResponse {
  int status = 200;
  std::string content_type;
  std::vector<std::pair<std::string, std::string>> headers;  ///< besides type and length
  std::shared_ptr<const std::string> body;                   ///< null: empty. Left out for HEAD
};

/// Words for people.
HttpResponse text_response(int status, std::string text);

/// What every HTTP server of ours keeps to.
struct HttpLimits {
  unsigned threads = 4;           ///< requests answered at a time
  std::size_t connections = 64;   ///< more are closed
  std::size_t per_address = 32;   ///< of them
  int max_request_bytes = 16384;  ///< line and headers
  /// From connecting, the TLS handshake included, until the whole request is here. Who is silent
  /// for so long while it is answered is cut off, too.
  unsigned request_timeout_s = 10;
  unsigned answer_timeout_s = 30;  ///< for the client to take the answer, once it is made
};

class HttpServer {
 public:
  /// Called on the server's threads, up to HttpLimits::threads at a time. Must not throw.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  /// `listen`: port 0 for any. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT for a host
  /// that is not ours. `security` hears of who is refused. Bodies of requests are never read; every
  /// connection carries one request.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(const HostPort& listen,
                                                           std::shared_ptr<Security> security,
                                                           Handler handler,
                                                           const HttpLimits& limits = {});
  /// From its end on, the handler is called no more. Waits for requests under way.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// HOST:PORT really listened on.
  const std::string& address() const;
  /// "http://HOST:PORT", or https where others than this machine must speak it.
  std::string url() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
