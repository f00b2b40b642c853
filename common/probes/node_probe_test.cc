#include "common/probes/node_probe.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace poseidon::node_probe_test {
namespace {

template <typename Histogram>
class TimeHistograms : public ::testing::Test {};
using Histograms = ::testing::Types<TimeHistogram, LayerTimeHistogram>;
TYPED_TEST_SUITE(TimeHistograms, Histograms);

TYPED_TEST(TimeHistograms, CountEachTimeInTheBucketThatHoldsIt) {
  TypeParam times;
  times.add(Nanoseconds(100'000));  // a bound belongs to the bucket below
  times.add(Nanoseconds(100'001));
  times.add(std::chrono::seconds(301));
  EXPECT_EQ(times.in(0), 1u);
  EXPECT_EQ(times.in(1), 1u);
  EXPECT_EQ(times.in(TypeParam::kBuckets - 1), 1u);
  EXPECT_EQ(times.count(), 3u);
  EXPECT_NEAR(times.seconds(), 301.0002, 1e-5);
}

TEST(TimeHistogram, TellsTimesApartThatALayersDoesNot) {
  EXPECT_TRUE(std::is_sorted(kFineBoundsS.begin(), kFineBoundsS.end()));
  EXPECT_TRUE(std::is_sorted(kCoarseBoundsS.begin(), kCoarseBoundsS.end()));
  EXPECT_EQ(kFineBoundsS.front(), kCoarseBoundsS.front());
  EXPECT_EQ(kFineBoundsS.back(), kCoarseBoundsS.back());
  for (std::size_t i = 1; i < kFineBoundsS.size(); ++i) {
    EXPECT_LT(kFineBoundsS[i] / kFineBoundsS[i - 1], i < 43 ? 1.45 : 1.81) << kFineBoundsS[i];
  }
  TimeHistogram fine;
  LayerTimeHistogram coarse;
  for (const int ms : {12, 20}) {
    fine.add(Milliseconds(ms));
    coarse.add(Milliseconds(ms));
  }
  const auto most = [](const auto& times) {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < times.kBuckets; ++i) found = std::max(found, times.in(i));
    return found;
  };
  EXPECT_EQ(most(fine), 1u);
  EXPECT_EQ(most(coarse), 2u);
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
}  // namespace poseidon::node_probe_test
