#pragma once

// Bytes, times and stalls per layer over the last seconds, out of running totals in heartbeats.
// Pure.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "coordinator/members/membership.h"

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
  double data_stall_seconds = 0.0;  ///< computing stood still waiting for samples
  std::uint64_t corrupt_samples = 0;
};

/// What one worker spends its time on.
struct WorkerRates {
  /// Of the window, 0..1; unset before time has passed.
  struct Shares {
    double compute = 0.0;  ///< forward and backward
    double stall = 0.0;    ///< forward stood still waiting for parameters
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
  static constexpr Nanoseconds kWindow = std::chrono::seconds(5);
  static constexpr std::size_t kMaxSamples = 64;  ///< per node; older ones go first

  explicit TrafficMonitor(std::size_t layers) : layers_(layers) {}

  /// `totals` must have the monitor's number of layers. Totals that go back mean a node that counts
  /// anew: its older samples are dropped.
  void add(NodeId node, WorkerTotals totals, Nanoseconds now);
  void remove(NodeId node) {
    samples_.erase(node);
    passes_.erase(node);
  }
  std::size_t layers() const { return layers_; }
  /// Between the oldest and newest sample of each node within the window. A node that has been
  /// silent for longer sends and waits for nothing; what it has measured counts still.
  LayerRates rates(LayerIndex layer, Nanoseconds now) const;
  /// Likewise of one node; nothing of a node that has told nothing, or is silent.
  WorkerRates worker_rates(NodeId node, Nanoseconds now) const;
  /// By LayerIndex, of the node that computes longest, over its last whole window of passes: what
  /// everybody waits for. Such a window is as long as the others, or as kMinPasses where those take
  /// longer. Empty before every node has had one.
  std::vector<MeasuredLayer> slowest() const;
  static constexpr std::uint64_t kMinPasses = 3;

 private:
  struct Sample {
    Nanoseconds time;
    WorkerTotals totals;
    double seconds_since(const Sample& earlier) const { return seconds(time - earlier.time); }
  };
  static bool is_silent(const std::deque<Sample>& samples, Nanoseconds now) {
    return now - samples.back().time > kWindow;
  }
  struct Passes {
    Sample begin;                       ///< of the window that is not whole yet
    std::vector<MeasuredLayer> layers;  ///< of the last whole one; empty before
  };
  static MeasuredLayer mean(const LayerTotals& first, const LayerTotals& last);
  static bool is_whole(const Sample& begin, const Sample& end);
  std::size_t layers_;
  std::map<NodeId, std::deque<Sample>> samples_;
  std::map<NodeId, Passes> passes_;
};

}  // namespace poseidon
