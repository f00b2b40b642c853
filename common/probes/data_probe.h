#pragma once

// Counts a worker's input: stalls, ready batches and corrupt samples. common/probes/traffic.h does
// the same for messages.
//
// Called by: worker/data/feed/batch_ring.h, for batches, and worker/data/feed/sample_reader.h, for
// unreadable samples; common/pages/node_metrics.h and common/node/node_report.h read it. Calls:
// nothing.
//
// Any thread, without locks.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace poseidon {

/// Counts since the job began.
class DataProbe {
 public:
  /// The trainer waited this long for a batch.
  void stalled(std::uint64_t nanoseconds) {
    stall_ns_.fetch_add(nanoseconds, std::memory_order_relaxed);
  }
  /// Batches that wait for the engine.
  void ready(std::size_t batches) { ready_batches_.store(batches, std::memory_order_relaxed); }
  /// A sample cannot be read and another replaces it. Called the first time only.
  void found_corrupt() { corrupt_samples_.fetch_add(1, std::memory_order_relaxed); }

  /// How long the engine waited for batches.
  double stall_seconds() const {
    return static_cast<double>(stall_ns_.load(std::memory_order_relaxed)) * 1e-9;
  }
  /// Number of replaced samples; each counts once.
  std::uint64_t corrupt_samples() const { return corrupt_samples_.load(std::memory_order_relaxed); }
  /// Ready batches when the engine last took one.
  std::size_t ready_batches() const { return ready_batches_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> stall_ns_{0};
  std::atomic<std::uint64_t> corrupt_samples_{0};
  std::atomic<std::size_t> ready_batches_{0};
};

}  // namespace poseidon
