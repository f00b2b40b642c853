#include "coordinator/watch/refusal_totals.h"

#include <string>

#include "gtest/gtest.h"

namespace poseidon::refusal_totals_test {
namespace {

v1::Heartbeat heartbeat(const std::string& reason, std::uint64_t count) {
  v1::Heartbeat message;
  v1::RefusedCount* refused = message.add_refused();
  refused->set_reason(reason);
  refused->set_count(count);
  return message;
}

TEST(RefusalTotalsTest, SumsTheCoordinatorsAndTheNodesTotals) {
  RefusalTotals totals;
  EXPECT_EQ(totals.add_own("stale"), 1U);
  EXPECT_EQ(totals.add_own("stale"), 2U);
  totals.report(NodeId(1), heartbeat("stale", 3));
  totals.report(NodeId(1), heartbeat("stale", 5));  // a running total
  totals.report(NodeId(2), heartbeat("torn", 7));
  EXPECT_EQ(totals.own(), (RefusalTotals::ByReason{{"stale", 2}}));
  EXPECT_EQ(totals.sum(), (RefusalTotals::ByReason{{"stale", 7}, {"torn", 7}}));
}

TEST(RefusalTotalsTest, KeepsTheTotalsOfANodeThatLeft) {
  RefusalTotals totals;
  totals.report(NodeId(1), heartbeat("torn", 7));
  totals.on_departure(NodeId(1));
  totals.on_departure(NodeId(1));
  totals.on_departure(NodeId(9));
  EXPECT_EQ(totals.sum(), (RefusalTotals::ByReason{{"torn", 7}}));
}

TEST(RefusalTotalsTest, ANodeCannotMakeItHoardText) {
  RefusalTotals totals;
  for (int i = 0; i < 100; ++i) {
    totals.report(NodeId(1), heartbeat(std::to_string(1000 + i) + std::string(1000, 'x'), 1));
  }
  EXPECT_EQ(totals.sum().size(), 64U);
  EXPECT_EQ(totals.sum().begin()->first.size(), 64U);
  totals.on_departure(NodeId(1));
  totals.report(NodeId(2), heartbeat("another", 1));
  totals.on_departure(NodeId(2));
  EXPECT_EQ(totals.sum().size(), 64U);
}

}  // namespace
}  // namespace poseidon::refusal_totals_test
