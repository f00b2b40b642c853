#include "coordinator/traffic.h"

#include <algorithm>

#include "common/check.h"

namespace poseidon {
namespace {

bool goes_back(const std::vector<LayerTotals>& before, const std::vector<LayerTotals>& after) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (after[i].sent_bytes < before[i].sent_bytes ||
        after[i].received_bytes < before[i].received_bytes ||
        after[i].stall_seconds < before[i].stall_seconds) {
      return true;
    }
  }
  return false;
}

}  // namespace

void TrafficMonitor::add(NodeId node, std::vector<LayerTotals> totals, Nanoseconds now) {
  POSEIDON_CHECK(totals.size() == layers_, "one total per layer");
  auto& samples = samples_[node];
  if (!samples.empty() && goes_back(samples.back().totals, totals)) samples.clear();
  samples.push_back({now, std::move(totals)});
  while (samples.size() > 2 && (samples[1].time <= now - kWindow || samples.size() > kMaxSamples)) {
    samples.pop_front();
  }
}

LayerRates TrafficMonitor::rates(LayerIndex layer) const {
  LayerRates rates;
  double stall_shares = 0.0;
  std::size_t nodes = 0;
  for (const auto& [node, samples] : samples_) {
    const double elapsed =
        std::chrono::duration<double>(samples.back().time - samples.front().time).count();
    if (elapsed <= 0.0) continue;
    const LayerTotals& first = samples.front().totals[layer.value()];
    const LayerTotals& last = samples.back().totals[layer.value()];
    ++nodes;
    rates.sent_bytes_per_s += static_cast<double>(last.sent_bytes - first.sent_bytes) / elapsed;
    rates.received_bytes_per_s +=
        static_cast<double>(last.received_bytes - first.received_bytes) / elapsed;
    stall_shares += std::clamp((last.stall_seconds - first.stall_seconds) / elapsed, 0.0, 1.0);
  }
  if (nodes > 0) rates.stall_share = stall_shares / static_cast<double>(nodes);
  return rates;
}

}  // namespace poseidon
