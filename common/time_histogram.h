#pragma once

// How long something took, counted by size, and the sum: what a histogram of Prometheus is made of.
//
// Before: common/node_probe.h and common/traffic.h, wherever something is measured. After:
// common/metric_families.h shows it at a scrape.
//
// Any thread, without locks; adding costs some nanoseconds. Counts and sum are read one after the
// other and need not be of one moment.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/clock.h"

namespace poseidon {

class TimeHistogram {
 public:
  /// Upper bounds of the buckets: from shared memory to an iteration of a large network on a CPU.
  /// Two per decade: a worker shows one such histogram per layer.
  static constexpr std::array kBoundsS = {1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03,  0.1,
                                          0.3,  1.0,  3.0,  10.0, 30.0, 100.0, 300.0};
  static constexpr std::size_t kBuckets = kBoundsS.size() + 1;  ///< the last: longer than all

  void add(Nanoseconds took) {
    sum_ns_.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
    const double took_s = std::chrono::duration<double>(took).count();
    const auto* const bucket = std::lower_bound(kBoundsS.begin(), kBoundsS.end(), took_s);
    counts_[static_cast<std::size_t>(bucket - kBoundsS.begin())].fetch_add(
        1, std::memory_order_relaxed);
  }

  /// Of all together.
  double seconds() const {
    return static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9;
  }
  /// How many took at most kBoundsS[bucket], and more than the bound before.
  std::uint64_t in(std::size_t bucket) const {
    return counts_[bucket].load(std::memory_order_relaxed);
  }
  std::uint64_t count() const {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) all += in(i);
    return all;
  }

 private:
  std::atomic<std::uint64_t> sum_ns_{0};
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
};

}  // namespace poseidon
