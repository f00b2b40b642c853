#include "common/pages/metrics_server.h"

#include <prometheus/text_serializer.h>
#include <zlib.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/daemon/daemon.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr int kGzipWindow = 15 + 16;  // the largest window; a gzip header, not a zlib one
constexpr int kMemoryLevel = 8;       // zlib's own choice

/// "gzip" or "gzip;q=0.5", but not "gzip;q=0", as in Accept-Encoding.
bool takes_gzip(const std::string& accepted) {
  for (const absl::string_view each : absl::StrSplit(accepted, ',')) {
    const std::pair<absl::string_view, absl::string_view> name_and_quality =
        absl::StrSplit(each, absl::MaxSplits(';', 1));
    if (absl::StripAsciiWhitespace(name_and_quality.first) != "gzip") continue;
    const absl::string_view quality = absl::StripAsciiWhitespace(name_and_quality.second);
    return quality != "q=0" && quality != "q=0.0" && quality != "q=0.00" && quality != "q=0.000";
  }
  return false;
}

HttpResponse health(const LoopPulse& pulse) {
  const absl::Status alive = pulse.alive(SystemClock().now(), kLoopPatience);
  if (alive.ok()) return text_response(200, "ok\n");
  return text_response(503, absl::StrCat(alive.message(), "\n"));
}

HttpResponse answer(const HttpRequest& request, const MetricsServer::Page& page,
                    const LoopPulse& pulse) {
  if (request.method != "GET" && request.method != "HEAD") {
    HttpResponse refused = text_response(405, "read only: GET /metrics, GET /healthz\n");
    refused.headers = {{"Allow", "GET, HEAD"}};
    return refused;
  }
  if (request.path == "/healthz") return health(pulse);
  if (request.path != "/metrics") {
    return text_response(404, "nothing here; metrics are at /metrics, health at /healthz\n");
  }
  HttpResponse response{.status = 200,
                        .content_type = "text/plain; version=0.0.4; charset=utf-8",
                        .headers = {},
                        .body = nullptr};
  std::string text = prometheus::TextSerializer().Serialize(page());
  if (takes_gzip(request.accept_encoding)) {
    text = gzipped(text);
    response.headers = {{"Content-Encoding", "gzip"}};
  }
  response.body = std::make_shared<const std::string>(std::move(text));
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(
    const std::string& listen, std::shared_ptr<Security> security, Page page,
    const LoopPulse* pulse, const HttpLimits& limits) {
  POSEIDON_CHECK(pulse != nullptr, "the daemon's loop is known");
  const absl::StatusOr<HostPort> address = parse_page_address(listen);
  if (!address.ok()) return of_option("--metrics-listen", address.status());
  if (!is_loopback_host(address->host) && !security->has_tls()) {
    spdlog::warn(
        "the metrics at {} are open to everybody who reaches that address: give --tls-dir, or "
        "listen on 127.0.0.1",
        listen);
  }
  auto server = HttpServer::start(
      *address, std::move(security),
      [page = std::move(page), pulse](const HttpRequest& request) {
        return answer(request, page, *pulse);
      },
      limits);
  if (!server.ok()) return of_option("--metrics-listen", server.status());
  return std::unique_ptr<MetricsServer>(new MetricsServer(*std::move(server)));
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  POSEIDON_CHECK(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, kMemoryLevel,
                              Z_DEFAULT_STRATEGY) == Z_OK,
                 "zlib has no memory");
  std::string compressed(deflateBound(&stream, text.size()), '\0');
  // zlib's interface predates const; it does not write to next_in.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  POSEIDON_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflateBound is a bound");
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

}  // namespace poseidon
