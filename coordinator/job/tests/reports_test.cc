#include "coordinator/job/reports/reports.h"

#include <utility>

#include "coordinator/watch/traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::reports_test {
namespace {

constexpr Nanoseconds at(double seconds) {
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

TEST(IterationCombiner, SumsInRankOrderNotInOrderOfArrival) {
  // In this order the small ones vanish beside the large one; in any other they would not all.
  const double losses[3] = {1e16, 1.0, 1.0};
  IterationCombiner forward(3);
  IterationCombiner backward(3);
  std::optional<IterationResult> a;
  std::optional<IterationResult> b;
  for (std::uint32_t i = 0; i < 3; ++i) a = forward.add(WorkerRank(i), losses[i], at(1));
  for (std::uint32_t i = 3; i-- > 0;) b = backward.add(WorkerRank(i), losses[i], at(1));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->loss, b->loss);
  EXPECT_EQ(a->loss, (1e16 + 1.0 + 1.0) / 3.0);
}

TEST(IterationCombiner, NamesTheSlowest) {
  IterationCombiner combiner(3);
  combiner.add(WorkerRank(0), 1.0, at(1));
  combiner.add(WorkerRank(2), 1.0, at(1));
  EXPECT_EQ(combiner.slowest(), WorkerRank(1));
  EXPECT_EQ(combiner.completed(), 0);
}

TEST(IterationCombiner, GoesOnWhereAnEarlierLifeStopped) {
  IterationCombiner combiner(2, 40);
  EXPECT_EQ(combiner.completed(), 40);
  EXPECT_EQ(combiner.next(WorkerRank(1)), 40);
  EXPECT_FALSE(combiner.add(WorkerRank(1), 1.0, at(1)));
  const auto result = combiner.add(WorkerRank(0), 3.0, at(1));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->iteration, 40);
  EXPECT_EQ(result->loss, 2.0);
}

TEST(IterationCombiner, SkipsWhatIsLost) {
  IterationCombiner combiner(2);
  for (int i = 0; i < 5; ++i)
    combiner.add(WorkerRank(0), i, at(1));  // rank 0: 0 to 4, rank 1: nothing
  combiner.skip_to(3);
  EXPECT_EQ(combiner.completed(), 3);
  EXPECT_EQ(combiner.next(WorkerRank(0)), 5);
  EXPECT_EQ(combiner.next(WorkerRank(1)), 3);
  const auto third = combiner.add(WorkerRank(1), 5.0, at(1));
  ASSERT_TRUE(third);
  EXPECT_EQ(third->iteration, 3);
  EXPECT_EQ(third->loss, 4.0);
  combiner.skip_to(2);
  EXPECT_EQ(combiner.completed(), 4) << "what is complete stays so";
  combiner.skip_to(9);
  EXPECT_EQ(combiner.next(WorkerRank(0)), 9);
  EXPECT_EQ(combiner.next(WorkerRank(1)), 9);
}

TEST(IterationCombiner, AnIterationEndsWithItsLastWorkerWheneverThatIsTold) {
  IterationCombiner combiner(2);
  combiner.add(WorkerRank(1), 1.0, at(7));
  EXPECT_EQ(combiner.add(WorkerRank(0), 1.0, at(3))->ended, at(7)) << "told late, made early";
  combiner.add(WorkerRank(0), 1.0, at(8));
  EXPECT_EQ(combiner.add(WorkerRank(1), 1.0, at(9))->ended, at(9));
}

TEST(TestCombiner, GoesOnWhereAnEarlierLifeStopped) {
  TestCombiner combiner(1, 101);
  EXPECT_EQ(combiner.next(WorkerRank(0)), 101);
  EXPECT_FALSE(combiner.expects(WorkerRank(0), 100));
  EXPECT_TRUE(combiner.expects(WorkerRank(0), 200));
}

TEST(TestCombiner, IsNeverTooFullForWhatCompletesATest) {
  TestCombiner combiner(2);
  const auto many = static_cast<Iteration>(TestCombiner::kMaxPending);
  for (Iteration i = 0; i < many; ++i) {
    ASSERT_TRUE(combiner.has_room(i));
    combiner.add(WorkerRank(0), i, {1.0, 1, 1});
  }
  EXPECT_FALSE(combiner.has_room(many));
  ASSERT_TRUE(combiner.has_room(0));
  EXPECT_TRUE(combiner.add(WorkerRank(1), 0, {1.0, 1, 1}));
  EXPECT_TRUE(combiner.has_room(many));
}

