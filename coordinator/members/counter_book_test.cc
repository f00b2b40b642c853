#include "coordinator/members/counter_book.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace poseidon::counter_book_test {
namespace {

constexpr NodeId kNode(7), kOther(8);

void refuse(google::protobuf::RepeatedPtrField<v1::RefusedCount>& list, const std::string& reason,
            std::uint64_t count) {
  v1::RefusedCount& added = *list.Add();
  added.set_reason(reason);
  added.set_count(count);
}

TEST(CounterBook, KeepsTheNewestAndCountsReports) {
  CounterBook book;
  EXPECT_EQ(book.of(kNode), nullptr);
  v1::Heartbeat heartbeat;
  book.take(kNode, heartbeat);
  EXPECT_EQ(book.of(kNode), nullptr) << "a node of an earlier version sends no counters";
  heartbeat.mutable_counters()->set_retries_server(1);
  refuse(*heartbeat.mutable_refused(), "length", 3);
  refuse(*heartbeat.mutable_counters()->mutable_refused_connections(), "no_certificate", 5);
  book.take(kNode, heartbeat);
  heartbeat.mutable_counters()->set_retries_server(2);
  book.take(kNode, heartbeat);
  book.take(kNode, v1::Heartbeat());
  ASSERT_NE(book.of(kNode), nullptr);
  const v1::CountersStatus& kept = *book.of(kNode);
  EXPECT_EQ(kept.reports(), 2u);
  EXPECT_EQ(kept.counters().retries_server(), 2u);
  ASSERT_EQ(kept.refused_messages_size(), 1);
  EXPECT_EQ(kept.refused_messages(0).reason(), "length");
  EXPECT_EQ(kept.refused_messages(0).count(), 3u);
  ASSERT_EQ(kept.counters().refused_connections_size(), 1);
  EXPECT_EQ(kept.counters().refused_connections(0).count(), 5u);
  EXPECT_EQ(book.of(kOther), nullptr);
  book.remove(kNode);
  EXPECT_EQ(book.of(kNode), nullptr);
}

TEST(CounterBook, LeavesOutWhatNoCounterCanBe) {
  CounterBook book;
  v1::Heartbeat heartbeat;
  v1::NodeCounters& counters = *heartbeat.mutable_counters();
  counters.set_compute_seconds(-1.0);
  counters.set_gpu_utilization(std::numeric_limits<double>::quiet_NaN());
  counters.set_gpu_celsius(std::numeric_limits<double>::infinity());
  for (int i = 0; i < 1000; ++i) {
    refuse(*counters.mutable_refused_connections(), "a\n" + std::string(1000, 'b'), 1);
    refuse(*heartbeat.mutable_refused(), "c", 1);
  }
  book.take(kNode, heartbeat);
  ASSERT_NE(book.of(kNode), nullptr);
  const v1::CountersStatus& kept = *book.of(kNode);
  EXPECT_EQ(kept.counters().compute_seconds(), 0.0);
  EXPECT_FALSE(kept.counters().has_gpu_utilization());
  EXPECT_FALSE(kept.counters().has_gpu_celsius());
  EXPECT_EQ(kept.refused_messages_size(), CounterBook::kMaxReasons);
  ASSERT_EQ(kept.counters().refused_connections_size(), CounterBook::kMaxReasons);
  const std::string& reason = kept.counters().refused_connections(0).reason();
  EXPECT_LE(reason.size(), CounterBook::kMaxReasonBytes);
  EXPECT_EQ(reason.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace poseidon::counter_book_test
