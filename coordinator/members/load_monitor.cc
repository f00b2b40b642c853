#include "coordinator/members/load_monitor.h"

#include <algorithm>

namespace poseidon {

void LoadMonitor::add(NodeId node, const LoadTotals& totals, Nanoseconds now) {
  Node& known = nodes_[node];
  if (!known.samples.empty()) {
    const LoadTotals& before = known.samples.newest().totals;
    if (totals.cpu_seconds < before.cpu_seconds || totals.disk_seconds < before.disk_seconds ||
        totals.disk_bytes < before.disk_bytes) {
      known = {};
    } else if (totals.disk_seconds > before.disk_seconds && totals.disk_bytes > before.disk_bytes) {
      known.disk_bytes_per_s = static_cast<double>(totals.disk_bytes - before.disk_bytes) /
                               (totals.disk_seconds - before.disk_seconds);
    }
  }
  known.samples.add(now, totals);
}

std::optional<LoadRates> LoadMonitor::rates(NodeId node) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return std::nullopt;
  const auto& first = found->second.samples.oldest();
  const auto& last = found->second.samples.newest();
  const double elapsed = last.seconds_since(first);
  if (elapsed <= 0.0) return std::nullopt;
  LoadRates rates{.machine = last.totals.machine,
                  .cores = last.totals.cores,
                  .disk_bytes_per_s = found->second.disk_bytes_per_s,
                  .disk_waiting = last.totals.disk_waiting};
  const auto per_second = [elapsed](double from, double to) {
    return std::max(to - from, 0.0) / elapsed;
  };
  rates.cores_used = per_second(first.totals.cpu_seconds, last.totals.cpu_seconds);
  rates.cores_wanted = per_second(first.totals.cpu_wait_seconds, last.totals.cpu_wait_seconds);
  rates.disk_share = std::min(per_second(first.totals.disk_seconds, last.totals.disk_seconds), 1.0);
  const double wrote_s = last.totals.disk_seconds - first.totals.disk_seconds;
  if (last.totals.disk_bytes > first.totals.disk_bytes && wrote_s > 0.0) {
    rates.disk_bytes_per_s =
        static_cast<double>(last.totals.disk_bytes - first.totals.disk_bytes) / wrote_s;
  }
  return rates;
}

}  // namespace poseidon
