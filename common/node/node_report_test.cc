#include "common/node/node_report.h"

#include "gtest/gtest.h"

namespace poseidon::node_report_test {
namespace {

TEST(NodeReport, HeartbeatsCarryTotalsAndOnlyTheReasonsThatOccurred) {
  TrafficProbe traffic(2);
  traffic.sent(LayerIndex(1), 100);
  traffic.sent(LayerIndex(1), 20);
  traffic.received(LayerIndex(0), 7);
  traffic.stalled(LayerIndex(0), 1500000000);
  traffic.computed(LayerIndex(0), Milliseconds(250), Milliseconds(500));
  traffic.computed(LayerIndex(0), Milliseconds(250), Milliseconds(750));
  traffic.synced(LayerIndex(1), Milliseconds(125));
  for (int i = 0; i < 3; ++i) traffic.batch_passed();
  traffic.awaited().set({{.layer = LayerIndex(1),
                          .chunk = ChunkId(0),
                          .iteration = 55,
                          .ranks = {WorkerRank(2)},
                          .server = ServerIndex(0)},
                         {.layer = LayerIndex(0),
                          .chunk = std::nullopt,
                          .iteration = 55,
                          .ranks = {},
                          .server = std::nullopt}});
  RefusalCounts refusals;
  refusals.add(DataRefusal::kSize);
  v1::Heartbeat heartbeat;
  DataProbe data;
  data.stalled(1'500'000'000);
  data.found_corrupt();
  fill_heartbeat_totals(&traffic, &data, refusals, heartbeat);
  EXPECT_EQ(heartbeat.data_stall_seconds(), 1.5);
  EXPECT_EQ(heartbeat.corrupt_samples(), 1u);
  EXPECT_EQ(heartbeat.batches(), 3u);
  ASSERT_EQ(heartbeat.layers_size(), 2);
  EXPECT_EQ(heartbeat.layers(1).sent_bytes(), 120u);
  EXPECT_EQ(heartbeat.layers(0).received_bytes(), 7u);
  EXPECT_DOUBLE_EQ(heartbeat.layers(0).stall_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(heartbeat.layers(0).forward_seconds(), 0.5);
  EXPECT_DOUBLE_EQ(heartbeat.layers(0).backward_seconds(), 1.25);
  EXPECT_EQ(heartbeat.layers(0).passes(), 2u);
  EXPECT_EQ(heartbeat.layers(0).syncs(), 0u);
  EXPECT_DOUBLE_EQ(heartbeat.layers(1).sync_seconds(), 0.125);
  EXPECT_EQ(heartbeat.layers(1).syncs(), 1u);
  ASSERT_EQ(heartbeat.awaited_size(), 2);
  EXPECT_EQ(heartbeat.awaited(0).layer(), 1u);
  EXPECT_EQ(heartbeat.awaited(0).chunk(), 1u) << "counted from 1, as the server is";
  EXPECT_EQ(heartbeat.awaited(0).server(), 1u);
  EXPECT_EQ(heartbeat.awaited(0).iteration(), 55u);
  ASSERT_EQ(heartbeat.awaited(0).ranks_size(), 1);
  EXPECT_EQ(heartbeat.awaited(0).ranks(0), 2u);
  EXPECT_EQ(heartbeat.awaited(1).chunk(), 0u) << "factors";
  ASSERT_EQ(heartbeat.refused_size(), 1);
  EXPECT_EQ(heartbeat.refused(0).reason(), "size");
  EXPECT_EQ(heartbeat.refused(0).count(), 1u);
}

TEST(NodeReport, WithoutAJobThereAreNoLayers) {
  v1::Heartbeat heartbeat;
  fill_heartbeat_totals(nullptr, nullptr, RefusalCounts{}, heartbeat);
  EXPECT_EQ(heartbeat.layers_size(), 0);
}

}  // namespace
}  // namespace poseidon::node_report_test
