#pragma once

// A small read-only HTTP server: a bound address, a few threads, one function that answers.
//
// Called by: Prometheus, browsers and scripts; common/pages/metrics_server.h and
// coordinator/watch/status_site.h start it. Calls: their handlers.
//
// Where the process has a certificate (common/security/security.h), every address except 127.0.0.1
// and ::1 speaks TLS, and a client must present a certificate with a role that may read
// (kPageReaders in common/security/roles.h). Other clients get a 403 with the reason and are
// counted.

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

/// A plain-text response.
HttpResponse text_response(int status, std::string text);

/// Limits of every HTTP server of ours.
struct HttpLimits {
  unsigned threads = 4;           ///< requests answered at a time
  std::size_t connections = 64;   ///< more are closed
  std::size_t per_address = 32;   ///< of them
  int max_request_bytes = 16384;  ///< line and headers
  /// From connecting, TLS handshake included, to the complete request. A client that is silent for
  /// this long during the answer is cut off, too.
  unsigned request_timeout_s = 10;
  unsigned answer_timeout_s = 30;  ///< for the client to receive the answer
};

class HttpServer {
 public:
  /// Called on the server's threads, up to HttpLimits::threads at a time. Must not throw.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  /// `listen`: port 0 for any. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT for a host
  /// that is not ours. `security` counts refused clients. Bodies of requests are never read; every
  /// connection carries one request.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(const HostPort& listen,
                                                           std::shared_ptr<Security> security,
                                                           Handler handler,
                                                           const HttpLimits& limits = {});
  /// Waits for requests in progress; the handler is not called afterwards.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// HOST:PORT actually in use.
  const std::string& address() const;
  /// "http://HOST:PORT", or https where TLS is required.
  std::string url() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace poseidon
