#pragma once

// Metrics of one job on one node: the bytes that each parameter layer moved, and the time it
// computed and waited, since the job began. Counters in bytes and nanoseconds that only grow.
//
// Called by: the data path, which counts (worker/trainer.h, sync/client/sync_client.h,
// sync/links/chunk_links.h, sync/client/factor_exchange.h, sync/chunks/chunk_service.h);
// common/pages/node_metrics.h, which reads it at a scrape; common/node/node_report.h, which puts it
// into heartbeats. From these the coordinator computes rates and each layer's slowest worker
// (coordinator/watch/traffic.h). Calls: common/probes/node_probe.h.
//
// Any thread, without locks: every counter is an atomic of its own, so values of several counters
// may be of different moments. What the node waits for has a lock, and is set once a heartbeat.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/probes/awaited.h"
#include "common/probes/node_probe.h"
#include "common/probes/time_histogram.h"

namespace poseidon {

/// Bytes are those of payloads. Layers are the plan's.
class TrafficProbe {
 public:
  /// `node` counts what belongs to no layer; it outlives the job. Not null.
  explicit TrafficProbe(std::size_t layers,
                        std::shared_ptr<NodeProbe> node = std::make_shared<NodeProbe>())
      : node_(std::move(node)), layers_(layers) {}

  NodeProbe& node() { return *node_; }
  const std::shared_ptr<NodeProbe>& shared_node() const { return node_; }

  void sent(LayerIndex layer, std::size_t bytes) { add(layers_[layer.value()].sent_bytes, bytes); }
  void received(LayerIndex layer, std::size_t bytes) {
    add(layers_[layer.value()].received_bytes, bytes);
  }
  /// This worker's engine waited for the layer's parameters.
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
  /// Time on this worker from a complete gradient to its new parameters.
  void synced(LayerIndex layer, Nanoseconds took) { layers_[layer.value()].sync.add(took); }
  /// This server summed a gradient chunk of the layer, or stepped its parameters.
  void aggregated(LayerIndex layer, Nanoseconds took) {
    add(layers_[layer.value()].aggregation_ns, static_cast<std::uint64_t>(took.count()));
  }

  /// What the node waits for.
  AwaitedProbe& awaited() { return awaited_; }
  const AwaitedProbe& awaited() const { return awaited_; }

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
  AwaitedProbe awaited_;
};

}  // namespace poseidon
