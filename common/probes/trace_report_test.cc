#include "common/probes/trace_report.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace poseidon::trace_report_test {
namespace {

TraceSpan span_of(Iteration iteration, Stage stage = Stage::kForward) {
  return {.stage = stage,
          .begin = Nanoseconds(100),
          .end = Nanoseconds(250),
          .iteration = iteration,
          .layer = LayerIndex(3)};
}

TEST(TraceReport, AnswersTheCoordinator) {
  Tracer tracer;
  v1::BeginTrace begin;
  begin.set_trace(9);
  begin.set_first_iteration(5);
  begin.set_iterations(1);
  begin_trace(begin, tracer);
  TraceSpan span = span_of(5, Stage::kSend);
  span.chunk = ChunkId(0);
  span.peer = 2;
  span.bytes = 77;
  tracer.record(span);
  v1::FetchTrace fetch;
  fetch.set_trace(9);
  v1::TracePiece piece;
  ASSERT_TRUE(fetch_trace(fetch, tracer, piece));
  EXPECT_EQ(piece.total(), 1U);
  const v1::TraceEvent& event = piece.events(0);
  EXPECT_EQ(event.stage(), static_cast<std::uint32_t>(Stage::kSend));
  EXPECT_EQ(event.begin_ns(), 100U);
  EXPECT_EQ(event.duration_ns(), 150U);
  EXPECT_EQ(event.iteration(), 5U);
  EXPECT_EQ(event.layer(), 4U);
  EXPECT_EQ(event.chunk(), 1U);
  EXPECT_EQ(event.peer(), 3U);
  EXPECT_EQ(event.bytes(), 77U);
}

TEST(TraceReport, ManyIterationsAreAMistakeAndNothingIsAnsweredToADiscard) {
  Tracer tracer;
  v1::BeginTrace begin;
  begin.set_trace(9);
  begin.set_iterations(UINT64_MAX);
  begin_trace(begin, tracer);
  tracer.record(span_of(static_cast<Iteration>(kMaxTraceIterations)));
  tracer.record(span_of(0));
  v1::FetchTrace fetch;
  fetch.set_trace(9);
  fetch.set_discard(true);
  v1::TracePiece piece;
  EXPECT_FALSE(fetch_trace(fetch, tracer, piece));
  fetch.set_discard(false);
  EXPECT_FALSE(fetch_trace(fetch, tracer, piece)) << "it is gone";
}

}  // namespace
}  // namespace poseidon::trace_report_test
