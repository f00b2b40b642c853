#include "coordinator/watch/event_list.h"

#include "common/base/text.h"
#include "gtest/gtest.h"

namespace poseidon::event_list_test {
namespace {

TEST(EventList, KeepsTheNewestAndTheirNumbers) {
  EventList events;
  for (std::int64_t i = 1; i <= static_cast<std::int64_t>(EventList::kMaxEvents) + 10; ++i) {
    events.add(EventKind::kJoin, std::to_string(i), i * 1000);
  }
  ASSERT_EQ(events.all().size(), EventList::kMaxEvents);
  EXPECT_EQ(events.all().front().number, 11u);
  EXPECT_EQ(events.all().front().text, "11");
  EXPECT_EQ(events.all().back().number, EventList::kMaxEvents + 10);
  EXPECT_EQ(events.all().back().time_unix_ms, 266'000);
}

TEST(EventList, CheckpointsPushOutNothingElse) {
  EventList events;
  events.add(EventKind::kLoss, "worker 3", 0);
  for (std::size_t i = 0; i < 3 * EventList::kMaxEvents; ++i) {
    events.add(EventKind::kCheckpoint, std::to_string(i), 0);
  }
  ASSERT_EQ(events.all().size(), EventList::kMaxCheckpoints + 1);
  EXPECT_EQ(events.all().front().text, "worker 3");
  EXPECT_EQ(events.all().back().text, std::to_string(3 * EventList::kMaxEvents - 1));
  // And are pushed out themselves.
  for (std::size_t i = 0; i < EventList::kMaxEvents; ++i) events.add(EventKind::kJob, "j", 0);
  EXPECT_EQ(events.all().size(), EventList::kMaxEvents);
  EXPECT_EQ(events.all().front().kind, EventKind::kJob);
  for (std::size_t i = 0; i < EventList::kMaxCheckpoints; ++i) {
    events.add(EventKind::kCheckpoint, "c", 0);
  }
  EXPECT_EQ(events.all().size(), EventList::kMaxEvents);
  EXPECT_EQ(events.all()[EventList::kMaxEvents - EventList::kMaxCheckpoints].text, "c");
}

TEST(EventList, LongTextsAreCutBetweenLetters) {
  EventList events;
  events.add(EventKind::kAlarm, std::string(EventList::kMaxTextBytes, 'a'), 0);
  events.add(EventKind::kAlarm, std::string(EventList::kMaxTextBytes - 1, 'a') + "\u00e4b", 0);
  EXPECT_EQ(events.all()[0].text, std::string(EventList::kMaxTextBytes, 'a'));
  EXPECT_EQ(events.all()[1].text, std::string(EventList::kMaxTextBytes - 1, 'a') + " ...");
}

TEST(Utf8Prefix, CutsThroughNoLetter) {
  const std::string text = "a\u00e4\u20ac\U0001F600z";  // 1, 2, 3, 4 and 1 bytes
  std::string seen;
  for (std::size_t max = 0; max <= text.size(); ++max) {
    seen += std::to_string(utf8_prefix(text, max).size());
  }
  EXPECT_EQ(seen, "01133366661011");
  EXPECT_EQ(utf8_prefix(text, 100), text);
  // What is no UTF-8 anyway loses no more than a letter could have.
  EXPECT_EQ(utf8_prefix(std::string(10, '\x80'), 9).size(), 6u);
}

}  // namespace
}  // namespace poseidon::event_list_test
