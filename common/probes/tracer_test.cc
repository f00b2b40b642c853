#include "common/probes/tracer.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::tracer_test {
namespace {

TraceSpan span_of(Iteration iteration, Stage stage = Stage::kForward) {
  return {.stage = stage,
          .begin = Nanoseconds(100),
          .end = Nanoseconds(250),
          .iteration = iteration,
          .layer = LayerIndex(3)};
}

TEST(Tracer, KeepsWhatItWasAskedFor) {
  Tracer tracer;
  tracer.record(span_of(5));
  EXPECT_FALSE(tracer.fetch(0, 0));
  tracer.begin(7, 5, 2);
  for (Iteration i = 3; i < 9; ++i) tracer.record(span_of(i));
  tracer.record(span_of(0, Stage::kUpload));  // of one that was not asked for
  tracer.record(span_of(0, Stage::kWrite));   // of no iteration
  EXPECT_FALSE(tracer.fetch(8, 0)) << "another trace";
  EXPECT_TRUE(tracer.on());
  const auto slice = tracer.fetch(7, 0);
  ASSERT_TRUE(slice);
  EXPECT_FALSE(tracer.on());
  ASSERT_EQ(slice->spans.size(), 3U);
  EXPECT_EQ(slice->spans[0].iteration, 5);
  EXPECT_EQ(slice->spans[1].iteration, 6);
  EXPECT_EQ(slice->spans[2].stage, Stage::kWrite);
  EXPECT_EQ(slice->dropped, 0U);
  EXPECT_FALSE(tracer.fetch(7, 0)) << "its memory is gone";
}

TEST(Tracer, IsBoundedAndSaysWhatItDropped) {
  Tracer tracer;
  tracer.begin(1, 0, 1);
  for (std::size_t i = 0; i < Tracer::kMaxEvents + 10; ++i) tracer.record(span_of(0));
  std::size_t seen = 0;
  while (seen < Tracer::kMaxEvents) {
    const auto slice = tracer.fetch(1, seen);
    ASSERT_TRUE(slice);
    EXPECT_EQ(slice->total, Tracer::kMaxEvents);
    EXPECT_EQ(slice->dropped, 10U);
    EXPECT_LE(slice->spans.size(), Tracer::kSliceEvents);
    ASSERT_FALSE(slice->spans.empty());
    seen += slice->spans.size();
  }
  EXPECT_FALSE(tracer.fetch(1, seen));
}

TEST(Tracer, CanBeEndedByWhoNoLongerWantsIt) {
  Tracer tracer;
  tracer.end();
  tracer.begin(7, 0, 10);
  tracer.end();
  EXPECT_FALSE(tracer.on());
  EXPECT_FALSE(tracer.fetch(7, 0));
  tracer.begin(8, 0, 10);
  EXPECT_TRUE(tracer.fetch(8, 0));
}

TEST(Tracer, ManyThreadsRecordWhileTracesComeAndGo) {
  Tracer tracer;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) tracer.record(span_of(1));
    });
  }
  std::size_t events = 0;
  for (std::uint64_t trace = 1; trace <= 50 || events == 0; ++trace) {
    tracer.begin(trace, 1, 1);
    std::this_thread::yield();
    const auto slice = tracer.fetch(trace, 0);
    ASSERT_TRUE(slice);
    for (const TraceSpan& span : slice->spans)
      EXPECT_EQ(span.end, Nanoseconds(250)) << "half of one";
    events += slice->spans.size();
    tracer.fetch(trace, 0, /*discard=*/true);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace poseidon::tracer_test
