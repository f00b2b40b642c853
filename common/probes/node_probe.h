#pragma once

// Probe of one process: how long each stage of its work took, what it counted and what it has, as
// long as it lives. What belongs to a layer of a job is in common/probes/traffic.h.
//
// Before: all parts of a worker or server say what they did. After: common/pages/node_metrics.h
// shows it at a scrape; the tracer's events go to the coordinator (common/probes/trace_report.h).
//
// Any thread, without locks, some nanoseconds a call; GaugePart is one thread's.

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

/// What a node counts as long as its process lives. docs/metrics.md says what each one means; the
/// table in node_metrics.cc says under which name it is shown.
enum class NodeCount : std::uint8_t {
  kImages,              ///< worker: samples trained on
  kRetriesServer,       ///< worker: attempts to reach a server again ...
  kRetriesWorker,       ///< ... or another worker
  kRetriesCoordinator,  ///< streams to the coordinator that broke
  kNotFinite,           ///< a loss, gradient, factor or parameter that is no number
  kReplicasDiffer,      ///< worker: the workers' copies of an SFB layer are not equal
  kSnapshotsSealed,     ///< server
  kSnapshotsFailed,     ///< server
  kSnapshotBytes,       ///< server: of those sealed
  kStoreWrittenBytes,   ///< server: of pieces that its store took
  kCount                ///< number of them, not one itself
};

/// What a node has just now.
enum class NodeGauge : std::uint8_t {
  kRank,                ///< of a worker, index of a server; while it has a part in a job
  kEpoch,               ///< likewise
  kIteration,           ///< worker: iterations done; likewise
  kShardParameters,     ///< server: that it owns; likewise
  kSendQueue,           ///< messages that wait for their turn on a stream
  kStreams,             ///< server: streams of workers
  kPausedStreams,       ///< server: of those, held back because their workers are ahead
  kEarlyGradientBytes,  ///< server: gradients that came before their turn
  kCheckpointQueue,     ///< server: chunks that wait for the disk
  kStoreSnapshots,      ///< server: checkpoints (its parts of them) in its store
  kStoreBytes,          ///< server: of the store's table files
  kStoreFiles,          ///< server: those
  kStoreMemoryBytes,    ///< server: that RocksDB holds for reading them
  kStoreErrors,         ///< server: background errors of RocksDB since it was opened
  kCount                ///< number of them, not one itself
};

/// Times are nanoseconds where they are given, seconds where they are read.
class NodeProbe {
 public:
  void took(Stage stage, Nanoseconds time) { stages_[index(stage)].add(time); }
  /// The same, with what a trace shows of it.
  void took(const TraceSpan& span) {
    took(span.stage, span.end - span.begin);
    tracer_.record(span);
  }
  /// For what has its time counted elsewhere or otherwise.
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

/// One part of a gauge to which several add; goes with its owner. One thread.
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
