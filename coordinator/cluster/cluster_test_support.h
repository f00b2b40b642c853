#pragma once

// The surroundings of a Cluster in its tests: a clock, ends of streams, a thread that waits.

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster.h"
#include "gtest/gtest.h"

namespace poseidon {

/// Moved by the test; the run directory's thread looks at it, too.
class TestClock final : public Clock {
 public:
  Nanoseconds now() const override { return Nanoseconds(now_ns_.load()); }
  Milliseconds unix_time() const override { return std::chrono::seconds(1'700'000'000); }
  void advance(Nanoseconds by) { now_ns_ += by.count(); }

 private:
  std::atomic<std::int64_t> now_ns_{3'600'000'000'000};
};

class TestLink final : public NodeLink {
 public:
  bool send(const v1::CoordinatorMessage& message) override {
    sent.push_back(message);
    return true;
  }
  void close(const absl::Status& status) override { closed = status; }
  std::string peer_host() const override { return "127.0.0.1"; }

  std::vector<v1::CoordinatorMessage> sent;
  absl::Status closed;
};

/// Tasks wait for the test.
class TestBackground final : public Background {
 public:
  explicit TestBackground(std::deque<std::function<void()>>* tasks) : tasks_(tasks) {}
  void enqueue(std::function<void()> task) override { tasks_->push_back(std::move(task)); }

 private:
  std::deque<std::function<void()>>* const tasks_;
};

/// Those, too, that come meanwhile.
inline void run_all(std::deque<std::function<void()>>& tasks) {
  while (!tasks.empty()) {
    const auto task = std::move(tasks.front());
    tasks.pop_front();
    task();
  }
}

/// One small layer, 100 iterations, no calibration.
inline ResolvedJob toy_job() {
  ResolvedJob job;
  job.name = "toy";
  job.batch_size = 8;
  job.iterations = 100;
  job.layers = {{"fc", "fully_connected", {10, 500}, 5010, true}};
  job.sync.cost = "bytes";
  job.learning_rate = [](Iteration) { return 0.1; };
  return job;
}

inline v1::GetStatusResponse status_of(Cluster& cluster) {
  v1::GetStatusRequest request;
  request.set_protocol_version(kProtocolVersion);
  const auto response = cluster.status(request);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : v1::GetStatusResponse();
}

}  // namespace poseidon
