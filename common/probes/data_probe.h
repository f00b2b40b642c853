#pragma once

// Probe of a worker's input, like common/probes/traffic.h for what moves.
//
// Before: worker/data/feed/batch_ring.h hands batches over, worker/data/feed/sample_reader.h meets
// samples that cannot be read. After: common/pages/node_metrics.h shows it at a scrape,
// common/node/node_report.h puts it into heartbeats.
//
// Any thread, without locks.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace poseidon {

/// Since the job began.
class DataProbe {
 public:
  /// The trainer waited so long for a batch.
  void stalled(std::uint64_t nanoseconds) {
    stall_ns_.fetch_add(nanoseconds, std::memory_order_relaxed);
  }
  /// Batches that wait for the engine.
  void ready(std::size_t batches) { ready_batches_.store(batches, std::memory_order_relaxed); }
  /// A sample cannot be read, and another one stands in its place: the first time that it is met.
  void found_corrupt() { corrupt_samples_.fetch_add(1, std::memory_order_relaxed); }

  /// How long the engine stood still because the next batch was not there.
  double stall_seconds() const {
    return static_cast<double>(stall_ns_.load(std::memory_order_relaxed)) * 1e-9;
  }
  /// Samples in whose place others stood; each counts once.
  std::uint64_t corrupt_samples() const { return corrupt_samples_.load(std::memory_order_relaxed); }
  /// When the engine last took one.
  std::size_t ready_batches() const { return ready_batches_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> stall_ns_{0};
  std::atomic<std::uint64_t> corrupt_samples_{0};
  std::atomic<std::size_t> ready_batches_{0};
};

}  // namespace poseidon