TEST(TestCombiner, KnowsWhatAllHaveTold) {
  TestCombiner combiner(2);
  EXPECT_FALSE(combiner.are_told(0));
  combiner.add(WorkerRank(0), 5, {1.0, 1, 1});
  EXPECT_FALSE(combiner.are_told(5));
  combiner.add(WorkerRank(1), 5, {1.0, 1, 1});
  EXPECT_TRUE(combiner.are_told(5));
  EXPECT_FALSE(combiner.are_told(6));
}

TEST(TestCombiner, NobodyHadSamples) {
  TestCombiner combiner(1);
  EXPECT_FALSE(combiner.add(WorkerRank(0), 5, {}));
  EXPECT_EQ(combiner.pending(), 0u);
}

TEST(RateWindow, IsZeroBeforeTwoSamples) {
  RateWindow rate;
  EXPECT_EQ(rate.per_second(at(1)), 0.0);
  rate.add(at(0), 0);
  EXPECT_EQ(rate.per_second(at(1)), 0.0);
}

TEST(RateWindow, ForgetsWhatIsOlderThanTheWindow) {
  RateWindow rate;
  for (int second = 0; second <= 10; ++second) rate.add(at(second), 100.0 * second);
  for (int second = 11; second <= 20; ++second) rate.add(at(second), 1000.0 + 10.0 * (second - 10));
  EXPECT_DOUBLE_EQ(rate.per_second(at(20)), 10.0);
  EXPECT_DOUBLE_EQ(rate.per_second(at(25)), 10.0 / 6) << "a count that stands still slows down";
}

TEST(RateWindow, WhatStandsStillComesDownToNothing) {
  RateWindow rate;
  for (int i = 0; i <= 100; ++i) rate.add(at(0.1 * i), 16.0 * i);
  EXPECT_NEAR(rate.per_second(at(10)), 160.0, 1.0);
  EXPECT_NEAR(rate.per_second(at(12)), 16.0 * 30 / 5, 2.0) << "3 s of the last 5";
  EXPECT_LT(rate.per_second(at(20)), 2.0);
  // A count that is slower than the window keeps its rate.
  RateWindow slow;
  for (int i = 0; i < 4; ++i) slow.add(at(20.0 * i), 64.0 * i);
  EXPECT_NEAR(slow.per_second(at(60)), 3.2, 1e-9);
  EXPECT_NEAR(slow.per_second(at(70)), 64.0 / 30, 1e-9);
}

TEST(RateWindow, TimeDoesNotGoBack) {
  RateWindow rate;
  rate.add(at(10), 0);
  rate.add(at(11), 100);
  rate.add(at(5), 200);
  EXPECT_DOUBLE_EQ(rate.per_second(at(11)), 200.0);
}

TEST(RateWindow, IsBounded) {
  RateWindow rate;
  for (int i = 0; i < 100000; ++i) rate.add(Nanoseconds(i * 1000), i);
  EXPECT_NEAR(rate.per_second(Nanoseconds(99999 * 1000)), 1e6, 1.0);
}

TEST(RateWindow, WhatArrivesAtOnceAfterAPauseDoesNotRaiseTheRate) {
  RateWindow rate;
  for (int i = 0; i <= 100; ++i) rate.add(at(0.1 * i), 16.0 * i);
  for (int i = 101; i <= 9000; ++i) rate.add(at(900 + 1e-6 * i), 16.0 * i);
  EXPECT_NEAR(rate.per_second(at(900.01)), 160.0, 1.0) << "since the last one before the pause";
  for (int i = 9001; i <= 9200; ++i) {
    rate.add(at(0.1 * i), 16.0 * i);
    EXPECT_NEAR(rate.per_second(at(0.1 * i)), 160.0, 5.0) << i;
  }
}

WorkerTotals layers(std::vector<LayerTotals> layers) {
  return {.layers = std::move(layers), .data_stall_seconds = 0.0, .corrupt_samples = 0};
}

