#pragma once

// Computes recent bytes, times and stalls per layer from the running totals in heartbeats. Pure.
//
// Called by: coordinator/cluster. Calls: coordinator/members/sample_window.h.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/sample_window.h"

namespace poseidon {

/// One node's running totals for one layer since the start of the job.
struct LayerTotals {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  double stall_seconds = 0.0;
  double forward_seconds = 0.0, backward_seconds = 0.0;  ///< of `passes`
  std::uint64_t passes = 0;
  double sync_seconds = 0.0;  ///< of `syncs`
  std::uint64_t syncs = 0;
};

/// One worker's running totals since the start of the job.
struct WorkerTotals {
  std::vector<LayerTotals> layers;  ///< by LayerIndex
  double data_stall_seconds = 0.0;  ///< time that computing waited for samples
  std::uint64_t corrupt_samples = 0;
};

/// Shares of a worker's time.
struct WorkerRates {
  /// Of the window, 0..1; unset before time has passed.
  struct Shares {
    double compute = 0.0;  ///< forward and backward
    double stall = 0.0;    ///< forward waited for parameters
    double data = 0.0;     ///< waited for samples
  };
  std::optional<Shares> shares;
  std::optional<double> passes_per_s;  ///< batches; set with `shares`
  std::uint64_t corrupt_samples = 0;   ///< all of them
};

/// Of one iteration, as measured.
struct MeasuredLayer {
  double forward_s = 0.0, backward_s = 0.0, sync_s = 0.0;
};

struct LayerRates {
  double sent_bytes_per_s = 0.0;          ///< all nodes together
  double received_bytes_per_s = 0.0;      ///< all nodes together
  double stall_share = 0.0;               ///< mean over nodes, 0..1
  std::optional<MeasuredLayer> measured;  ///< mean over nodes; unset before there is a pass
};

class TrafficMonitor {
 public:
  static constexpr Nanoseconds kWindow = SampleWindow<WorkerTotals>::kLength;

  explicit TrafficMonitor(std::size_t layers) : layers_(layers) {}

  /// `totals` must have the monitor's number of layers. Totals that decrease mean that a node
  /// restarted its counts: drops its older samples.
  void add(NodeId node, WorkerTotals totals, Nanoseconds now);
  void remove(NodeId node) {
    samples_.erase(node);
    passes_.erase(node);
  }
  std::size_t layers() const { return layers_; }
  /// Between the oldest and newest sample of each node within the window. For a node that has been
  /// silent for longer, rates are zero, but its measurements still count.
  LayerRates rates(LayerIndex layer, Nanoseconds now) const;
  /// The same for one node; empty for a node without samples or a silent one.
  WorkerRates worker_rates(NodeId node, Nanoseconds now) const;
  /// By LayerIndex, of the slowest node, over its last complete window of passes: all others wait
  /// for it. Such a window is as long as the others, or kMinPasses passes if these take longer.
  /// Empty before every node has had one.
  std::vector<MeasuredLayer> slowest() const;
  static constexpr std::uint64_t kMinPasses = 3;

 private:
  using Samples = SampleWindow<WorkerTotals>;
  using Sample = Samples::Sample;
  static bool is_silent(const Samples& samples, Nanoseconds now) {
    return now - samples.newest().time > kWindow;
  }
  struct Passes {
    Sample begin;                       ///< of the window that is not whole yet
    std::vector<MeasuredLayer> layers;  ///< of the last whole one; empty before
  };
  static MeasuredLayer mean(const LayerTotals& first, const LayerTotals& last);
  static bool is_whole(const Sample& begin, const Sample& end);
  std::size_t layers_;
  std::map<NodeId, Samples> samples_;
  std::map<NodeId, Passes> passes_;
};

}  // namespace poseidon
