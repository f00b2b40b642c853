#pragma once

// Metrics of one process over its lifetime: times of stages, counters and gauges.
// common/probes/traffic.h has the figures per layer of a job.
//
// Called by: all parts of a worker or server, which report their work; common/pages/node_metrics.h
// reads it at a scrape. Calls: common/probes/tracer.h, whose events go to the coordinator
// (common/probes/trace_report.h).
//
// Thread-safe without locks, some nanoseconds a call. A GaugePart belongs to one thread.

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/probes/stage.h"
#include "common/probes/time_histogram.h"
#include "common/probes/tracer.h"

namespace poseidon {

/// Counters over the life of a node's process. docs/metrics.md explains each; the table in
/// node_metrics.cc has the exported names.
enum class NodeCount : std::uint8_t {
  kImages,              ///< worker: samples trained on
  kRetriesServer,       ///< worker: attempts to reach a server again ...
  kRetriesWorker,       ///< ... or another worker
  kRetriesCoordinator,  ///< streams to the coordinator that broke
  kNotFinite,           ///< a loss, gradient, factor or parameter that is not finite
  kReplicasDiffer,      ///< worker: the workers' copies of an SFB layer are not equal
  kSnapshotsSealed,     ///< server
  kSnapshotsFailed,     ///< server
  kSnapshotBytes,       ///< server: of those sealed
  kStoreWrittenBytes,   ///< server: of pieces written to its store
  kCount                ///< number of them, not one itself
};

/// Current values of a node.
enum class NodeGauge : std::uint8_t {
  kRank,                ///< of a worker, index of a server; while it has a part in a job
  kEpoch,               ///< likewise
  kIteration,           ///< worker: iterations done; likewise
  kShardParameters,     ///< server: parameters that it owns; likewise
  kSendQueue,           ///< messages that wait for their turn on a stream
  kStreams,             ///< server: streams of workers
  kPausedStreams,       ///< server: streams paused because their workers are ahead
  kEarlyGradientBytes,  ///< server: gradients for a later iteration
  kCheckpointQueue,     ///< server: chunks that wait for the disk
  kStoreSnapshots,      ///< server: checkpoints (its parts of them) in its store
  kStoreBytes,          ///< server: of the store's table files
  kStoreFiles,          ///< server: table files of the store
  kStoreMemoryBytes,    ///< server: memory that RocksDB uses to read them
  kStoreErrors,         ///< server: background errors of RocksDB since it was opened
  kCount                ///< number of them, not one itself
};

/// Setters take nanoseconds, getters return seconds.
class NodeProbe {
 public:
  void took(Stage stage, Nanoseconds time) { stages_[index(stage)].add(time); }
  /// The same, and records the span in a trace.
  void took(const TraceSpan& span) {
    took(span.stage, span.end - span.begin);
    tracer_.record(span);
  }
  /// For work whose time is counted elsewhere.
  Tracer& tracer() { return tracer_; }
  const TimeHistogram& stage(Stage stage) const { return stages_[index(stage)]; }

  /// One iteration of this worker is done: `images` samples, mean loss over them.
  void iteration(Nanoseconds time, std::int64_t images, double loss) {
    iterations_.add(time);
    count(NodeCount::kImages, static_cast<std::uint64_t>(images));
    loss_.store(loss, std::memory_order_relaxed);
  }
  const TimeHistogram& iterations() const { return iterations_; }
  /// Not a number before the first iteration.
  double loss() const { return loss_.load(std::memory_order_relaxed); }

  void count(NodeCount what, std::uint64_t amount = 1) {
    counts_[index(what)].fetch_add(amount, std::memory_order_relaxed);
  }
  std::uint64_t counted(NodeCount what) const {
    return counts_[index(what)].load(std::memory_order_relaxed);
  }

  void set(NodeGauge what, std::int64_t value) {
    gauges_[index(what)].store(value, std::memory_order_relaxed);
  }
  void add(NodeGauge what, std::int64_t amount) {
    gauges_[index(what)].fetch_add(amount, std::memory_order_relaxed);
  }
  std::int64_t value(NodeGauge what) const {
    return gauges_[index(what)].load(std::memory_order_relaxed);
  }

 private:
  template <typename Enum>
  static constexpr std::size_t index(Enum value) {
    return static_cast<std::size_t>(value);
  }
  template <typename Value, typename Enum>
  using PerEnumerator = std::array<Value, static_cast<std::size_t>(Enum::kCount)>;

  PerEnumerator<TimeHistogram, Stage> stages_;
  Tracer tracer_;
  TimeHistogram iterations_;
  std::atomic<double> loss_{std::numeric_limits<double>::quiet_NaN()};
  PerEnumerator<std::atomic<std::uint64_t>, NodeCount> counts_{};
  PerEnumerator<std::atomic<std::int64_t>, NodeGauge> gauges_{};
};

/// One owner's part of a gauge that several objects add to; its destructor removes it. One thread.
class GaugePart {
 public:
  GaugePart() = default;
  GaugePart(std::shared_ptr<NodeProbe> probe, NodeGauge what)
      : probe_(std::move(probe)), what_(what) {}
  GaugePart(GaugePart&& other) noexcept { *this = std::move(other); }
  GaugePart& operator=(GaugePart&& other) noexcept {
    set(0);
    probe_ = std::exchange(other.probe_, nullptr);
    what_ = other.what_;
    shown_ = std::exchange(other.shown_, 0);
    return *this;
  }
  ~GaugePart() { set(0); }

  void set(std::int64_t value) {
    if (value == shown_) return;
    if (probe_ != nullptr) probe_->add(what_, value - shown_);
    shown_ = value;
  }
  std::int64_t value() const { return shown_; }

 private:
  std::shared_ptr<NodeProbe> probe_;
  NodeGauge what_ = NodeGauge::kSendQueue;
  std::int64_t shown_ = 0;
};

}  // namespace poseidon