TEST(Traffic, SumsBytesAndAveragesStallsOverNodes) {
  TrafficMonitor monitor(2);
  for (const std::uint64_t node : {1, 2}) {
    monitor.add(NodeId(node), layers({{0, 0, 0.0}, {1000, 0, 0.0}}), at(0));
    monitor.add(NodeId(node), layers({{100, 200, 0.5 * static_cast<double>(node)}, {1000, 0, 0.0}}),
                at(2));
  }
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(0), at(3)).sent_bytes_per_s, 100.0);
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(0), at(3)).received_bytes_per_s, 200.0);
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(0), at(3)).stall_share, (0.25 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(1), at(3)).sent_bytes_per_s, 0.0);
  monitor.remove(NodeId(2));
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(0), at(3)).sent_bytes_per_s, 50.0);
}

TEST(Traffic, OfANodeThatFellSilentNothingMoves) {
  TrafficMonitor monitor(1);
  for (const std::uint64_t node : {1, 2}) {
    LayerTotals later{200, 400, 0.5};
    later.passes = 4;
    later.forward_seconds = 2.0;
    monitor.add(NodeId(node), layers({{0, 0, 0.0}}), at(0));
    monitor.add(NodeId(node), layers({later}), at(2));
  }
  monitor.add(NodeId(2), layers({{400, 800, 1.0, 2.0, 0.0, 4}}), at(4));
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(0), at(7)).sent_bytes_per_s, 200.0);
  EXPECT_TRUE(monitor.worker_rates(NodeId(1), at(7)).shares.has_value());
  const LayerRates rates = monitor.rates(LayerIndex(0), at(8));
  EXPECT_DOUBLE_EQ(rates.sent_bytes_per_s, 100.0);
  EXPECT_DOUBLE_EQ(rates.stall_share, 0.25);
  ASSERT_TRUE(rates.measured.has_value());
  EXPECT_DOUBLE_EQ(rates.measured->forward_s, 0.5) << "is known still";
  EXPECT_FALSE(monitor.worker_rates(NodeId(1), at(8)).shares.has_value());
  EXPECT_FALSE(monitor.worker_rates(NodeId(1), at(8)).passes_per_s.has_value());
  EXPECT_EQ(monitor.rates(LayerIndex(0), at(100)).received_bytes_per_s, 0.0);
}

LayerTotals computed(double forward_s, double backward_s, std::uint64_t passes, double sync_s,
                     std::uint64_t syncs) {
  LayerTotals totals;
  totals.forward_seconds = forward_s;
  totals.backward_seconds = backward_s;
  totals.passes = passes;
  totals.sync_seconds = sync_s;
  totals.syncs = syncs;
  return totals;
}

TEST(Traffic, TimesArePerPassAndTheSlowestNodeIsToldFromTheMean) {
  TrafficMonitor monitor(1);
  EXPECT_FALSE(monitor.rates(LayerIndex(0), at(3)).measured.has_value());
  EXPECT_TRUE(monitor.slowest().empty());
  monitor.add(NodeId(1), layers({computed(1.0, 2.0, 10, 5.0, 9)}), at(0));
  monitor.add(NodeId(2), layers({computed(1.0, 2.0, 10, 5.0, 9)}), at(0));
  EXPECT_FALSE(monitor.rates(LayerIndex(0), at(3)).measured.has_value()) << "no time has passed";
  monitor.add(NodeId(1), layers({computed(2.0, 4.0, 20, 6.0, 19)}), at(5));
  EXPECT_TRUE(monitor.slowest().empty()) << "one node has made no pass";
  monitor.add(NodeId(2), layers({computed(4.0, 8.0, 20, 8.0, 19)}), at(5));
  const MeasuredLayer mean = *monitor.rates(LayerIndex(0), at(6)).measured;
  EXPECT_DOUBLE_EQ(mean.forward_s, (0.1 + 0.3) / 2);
  EXPECT_DOUBLE_EQ(mean.backward_s, (0.2 + 0.6) / 2);
  EXPECT_DOUBLE_EQ(mean.sync_s, (0.1 + 0.3) / 2);
  ASSERT_EQ(monitor.slowest().size(), 1u);
  EXPECT_DOUBLE_EQ(monitor.slowest()[0].forward_s, 0.3);
  EXPECT_DOUBLE_EQ(monitor.slowest()[0].sync_s, 0.3);
}

