#pragma once

// A histogram of durations, as Prometheus wants it: counts by bucket, and the sum.
//
// Called by: common/probes/node_probe.h and common/probes/traffic.h, which add;
// common/pages/metric_families.h, which reads it at a scrape. Calls: nothing.
//
// A quantile is as precise as its bucket.
//
// Any thread, without locks; adding costs some nanoseconds. Counts and sum are read one after the
// other, so they may be of different moments.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace poseidon {

/// Upper bounds of buckets: from shared memory to an iteration of a large network on a CPU. Two per
/// decade, for histograms per layer ...
inline constexpr std::array kCoarseBoundsS = {1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03,  0.1,
                                              0.3,  1.0,  3.0,  10.0, 30.0, 100.0, 300.0};
/// ... and seven, for histograms per worker: the error of a quantile is then below one half.
inline constexpr std::array kFineBoundsS = {
    1e-4,  1.3e-4, 1.8e-4, 2.5e-4, 3.5e-4, 5e-4,  7e-4,  0.001, 0.0013, 0.0018, 0.0025, 0.0035,
    0.005, 0.007,  0.01,   0.013,  0.018,  0.025, 0.035, 0.05,  0.07,   0.1,    0.13,   0.18,
    0.25,  0.35,   0.5,    0.7,    1.0,    1.3,   1.8,   2.5,   3.5,    5.0,    7.0,    10.0,
    13.0,  18.0,   25.0,   35.0,   50.0,   70.0,  100.0, 180.0, 300.0};

template <const auto& kBounds>
class BasicTimeHistogram {
 public:
  static constexpr std::size_t kBuckets = kBounds.size() + 1;  ///< the last: longer than all

  void add(Nanoseconds took) {
    sum_ns_.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
    const double took_s = std::chrono::duration<double>(took).count();
    const auto* const bucket = std::lower_bound(kBounds.begin(), kBounds.end(), took_s);
    counts_[static_cast<std::size_t>(bucket - kBounds.begin())].fetch_add(
        1, std::memory_order_relaxed);
  }

  /// Of all together.
  double seconds() const {
    return static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9;
  }
  /// How many took at most kBounds[bucket], and more than the bound before.
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

using TimeHistogram = BasicTimeHistogram<kFineBoundsS>;
using LayerTimeHistogram = BasicTimeHistogram<kCoarseBoundsS>;

}  // namespace poseidon
