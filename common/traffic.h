#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"

namespace poseidon {

/// Probe: what each parameter layer moved, computed and waited for since the job began. Written by
/// the data path, read by heartbeats and metrics; any thread.
class TrafficProbe {
 public:
  explicit TrafficProbe(std::size_t layers) : layers_(layers) {}

  void sent(LayerIndex layer, std::size_t bytes) { add(layers_[layer.value()].sent_bytes, bytes); }
  void received(LayerIndex layer, std::size_t bytes) {
    add(layers_[layer.value()].received_bytes, bytes);
  }
  void stalled(LayerIndex layer, std::uint64_t nanoseconds) {
    add(layers_[layer.value()].stall_ns, nanoseconds);
  }

  /// One training pass of the layer on this worker, without its stalls.
  void computed(LayerIndex layer, Nanoseconds forward, Nanoseconds backward) {
    Layer& one = layers_[layer.value()];
    add(one.forward_ns, static_cast<std::uint64_t>(forward.count()));
    add(one.backward_ns, static_cast<std::uint64_t>(backward.count()));
    add(one.passes, 1);
  }
  /// From a gradient's being ready to its new parameters' being there, on this worker.
  void synced(LayerIndex layer, Nanoseconds took) {
    Layer& one = layers_[layer.value()];
    add(one.sync_ns, static_cast<std::uint64_t>(took.count()));
    const double took_s = std::chrono::duration<double>(took).count();
    const auto bucket = std::lower_bound(kSyncBoundsS.begin(), kSyncBoundsS.end(), took_s);
    add(one.sync_buckets[static_cast<std::size_t>(bucket - kSyncBoundsS.begin())], 1);
  }

  std::size_t layers() const { return layers_.size(); }
  std::uint64_t sent_bytes(LayerIndex layer) const {
    return get(layers_[layer.value()].sent_bytes);
  }
  std::uint64_t received_bytes(LayerIndex layer) const {
    return get(layers_[layer.value()].received_bytes);
  }
  double stall_seconds(LayerIndex layer) const {
    return static_cast<double>(get(layers_[layer.value()].stall_ns)) * 1e-9;
  }
  double forward_seconds(LayerIndex layer) const {
    return static_cast<double>(get(layers_[layer.value()].forward_ns)) * 1e-9;
  }
  double backward_seconds(LayerIndex layer) const {
    return static_cast<double>(get(layers_[layer.value()].backward_ns)) * 1e-9;
  }
  std::uint64_t passes(LayerIndex layer) const { return get(layers_[layer.value()].passes); }
  double sync_seconds(LayerIndex layer) const {
    return static_cast<double>(get(layers_[layer.value()].sync_ns)) * 1e-9;
  }
  /// How many took at most kSyncBoundsS[bucket], and more than the bound before; the last: more.
  std::uint64_t syncs_in(LayerIndex layer, std::size_t bucket) const {
    return get(layers_[layer.value()].sync_buckets[bucket]);
  }
  std::uint64_t syncs(LayerIndex layer) const {
    std::uint64_t all = 0;
    for (const Counter& count : layers_[layer.value()].sync_buckets) all += get(count);
    return all;
  }

  /// Upper bounds of the histogram of synchronisation times: from shared memory to a slow network.
  static constexpr std::array kSyncBoundsS = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02,
                                              0.05, 0.1,  0.2,  0.5,  1.0,  2.0,  5.0,  10.0};

 private:
  using Counter = std::atomic<std::uint64_t>;
  struct Layer {
    Counter sent_bytes{0}, received_bytes{0}, stall_ns{0};
    Counter forward_ns{0}, backward_ns{0}, passes{0}, sync_ns{0};
    std::array<Counter, kSyncBoundsS.size() + 1> sync_buckets{};
  };
  static void add(Counter& counter, std::uint64_t amount) {
    counter.fetch_add(amount, std::memory_order_relaxed);
  }
  static std::uint64_t get(const Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  }
  std::vector<Layer> layers_;
};

}  // namespace poseidon