// A window of passes is as long as it takes, and the next one begins where it ended.
TEST(Traffic, TimesOfIterationsThatAreLongerThanTheWindow) {
  TrafficMonitor monitor(1);
  const auto tell = [&](double now, double forward_s, std::uint64_t passes) {
    monitor.add(NodeId(1), layers({computed(forward_s, 0.0, passes, 0.0, 0)}), at(now));
  };
  for (int beat = 0; beat <= 119; ++beat) {  // 20 s each: three are made after 60 s
    tell(0.5 * beat, 10.0 * (beat / 40), static_cast<std::uint64_t>(beat / 40));
    EXPECT_TRUE(monitor.slowest().empty()) << beat;
  }
  tell(60, 30.0, 3);
  ASSERT_EQ(monitor.slowest().size(), 1u);
  EXPECT_DOUBLE_EQ(monitor.slowest()[0].forward_s, 10.0);
  tell(80, 70.0, 4);
  tell(100, 110.0, 5);
  EXPECT_DOUBLE_EQ(monitor.slowest()[0].forward_s, 10.0) << "the next window is not whole yet";
  tell(120, 150.0, 6);
  EXPECT_DOUBLE_EQ(monitor.slowest()[0].forward_s, 40.0);
  tell(121, 1.0, 1);  // counts anew
  EXPECT_TRUE(monitor.slowest().empty());
  monitor.remove(NodeId(1));
  EXPECT_TRUE(monitor.slowest().empty());
}

TEST(Traffic, TotalsThatGoBackBeginAnew) {
  TrafficMonitor monitor(1);
  monitor.add(NodeId(1), layers({{1000, 0, 0.0}}), at(0));
  monitor.add(NodeId(1), layers({{10, 0, 0.0}}), at(1));
  EXPECT_EQ(monitor.rates(LayerIndex(0), at(3)).sent_bytes_per_s, 0.0);
  monitor.add(NodeId(1), layers({{30, 0, 0.0}}), at(2));
  EXPECT_DOUBLE_EQ(monitor.rates(LayerIndex(0), at(3)).sent_bytes_per_s, 20.0);
}

TEST(Traffic, WhatAWorkerSpendsItsTimeOn) {
  TrafficMonitor monitor(2);
  EXPECT_FALSE(monitor.worker_rates(NodeId(1), at(3)).shares.has_value());
  LayerTotals one = computed(1.0, 2.0, 10, 0.0, 0), other = computed(0.0, 1.0, 10, 0.0, 0);
  monitor.add(NodeId(1), {.layers = {one, other}, .data_stall_seconds = 1.0, .corrupt_samples = 2},
              at(0));
  EXPECT_FALSE(monitor.worker_rates(NodeId(1), at(3)).shares.has_value()) << "no time has passed";
  EXPECT_EQ(monitor.worker_rates(NodeId(1), at(3)).corrupt_samples, 2u);
  one.forward_seconds += 0.25;
  one.backward_seconds += 0.5;
  one.stall_seconds += 0.125;
  other.backward_seconds += 0.25;
  other.stall_seconds += 0.125;
  monitor.add(NodeId(1), {.layers = {one, other}, .data_stall_seconds = 1.5, .corrupt_samples = 5},
              at(2));
  const WorkerRates rates = monitor.worker_rates(NodeId(1), at(3));
  ASSERT_TRUE(rates.shares.has_value());
  EXPECT_DOUBLE_EQ(rates.shares->compute, 0.5);
  EXPECT_DOUBLE_EQ(rates.shares->stall, 0.125);
  EXPECT_DOUBLE_EQ(rates.shares->data, 0.25);
  EXPECT_EQ(rates.corrupt_samples, 5u);
  monitor.add(NodeId(1), {.layers = {one, other}, .data_stall_seconds = 0.1, .corrupt_samples = 0},
              at(3));
  EXPECT_FALSE(monitor.worker_rates(NodeId(1), at(3)).shares.has_value()) << "it counts anew";
}

}  // namespace
}  // namespace poseidon::reports_test
