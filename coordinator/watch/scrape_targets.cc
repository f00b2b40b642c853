#include "coordinator/watch/scrape_targets.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "common/daemon/daemon.h"
#include "common/files/file_io.h"
#include "common/threads/mutex.h"
#include "coordinator/watch/metrics.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// Between two attempts to write to a disk that is full.
constexpr Nanoseconds kTargetsPause = std::chrono::seconds(2);
constexpr const char* kTargetsFile = "prometheus-targets.json";

/// As other machines reach it: a wildcard is no address, this machine's name may be one.
std::string reachable_metrics_address(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = parse_host_port(address, PortZero::kRefused);
  if (!parsed.ok() || !is_wildcard_host(parsed->host)) return address;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return address;
  return to_string({name.data(), parsed->port});
}

}  // namespace

ScrapeTargets::ScrapeTargets(const std::filesystem::path& folder, const Clock& clock, Mutex& mutex,
                             Background& disk)
    : path_(folder / kTargetsFile), clock_(clock), mutex_(mutex), disk_(disk) {}

void ScrapeTargets::set_own(const std::string& address, bool has_tls) {
  own_address_ = reachable_metrics_address(address);
  has_tls_ = has_tls;
  disk_.enqueue([path = path_] { remove_leftovers(path); });
}

void ScrapeTargets::update(const std::vector<NodeInfo>& nodes) {
  std::string text = prometheus_targets(own_address_, nodes, has_tls_);
  if (text == text_) return;
  text_ = std::move(text);
  disk_.enqueue([this, text = text_] {
    const absl::Status written = write_file_atomically(path_, text);
    MutexLock lock(mutex_);
    const bool was_written = std::exchange(is_written_, written.ok());
    if (written.ok()) return;
    failed_at_ = clock_.now();
    if (text_ == text) text_.clear();
    if (!was_written) return;
    spdlog::warn("{}; Prometheus does not see the change yet; the write is tried again",
                 std::string(written.message()));
  });
}

bool ScrapeTargets::wants_retry() {
  if (is_written_ || clock_.now() - failed_at_ < kTargetsPause) return false;
  failed_at_ = clock_.now();
  return true;
}

}  // namespace poseidon
