#pragma once

// The loss of a run as a curve of few points, however long the run: for the status page. Pure.
//
// Called by: run_directory.h and coordinator/watch/status_site.h, with lines of metrics.jsonl as
// they are written or found at a restart. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/records/metrics_line.h"

namespace poseidon {

class LossCurve {
 public:
  /// Neighbouring iterations share a point when there would be more.
  static constexpr std::size_t kMaxPoints = 512;
  static constexpr std::size_t kMaxTests = 256;

  struct Point {
    Iteration first = 0;  ///< of `iterations`
    std::int64_t iterations = 0;
    double mean = 0.0, min = 0.0, max = 0.0;  ///< of their losses; finite
  };
  struct Test {
    Iteration iteration = 0;
    double loss = 0.0, accuracy = 0.0;
  };

  /// Lines in the order of the file. Values that are not finite are left out.
  void add(const MetricsLine& line);
  /// Drops this iteration and later ones, which will be repeated. A point that is dropped in part
  /// keeps its mean and bounds.
  void roll_back(Iteration iteration);

  const std::vector<Point>& points() const { return points_; }
  /// In the order of iterations; the last test is always among them.
  const std::vector<Test>& tests() const { return tests_; }

 private:
  void add_loss(Iteration iteration, double loss);
  void add_test(const Test& test);

  std::int64_t width_ = 1;  ///< iterations that share a point: [n * width_, (n + 1) * width_)
  std::vector<Point> points_;
  std::int64_t tests_seen_ = 0;
  std::int64_t test_stride_ = 1;  ///< every test_stride_-th test is kept
  std::vector<Test> tests_;
};

}  // namespace poseidon
