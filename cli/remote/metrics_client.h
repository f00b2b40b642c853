#pragma once

// Asks daemons for their metrics, all at once, as Prometheus does: over HTTP, or over TLS where the
// operator has a certificate and the page is not of this machine alone (page_scheme in
// common/daemon/daemon.h). By libcurl.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/security/security_options.h"

namespace poseidon {

/// A worker's page with 4096 layers has some 12 MB; one that is larger than this is none of ours.
inline constexpr std::size_t kMaxMetricsPageBytes = 32U << 20U;

/// Hears of every address once: the page's text, or why there is none. UNAVAILABLE (nobody listens
/// there, no way there, it speaks no HTTP or no TLS of our authority), DEADLINE_EXCEEDED,
/// PERMISSION_DENIED with the daemon's own words, RESOURCE_EXHAUSTED for one that is too large.
using OnMetricsPage = std::function<void(std::size_t index, absl::StatusOr<std::string> page)>;

/// GET /metrics of each address, HOST:PORT, of which `timeout` is left for all together. Pages are
/// handed over as they come, on this thread; when it returns each has been.
void fetch_metrics(const std::vector<std::string>& addresses, const SecurityOptions& security,
                   Milliseconds timeout, const OnMetricsPage& on_page);

}  // namespace poseidon
