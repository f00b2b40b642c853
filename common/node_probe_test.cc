#include "common/node_probe.h"

#include "gtest/gtest.h"

namespace poseidon {
namespace {

TEST(TimeHistogram, CountsEachTimeInTheBucketThatHoldsIt) {
  TimeHistogram times;
  times.add(Nanoseconds(100'000));  // a bound belongs to the bucket below
  times.add(Nanoseconds(100'001));
  times.add(Milliseconds(250));
  times.add(std::chrono::seconds(301));
  EXPECT_EQ(times.in(0), 1u);
  EXPECT_EQ(times.in(1), 1u);
  EXPECT_EQ(times.in(7), 1u);
  EXPECT_EQ(times.in(TimeHistogram::kBuckets - 1), 1u);
  EXPECT_EQ(times.count(), 4u);
  EXPECT_NEAR(times.seconds(), 301.2502, 1e-5);
}

TEST(NodeProbe, GaugePartsAddUpAndGoWithTheirOwners) {
  const auto probe = std::make_shared<NodeProbe>();
  GaugePart first(probe, NodeGauge::kSendQueue);
  first.set(5);
  {
    GaugePart second(probe, NodeGauge::kSendQueue);
    second.set(2);
    second.set(3);
    EXPECT_EQ(probe->value(NodeGauge::kSendQueue), 8);
  }
  EXPECT_EQ(probe->value(NodeGauge::kSendQueue), 5);
  GaugePart moved(std::move(first));
  EXPECT_EQ(probe->value(NodeGauge::kSendQueue), 5);
  moved = {};
  EXPECT_EQ(probe->value(NodeGauge::kSendQueue), 0);
}

}  // namespace
}  // namespace poseidon
