#include "coordinator/records/loss_curve.h"

#include <algorithm>
#include <cmath>

namespace poseidon {

void LossCurve::add(const MetricsLine& line) {
  if (line.iteration < 0) return;
  if (line.loss) {
    if (std::isfinite(*line.loss)) add_loss(line.iteration, *line.loss);
  } else if (std::isfinite(line.test_loss) && std::isfinite(line.test_accuracy)) {
    add_test({.iteration = line.iteration, .loss = line.test_loss, .accuracy = line.test_accuracy});
  }
}

void LossCurve::add_loss(Iteration iteration, double loss) {
  const auto shares_point = [this](Iteration a, Iteration b) { return a / width_ == b / width_; };
  const auto join = [](Point& point, const Point& more) {
    const auto all = static_cast<double>(point.iterations + more.iterations);
    point.mean += (more.mean - point.mean) * static_cast<double>(more.iterations) / all;
    point.min = std::min(point.min, more.min);
    point.max = std::max(point.max, more.max);
    point.iterations += more.iterations;
  };
  const Point one{.first = iteration, .iterations = 1, .mean = loss, .min = loss, .max = loss};
  if (!points_.empty() && shares_point(points_.back().first, iteration)) {
    join(points_.back(), one);
    return;
  }
  while (points_.size() >= kMaxPoints) {
    width_ *= 2;
    std::vector<Point> fewer;
    for (const Point& point : points_) {
      if (!fewer.empty() && shares_point(fewer.back().first, point.first)) {
        join(fewer.back(), point);
      } else {
        fewer.push_back(point);
      }
    }
    points_ = std::move(fewer);
    if (shares_point(points_.back().first, iteration)) {
      join(points_.back(), one);
      return;
    }
  }
  points_.push_back(one);
}

void LossCurve::add_test(const Test& test) {
  // The last test is kept only until the next one arrives, unless it is one of those to keep.
  if (!tests_.empty() && (tests_seen_ - 1) % test_stride_ != 0) tests_.pop_back();
  if (tests_.size() >= kMaxTests) {
    test_stride_ *= 2;
    std::vector<Test> fewer;
    for (std::size_t i = 0; i < tests_.size(); i += 2) fewer.push_back(tests_[i]);
    tests_ = std::move(fewer);
  }
  tests_.push_back(test);
  ++tests_seen_;
}

void LossCurve::roll_back(Iteration iteration) {
  while (!points_.empty() && points_.back().first >= iteration) points_.pop_back();
  if (!points_.empty()) {
    Point& last = points_.back();
    last.iterations = std::min(last.iterations, iteration - last.first);
  }
  while (!tests_.empty() && tests_.back().iteration >= iteration) tests_.pop_back();
  // As if only the kept tests had been seen.
  tests_seen_ =
      tests_.empty() ? 0 : (static_cast<std::int64_t>(tests_.size()) - 1) * test_stride_ + 1;
}

}  // namespace poseidon
