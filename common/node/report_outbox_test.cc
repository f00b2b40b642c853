#include "common/node/report_outbox.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::report_outbox_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Nanoseconds kNow = std::chrono::seconds(5);

v1::NodeMessage iteration(std::uint64_t number, std::uint64_t epoch = 7) {
  v1::NodeMessage message;
  message.mutable_iteration()->set_epoch(epoch);
  message.mutable_iteration()->set_iteration(number);
  message.mutable_iteration()->set_loss(static_cast<double>(number) + 0.5);
  return message;
}
v1::NodeMessage test(std::uint64_t number) {
  v1::NodeMessage message;
  message.mutable_test()->set_epoch(7);
  message.mutable_test()->set_iteration(number);
  return message;
}
v1::NodeMessage checkpoint(std::uint64_t number, bool stored = true) {
  v1::NodeMessage message;
  message.mutable_checkpoint()->set_epoch(7);
  message.mutable_checkpoint()->set_iteration(number);
  message.mutable_checkpoint()->set_stored(stored);
  return message;
}
v1::NodeMessage ready() {
  v1::NodeMessage message;
  message.mutable_ready()->set_epoch(7);
  return message;
}
v1::NodeMessage model(const std::string& sha256) {
  v1::NodeMessage message;
  message.mutable_model()->set_epoch(7);
  message.mutable_model()->set_sha256(sha256);
  return message;
}
v1::NodeMessage finished() {
  v1::NodeMessage message;
  message.mutable_finished()->set_epoch(7);
  return message;
}

/// All that comes out now: "ready", "i3", "t4", "c4", "model DIGEST", "finished".
std::vector<std::string> drain(ReportOutbox& outbox) {
  std::vector<std::string> names;
  while (const auto message = outbox.next(kNow)) {
    if (message->has_ready()) names.emplace_back("ready");
    if (message->has_finished()) names.emplace_back("finished");
    if (message->has_model()) names.push_back("model " + message->model().sha256());
    if (message->has_test()) names.push_back("t" + std::to_string(message->test().iteration()));
    if (message->has_checkpoint()) {
      names.push_back("c" + std::to_string(message->checkpoint().iteration()));
    }
    if (message->has_iteration()) {
      EXPECT_EQ(message->iteration().epoch(), 7u);
      EXPECT_EQ(message->iteration().loss(),
                static_cast<double>(message->iteration().iteration()) + 0.5);
      names.push_back("i" + std::to_string(message->iteration().iteration()));
    }
  }
  return names;
}

v1::Resumed lacks(std::uint64_t iteration, std::uint64_t test = 0, std::uint64_t checkpoint = 0) {
  v1::Resumed resumed;
  resumed.set_next_iteration(iteration);
  resumed.set_next_test(test);
  resumed.set_next_checkpoint(checkpoint);
  return resumed;
}

class ReportOutboxTest : public ::testing::Test {
 protected:
  void SetUp() override { outbox_.begin(Epoch(7), 2, 0); }
  void add(const std::vector<v1::NodeMessage>& messages) {
    for (const v1::NodeMessage& message : messages) EXPECT_TRUE(outbox_.add(message, kNow));
  }
  ReportOutbox outbox_;
};

TEST_F(ReportOutboxTest, DrawsInTheOrderOfAdding) {
  add({ready(), iteration(0), iteration(1)});
  EXPECT_THAT(drain(outbox_), ElementsAre("ready", "i0", "i1"));
  add({test(2), iteration(2), checkpoint(3), finished()});
  EXPECT_THAT(drain(outbox_), ElementsAre("t2", "i2", "c3", "finished"));
  EXPECT_THAT(drain(outbox_), IsEmpty());
}

TEST_F(ReportOutboxTest, TellsAgainWhatIsLacking) {
  add({ready(), iteration(0), iteration(1), test(2), iteration(2), checkpoint(3), iteration(3),
       test(4), finished()});
  drain(outbox_);
  EXPECT_EQ(outbox_.resume().epoch(), 7u);
  EXPECT_EQ(outbox_.resume().index(), 2u);
  EXPECT_EQ(outbox_.resume().oldest_iteration(), 0u);
  EXPECT_EQ(outbox_.resume().next_iteration(), 4u);
  outbox_.rewind(lacks(2, 3, 4));
  EXPECT_THAT(drain(outbox_), ElementsAre("ready", "i2", "i3", "t4", "finished"));
  outbox_.rewind(lacks(0));
  EXPECT_THAT(drain(outbox_),
              ElementsAre("ready", "i0", "i1", "t2", "i2", "c3", "i3", "t4", "finished"));
}

TEST_F(ReportOutboxTest, ARewindInTheMiddleAndReportsAfterIt) {
  add({ready(), iteration(0), iteration(1), iteration(2)});
  EXPECT_TRUE(outbox_.next(kNow));
  EXPECT_TRUE(outbox_.next(kNow));
  outbox_.rewind(lacks(1));
  add({iteration(3), test(4)});
  EXPECT_THAT(drain(outbox_), ElementsAre("ready", "i1", "i2", "i3", "t4"));
}

TEST_F(ReportOutboxTest, ACoordinatorThatAsksForTheFutureGetsWhatThereWillBe) {
  add({iteration(0)});
  outbox_.rewind(lacks(UINT64_MAX));
  EXPECT_THAT(drain(outbox_), IsEmpty());
  add({iteration(1)});
  EXPECT_THAT(drain(outbox_), ElementsAre("i1"));
}

