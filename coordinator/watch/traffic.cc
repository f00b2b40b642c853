#include "coordinator/watch/traffic.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace poseidon {
namespace {

bool goes_back(const WorkerTotals& totals_before, const WorkerTotals& totals_after) {
  if (totals_after.data_stall_seconds < totals_before.data_stall_seconds ||
      totals_after.corrupt_samples < totals_before.corrupt_samples) {
    return true;
  }
  const std::vector<LayerTotals>& before = totals_before.layers;
  const std::vector<LayerTotals>& after = totals_after.layers;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (after[i].sent_bytes < before[i].sent_bytes ||
        after[i].received_bytes < before[i].received_bytes ||
        after[i].stall_seconds < before[i].stall_seconds || after[i].passes < before[i].passes ||
        after[i].forward_seconds < before[i].forward_seconds ||
        after[i].backward_seconds < before[i].backward_seconds ||
        after[i].sync_seconds < before[i].sync_seconds || after[i].syncs < before[i].syncs) {
      return true;
    }
  }
  return false;
}

}  // namespace

void TrafficMonitor::add(NodeId node, WorkerTotals totals, Nanoseconds now) {
  POSEIDON_CHECK(totals.layers.size() == layers_, "one total per layer");
  auto& samples = samples_[node];
  if (!samples.empty() && goes_back(samples.newest().totals, totals)) {
    samples.clear();
    passes_.erase(node);
  }
  samples.add(now, std::move(totals));
  const Sample& newest = samples.newest();
  const auto [at, is_first] = passes_.try_emplace(node);
  Passes& passes = at->second;
  if (is_first) passes.begin = newest;
  if (is_whole(passes.begin, newest)) {
    passes.layers.clear();
    for (std::size_t l = 0; l < layers_; ++l) {
      passes.layers.push_back(mean(passes.begin.totals.layers[l], newest.totals.layers[l]));
    }
    passes.begin = newest;
  }
}

MeasuredLayer TrafficMonitor::mean(const LayerTotals& first, const LayerTotals& last) {
  const auto over = [](double seconds, std::uint64_t times) {
    return times > 0 ? seconds / static_cast<double>(times) : 0.0;
  };
  const std::uint64_t passes = last.passes - first.passes;
  return {.forward_s = over(last.forward_seconds - first.forward_seconds, passes),
          .backward_s = over(last.backward_seconds - first.backward_seconds, passes),
          .sync_s = over(last.sync_seconds - first.sync_seconds, last.syncs - first.syncs)};
}

bool TrafficMonitor::is_whole(const Sample& begin, const Sample& end) {
  if (end.time - begin.time < kWindow) return false;
  for (std::size_t l = 0; l < end.totals.layers.size(); ++l) {
    if (end.totals.layers[l].passes - begin.totals.layers[l].passes < kMinPasses) return false;
  }
  return true;
}

std::vector<MeasuredLayer> TrafficMonitor::slowest() const {
  const std::vector<MeasuredLayer>* slowest = nullptr;
  double slowest_s = -1.0;
  for (const auto& [node, passes] : passes_) {
    if (passes.layers.empty()) return {};
    double total_s = 0.0;
    for (const MeasuredLayer& layer : passes.layers) total_s += layer.forward_s + layer.backward_s;
    if (total_s <= slowest_s) continue;
    slowest_s = total_s;
    slowest = &passes.layers;
  }
  return slowest == nullptr ? std::vector<MeasuredLayer>() : *slowest;
}

LayerRates TrafficMonitor::rates(LayerIndex layer, Nanoseconds now) const {
  LayerRates rates;
  double stall_shares = 0.0;
  std::size_t nodes = 0;
  MeasuredLayer sum;
  double measured = 0.0;
  for (const auto& [node, samples] : samples_) {
    const double elapsed = samples.newest().seconds_since(samples.oldest());
    if (elapsed <= 0.0) continue;
    const LayerTotals& first = samples.oldest().totals.layers[layer.value()];
    const LayerTotals& last = samples.newest().totals.layers[layer.value()];
    if (last.passes > first.passes) {
      const MeasuredLayer one = mean(first, last);
      sum.forward_s += one.forward_s;
      sum.backward_s += one.backward_s;
      sum.sync_s += one.sync_s;
      measured += 1.0;
    }
    if (is_silent(samples, now)) continue;
    ++nodes;
    rates.sent_bytes_per_s += static_cast<double>(last.sent_bytes - first.sent_bytes) / elapsed;
    rates.received_bytes_per_s +=
        static_cast<double>(last.received_bytes - first.received_bytes) / elapsed;
    stall_shares += std::clamp((last.stall_seconds - first.stall_seconds) / elapsed, 0.0, 1.0);
  }
  if (nodes > 0) rates.stall_share = stall_shares / static_cast<double>(nodes);
  if (measured > 0.0) {
    rates.measured = MeasuredLayer{.forward_s = sum.forward_s / measured,
                                   .backward_s = sum.backward_s / measured,
                                   .sync_s = sum.sync_s / measured};
  }
  return rates;
}

WorkerRates TrafficMonitor::worker_rates(NodeId node, Nanoseconds now) const {
  const auto found = samples_.find(node);
  if (found == samples_.end()) return {};
  const Sample& first = found->second.oldest();
  const Sample& last = found->second.newest();
  WorkerRates rates;
  rates.corrupt_samples = last.totals.corrupt_samples;
  const double elapsed = last.seconds_since(first);
  if (elapsed <= 0.0 || is_silent(found->second, now)) return rates;
  const auto seconds = [](const WorkerTotals& totals) {
    WorkerRates::Shares sums{.compute = 0.0, .stall = 0.0, .data = totals.data_stall_seconds};
    for (const LayerTotals& layer : totals.layers) {
      sums.compute += layer.forward_seconds + layer.backward_seconds;
      sums.stall += layer.stall_seconds;
    }
    return sums;
  };
  const WorkerRates::Shares before = seconds(first.totals), after = seconds(last.totals);
  const auto share = [elapsed](double from, double to) {
    return std::clamp((to - from) / elapsed, 0.0, 1.0);
  };
  rates.shares = WorkerRates::Shares{.compute = share(before.compute, after.compute),
                                     .stall = share(before.stall, after.stall),
                                     .data = share(before.data, after.data)};
  // All layers make the same passes, one after the other.
  std::uint64_t passes = 0;
  for (std::size_t l = 0; l < layers_; ++l) {
    passes = std::max(passes, last.totals.layers[l].passes - first.totals.layers[l].passes);
  }
  rates.passes_per_s = static_cast<double>(passes) / elapsed;
  return rates;
}

}  // namespace poseidon
