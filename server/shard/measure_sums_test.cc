#include "server/shard/measure_sums.h"

#include "gtest/gtest.h"

namespace poseidon::measure_sums_test {
namespace {

/// Every look at it takes a millisecond.
class TickingClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_ += Milliseconds(1); }
  Milliseconds unix_time() const override { return Milliseconds(0); }

 private:
  mutable Nanoseconds now_{0};
};

TEST(MeasureSums, CountsTheContributionsOfAllWorkers) {
  const TickingClock clock;
  OptimizerSpec adam;
  adam.type = OptimizerType::kAdam;
  // Chunks 1 to 5 begin; the clock is asked once before, after each and at the end.
  const double speed = measure_sums({.chunk_bytes = 4 << 20,
                                     .workers = 3,
                                     .optimizer = adam,
                                     .max_time = Milliseconds(5),
                                     .clock = &clock});
  EXPECT_DOUBLE_EQ(speed, 5.0 * 3 * (4 << 20) / 6e-3);
}

class CountingTeam final : public Team {
 public:
  void for_ranges(std::size_t elements, Body body) override {
    done += elements;
    sequential_team()->for_ranges(elements, body);
  }
  std::size_t done = 0;
};

TEST(MeasureSums, MeasuresWithTheTeamThatSumsAndSteps) {
  const TickingClock clock;
  CountingTeam team;
  measure_sums({.chunk_bytes = 8 << 20,
                .workers = 3,
                .max_time = Nanoseconds(0),
                .clock = &clock,
                .team = &team});
  EXPECT_EQ(team.done, std::size_t{3} * (2 << 20)) << "a copy, a sum, and a sum with its step";
}

TEST(MeasureSums, EndsByItselfAndDoesOneChunkAtLeast) {
  const TickingClock clock;
  const SumsTask task{.chunk_bytes = 8 << 20, .workers = 1, .clock = &clock};
  SumsTask hurried = task;
  hurried.max_time = Nanoseconds(0);
  EXPECT_DOUBLE_EQ(measure_sums(hurried), (8 << 20) / 2e-3);
  SumsTask endless = task;
  endless.max_time = std::chrono::hours(1);
  EXPECT_DOUBLE_EQ(measure_sums(endless), 8.0 * (8 << 20) / 8e-3) << "four rounds of two chunks";
}

}  // namespace
}  // namespace poseidon::measure_sums_test
