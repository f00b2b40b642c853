#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace poseidon {

/// Probe: what each parameter layer moved and waited for since the job began. Written by the data
/// path, read by heartbeats and metrics; any thread.
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

 private:
  using Counter = std::atomic<std::uint64_t>;
  struct Layer {
    Counter sent_bytes{0}, received_bytes{0}, stall_ns{0};
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
