#pragma once

// Probe of one job on one node: what each parameter layer moved, computed and waited for, since the
// job began. Bytes and nanoseconds; counters that only grow.
//
// Before: the data path (worker/trainer.h, sync/client/sync_client.h, sync/links/chunk_links.h,
// sync/client/factor_exchange.h, sync/chunks/chunk_service.h) says what it did. After:
// common/pages/node_metrics.h shows it at a scrape, common/node/node_report.h puts it into
// heartbeats, from which the coordinator has rates, and each layer's slowest worker
// (coordinator/watch/traffic.h).
//
// Any thread, without locks: every counter is an atomic of its own, so what is read of several of
// them need not be of one moment.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/probes/node_probe.h"
#include "common/probes/time_histogram.h"

namespace poseidon {

/// Bytes are those of payloads. Layers are the plan's.
class TrafficProbe {
 public:
  /// `node`: what hears of all that is of no layer, and outlives the job. Not null.
  explicit TrafficProbe(std::size_t layers,
                        std::shared_ptr<NodeProbe> node = std::make_shared<NodeProbe>())
      : node_(std::move(node)), layers_(layers) {}

  NodeProbe& node() { return *node_; }
  const std::shared_ptr<NodeProbe>& shared_node() const { return node_; }

  void sent(LayerIndex layer, std::size_t bytes) { add(layers_[layer.value()].sent_bytes, bytes); }
  void received(LayerIndex layer, std::size_t bytes) {
    add(layers_[layer.value()].received_bytes, bytes);
  }
  /// This worker's engine stood still for the layer's parameters.
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
  /// A batch, or a part of one, went through the network, forward or backward; in tests too.
  void batch_passed() { add(batches_, 1); }
  /// From a gradient's being ready to its new parameters' being there, on this worker.
  void synced(LayerIndex layer, Nanoseconds took) { layers_[layer.value()].sync.add(took); }
  /// This server summed a gradient chunk of the layer, or stepped its parameters.
  void aggregated(LayerIndex layer, Nanoseconds took) {
    add(layers_[layer.value()].aggregation_ns, static_cast<std::uint64_t>(took.count()));
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
  double aggregation_seconds(LayerIndex layer) const {
    return static_cast<double>(get(layers_[layer.value()].aggregation_ns)) * 1e-9;
  }
  std::uint64_t passes(LayerIndex layer) const { return get(layers_[layer.value()].passes); }
  std::uint64_t batches() const { return get(batches_); }
  const LayerTimeHistogram& sync(LayerIndex layer) const { return layers_[layer.value()].sync; }

 private:
  using Counter = std::atomic<std::uint64_t>;
  struct Layer {
    Counter sent_bytes{0}, received_bytes{0}, stall_ns{0}, aggregation_ns{0};
    Counter forward_ns{0}, backward_ns{0}, passes{0};
    LayerTimeHistogram sync;
  };
  static void add(Counter& counter, std::uint64_t amount) {
    counter.fetch_add(amount, std::memory_order_relaxed);
  }
  static std::uint64_t get(const Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  }
  const std::shared_ptr<NodeProbe> node_;
  std::vector<Layer> layers_;
  Counter batches_{0};
};

}  // namespace poseidon
