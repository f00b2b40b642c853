#include "coordinator/watch/trace_run.h"

#include <algorithm>
#include <map>

#include "common/probes/tracer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::trace_run_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr NodeId kWorker(1), kServer(2);
constexpr Nanoseconds kDeadline = std::chrono::seconds(100);

/// A trace of iterations 10 to 12 of a worker and a server, driven by hand.
class Driver {
 public:
  explicit Driver(std::size_t more_workers = 0)
      : run_(77, head(), members(more_workers), kDeadline) {
    take(run_.begin(now_));
  }

  static v1::TraceHead head() {
    v1::TraceHead head;
    head.set_first_iteration(10);
    head.set_iterations(3);
    return head;
  }
  static std::vector<TraceMember> members(std::size_t more) {
    std::vector<TraceMember> all = {
        {.id = kWorker, .role = NodeRole::kWorker, .index = 0, .address = "w:1"},
        {.id = kServer, .role = NodeRole::kServer, .index = 0, .address = "s:1"}};
    for (std::uint32_t i = 0; i < more; ++i) {
      all.push_back({.id = NodeId(10 + i), .role = NodeRole::kWorker, .index = i + 1});
    }
    return all;
  }

  void take(TraceActions actions) {
    EXPECT_FALSE(done_ && !actions.parts.empty()) << "nothing follows the end";
    for (auto& [node, message] : actions.sends) sent_[node].push_back(std::move(message));
    std::move(actions.parts.begin(), actions.parts.end(), std::back_inserter(parts_));
    done_ = done_ || actions.done;
  }
  void tick(Iteration completed, bool trains = true) {
    take(run_.tick({.completed = completed, .trains = trains, .state = "became failed"}, now_));
  }
  void written() { take(run_.on_written(now_)); }
  void piece(NodeId node, std::uint64_t from, std::uint64_t events, std::uint64_t total,
             std::uint64_t dropped = 0) {
    v1::TracePiece piece;
    piece.set_trace(77);
    piece.set_from(from);
    piece.set_total(total);
    piece.set_dropped(dropped);
    for (std::uint64_t i = 0; i < events; ++i) piece.add_events();
    take(run_.on_piece(node, piece, now_));
  }
  std::vector<std::uint64_t> fetched(NodeId node) {
    std::vector<std::uint64_t> from;
    for (const auto& message : sent_[node]) {
      if (message.has_fetch_trace() && !message.fetch_trace().discard()) {
        from.push_back(message.fetch_trace().from());
      }
    }
    return from;
  }
  bool discarded(NodeId node) {
    return std::any_of(sent_[node].begin(), sent_[node].end(), [](const auto& message) {
      return message.has_fetch_trace() && message.fetch_trace().discard();
    });
  }
  std::vector<std::string> notes() const {
    if (parts_.empty() || !parts_.back().has_tail()) return {"there is no tail"};
    const auto& notes = parts_.back().tail().notes();
    return {notes.begin(), notes.end()};
  }

  TraceRun run_;
  Nanoseconds now_{0};
  std::map<NodeId, std::vector<v1::CoordinatorMessage>> sent_;
  std::vector<v1::TracePart> parts_;
  bool done_ = false;
};

TEST(TraceRun, CollectsPieceByPieceWhenAllIterationsAreSurelyOver) {
  Driver driver;
  ASSERT_TRUE(driver.sent_[kServer].front().has_begin_trace());
  EXPECT_EQ(driver.sent_[kServer].front().begin_trace().first_iteration(), 10U);
  driver.tick(13);  // the last one is done, but its parameters may still be on their way
  EXPECT_THAT(driver.parts_, IsEmpty());
  driver.tick(14);
  ASSERT_EQ(driver.parts_.size(), 1U);
  EXPECT_TRUE(driver.parts_[0].has_head());
  EXPECT_THAT(driver.fetched(kWorker), IsEmpty()) << "the operator has not taken the head yet";
  driver.written();
  driver.piece(kWorker, 0, 2, 3);
  EXPECT_THAT(driver.fetched(kWorker), ElementsAre(0)) << "one piece at a time";
  driver.written();
  EXPECT_THAT(driver.fetched(kWorker), ElementsAre(0, 2));
  driver.piece(kWorker, 2, 1, 3);
  EXPECT_THAT(driver.fetched(kServer), IsEmpty());
  driver.written();
  driver.piece(kServer, 0, 0, 0);
  driver.written();
  EXPECT_TRUE(driver.done_);
  EXPECT_THAT(driver.notes(), IsEmpty());
  EXPECT_FALSE(driver.discarded(kWorker));
}