TEST_F(ReportOutboxTest, ACheckpointThatIsGoneIsNotToldAgain) {
  add({checkpoint(0), checkpoint(1)});
  EXPECT_THAT(drain(outbox_), ElementsAre("c0", "c1"));
  add({checkpoint(0, /*stored=*/false)});
  EXPECT_THAT(drain(outbox_), ElementsAre("c0"));
  outbox_.rewind(v1::Resumed());
  EXPECT_THAT(drain(outbox_), ElementsAre("c1", "c0"))
      << "of the first nothing but that it is gone";
  outbox_.rewind(lacks(0, 0, 2));
  EXPECT_THAT(drain(outbox_), ElementsAre("c0"))
      << "a coordinator that has later ones may wait for it all the same";
}

TEST_F(ReportOutboxTest, OtherEpochsAndOtherMessagesAreNotKept) {
  EXPECT_FALSE(outbox_.add(iteration(0, 6), kNow));
  v1::NodeMessage heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_FALSE(outbox_.add(heartbeat, kNow));
  add({iteration(0)});
  outbox_.begin(Epoch(8), 0, 40);
  EXPECT_FALSE(outbox_.add(iteration(1), kNow));
  EXPECT_EQ(outbox_.resume().next_iteration(), 40u);
  EXPECT_TRUE(outbox_.add(iteration(40, 8), kNow));
  EXPECT_EQ(outbox_.next(kNow)->iteration().iteration(), 40u);
  outbox_.end();
  EXPECT_FALSE(outbox_.epoch());
  EXPECT_FALSE(outbox_.add(iteration(41, 8), kNow));
  EXPECT_FALSE(outbox_.next(kNow));
}

TEST_F(ReportOutboxTest, AReportOutOfTurnIsPassedOnAsItIs) {
  add({iteration(5)});
  EXPECT_EQ(outbox_.next(kNow)->iteration().iteration(), 5u);
  add({iteration(0)});
  EXPECT_EQ(outbox_.next(kNow)->iteration().iteration(), 0u);
}

TEST_F(ReportOutboxTest, BeyondTheBoundTheOldestIterationsGo) {
  const auto kept = static_cast<std::uint64_t>(ReportOutbox::kKeptIterations);
  for (std::uint64_t i = 0; i < kept; ++i) outbox_.add(iteration(i), kNow);
  EXPECT_FALSE(outbox_.overrun());
  for (std::uint64_t i = kept; i < kept + 3; ++i) outbox_.add(iteration(i), kNow);
  EXPECT_TRUE(outbox_.overrun());
  EXPECT_FALSE(outbox_.next(kNow)) << "a stream must not see the gap";
  EXPECT_EQ(outbox_.resume().oldest_iteration(), 3u);
  outbox_.rewind(lacks(0));
  EXPECT_FALSE(outbox_.overrun());
  EXPECT_EQ(outbox_.next(kNow)->iteration().iteration(), 3u);
}

TEST_F(ReportOutboxTest, BeyondTheBoundTheOldestEventsGo) {
  for (std::size_t i = 0; i < ReportOutbox::kKeptEvents; ++i) outbox_.add(test(i), kNow);
  EXPECT_EQ(outbox_.next(kNow)->test().iteration(), 0u);
  constexpr std::uint64_t kLast = ReportOutbox::kKeptEvents + 100;
  outbox_.add(test(kLast), kNow);
  outbox_.add(finished(), kNow);
  EXPECT_EQ(outbox_.next(kNow)->test().iteration(), 2u) << "the second went before it was sent";
  outbox_.rewind(lacks(0, kLast - 1));
  EXPECT_THAT(drain(outbox_), ElementsAre("t" + std::to_string(kLast), "finished"));
}

TEST_F(ReportOutboxTest, SaysHowLongAnIterationHasWaited) {
  const auto at = [](int ms) { return Nanoseconds(Milliseconds(ms)); };
  EXPECT_TRUE(outbox_.add(iteration(0), at(1000)));
  EXPECT_TRUE(outbox_.add(iteration(1), at(1250)));
  EXPECT_EQ(outbox_.next(at(1000))->iteration().age_ms(), 0u);
  EXPECT_EQ(outbox_.next(at(61250))->iteration().age_ms(), 60000u);
  outbox_.rewind(lacks(0));  // a repeated report covers the whole time
  EXPECT_EQ(outbox_.next(at(61250))->iteration().age_ms(), 60250u);
  EXPECT_EQ(outbox_.next(at(1000))->iteration().age_ms(), 0u) << "never less";
}

/// It is announced before each attempt, and after a reconnection.
TEST_F(ReportOutboxTest, TheLastAnnouncedModelIsToldAfterAllIterations) {
  add({iteration(0), model("a"), iteration(1), model("b")});
  EXPECT_THAT(drain(outbox_), ElementsAre("i0", "i1", "model b"));
  add({model("b")});
  EXPECT_THAT(drain(outbox_), ElementsAre("model b")) << "told again, though told before";
  outbox_.rewind(lacks(1));
  EXPECT_THAT(drain(outbox_), ElementsAre("i1", "model b"));
}

}  // namespace
}  // namespace poseidon::report_outbox_test