TEST(TraceRun, LooksAtClocksWhileTheIterationsPass) {
  Driver driver;
  for (int i = 0; i < 20; ++i) {
    v1::ClockEcho echo;
    std::uint64_t number = 0;
    for (const auto& message : driver.sent_[kWorker]) {
      if (message.has_clock()) number = message.clock().number();
    }
    echo.set_number(number);
    driver.now_ += Nanoseconds(100);
    const auto received = static_cast<std::uint64_t>((driver.now_ + Nanoseconds(950)).count());
    echo.set_received_ns(received);
    echo.set_sent_ns(received);
    driver.now_ += Nanoseconds(100);
    driver.take(driver.run_.on_echo(kWorker, echo, driver.now_));
    driver.take(driver.run_.on_echo(kWorker, echo, driver.now_ + Nanoseconds(1)));  // said twice
    driver.tick(5);
  }
  driver.tick(14);
  driver.written();
  driver.piece(kWorker, 0, 0, 0);
  const v1::TraceNode& node = driver.parts_[1].node();
  EXPECT_EQ(node.clock_offset_ns(), 950);
  EXPECT_EQ(node.clock_error_ns(), 100U);
  EXPECT_EQ(node.clock_echoes(), 20U);
  EXPECT_LE(driver.sent_[kWorker].size(), 2 + TraceRun::kMostEchoes);
}

TEST(TraceRun, WhoDoesNotAnswerIsNamed) {
  Driver driver(1);
  driver.tick(14);
  driver.written();
  driver.piece(kWorker, 0, 2, 3);
  driver.written();
  driver.now_ += TraceRun::kAnswerTimeout;
  driver.tick(14);  // the worker is given up, the server asked
  driver.piece(kServer, 0, 1, 1, 9);
  driver.written();
  driver.take(driver.run_.on_gone(NodeId(10), "is gone (it was killed)", driver.now_));
  EXPECT_TRUE(driver.done_);
  EXPECT_THAT(
      driver.notes(),
      ElementsAre("worker 0 (w:1) did not answer within 3 s: some of its events are missing",
                  HasSubstr("server 0 (s:1): 9 events did not fit"),
                  "worker 1 is gone (it was killed): its events are missing"));
  EXPECT_TRUE(driver.discarded(kWorker));
  EXPECT_FALSE(driver.discarded(kServer));
}

TEST(TraceRun, AJobThatEndsGivesWhatThereIs) {
  Driver driver;
  driver.tick(11, /*trains=*/false);
  ASSERT_FALSE(driver.parts_.empty());
  driver.written();
  driver.piece(kWorker, 0, 0, 0);
  driver.written();
  driver.piece(kServer, 0, 0, 0);
  driver.written();
  EXPECT_THAT(driver.notes(), ElementsAre(HasSubstr("the job became failed when 1 of the 3")));
}

TEST(TraceRun, AJobsLastIterationsAreWhole) {
  Driver driver;
  driver.tick(13, /*trains=*/false);
  driver.written();
  driver.take(driver.run_.on_gone(kWorker, "broke its stream", driver.now_));
  driver.piece(kServer, 0, 0, 0);
  driver.written();
  EXPECT_THAT(driver.notes(),
              ElementsAre("worker 0 (w:1) broke its stream: its events are missing"));
}

TEST(TraceRun, TimeIsLimited) {
  Driver driver;
  driver.now_ = kDeadline;
  driver.tick(11);
  driver.written();
  driver.now_ += TraceRun::kCollectTimeout;
  driver.tick(11);
  EXPECT_TRUE(driver.done_);
  EXPECT_THAT(
      driver.notes(),
      ElementsAre(HasSubstr("time is up: iteration 11 is done, 12 is the last one requested"),
                  HasSubstr("worker 0 (w:1) is missing"), HasSubstr("server 0 (s:1) is missing")));
}

TEST(TraceRun, NonsenseIsNotPassedOn) {
  Driver driver;
  driver.tick(14);
  driver.written();
  const std::size_t parts = driver.parts_.size();
  driver.piece(kServer, 0, 1, 1);  // not asked yet
  driver.piece(kWorker, 5, 1, 6);  // not what was asked for
  EXPECT_EQ(driver.parts_.size(), parts);
  driver.piece(kWorker, 0, 0, 5);  // would never end
  EXPECT_EQ(driver.parts_.size(), parts);
  EXPECT_THAT(driver.fetched(kServer), ElementsAre(0));
  driver.piece(kServer, 0, 1, Tracer::kMaxEvents + 1);
  EXPECT_TRUE(driver.done_);
  EXPECT_THAT(driver.notes(), ElementsAre(HasSubstr("worker 0 (w:1) answered nonsense"),
                                          HasSubstr("server 0 (s:1) answered nonsense")));
}

TEST(TraceRun, AnOperatorWhoGoesLeavesNothingBehind) {
  Driver driver;
  driver.take(driver.run_.cancel());
  EXPECT_TRUE(driver.discarded(kWorker));
  EXPECT_TRUE(driver.discarded(kServer));
  driver.tick(14);
  EXPECT_THAT(driver.parts_, IsEmpty());
}

}  // namespace
}  // namespace poseidon::trace_run_test
