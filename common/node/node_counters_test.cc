#include "common/node/node_counters.h"

#include <atomic>

#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace poseidon::node_counters_test {
namespace {

using testing_support::eventually;

v1::NodeCounters counters_of(const NodeProbe& probe, const TrafficProbe* traffic,
                             const CounterSources& sources) {
  v1::NodeCounters counters;
  fill_counters(probe, traffic, sources, counters);
  return counters;
}

TEST(NodeCounters, CopyWhatTheProbesCount) {
  NodeProbe probe;
  probe.set(NodeGauge::kEpoch, 3);
  probe.count(NodeCount::kRetriesServer, 4);
  probe.count(NodeCount::kRetriesWorker, 5);
  probe.count(NodeCount::kRetriesCoordinator, 6);
  probe.count(NodeCount::kSnapshotsFailed, 2);
  probe.set(NodeGauge::kStreams, 8);
  probe.set(NodeGauge::kPausedStreams, 1);
  probe.set(NodeGauge::kEarlyGradientBytes, 1000);
  probe.set(NodeGauge::kStoreErrors, 7);
  PacedTraffic one, other;
  one.shared_bytes = 10;
  one.sent_bytes = 20;
  other.sent_bytes = 5;
  const auto counters = counters_of(probe, nullptr, {.traffic = {&one, &other}});
  EXPECT_EQ(counters.retries_server(), 4u);
  EXPECT_EQ(counters.retries_worker(), 5u);
  EXPECT_EQ(counters.retries_coordinator(), 6u);
  EXPECT_EQ(counters.snapshots_failed(), 2u);
  EXPECT_EQ(counters.streams(), 8u);
  EXPECT_EQ(counters.paused_streams(), 1u);
  EXPECT_EQ(counters.early_gradient_bytes(), 1000u);
  EXPECT_EQ(counters.store_errors(), 7u);
  EXPECT_EQ(counters.shared_memory_bytes(), 10u);
  EXPECT_EQ(counters.socket_bytes(), 25u);
  EXPECT_FALSE(counters.has_epoch()) << "without a part in a job there is no epoch";
  EXPECT_FALSE(counters.has_certificate_expiry_unix_s());
  EXPECT_FALSE(counters.has_disk_bytes());
  EXPECT_FALSE(counters.has_gpu_celsius());
}

TEST(NodeCounters, ComputingIsTheSumOfTheLayersAndIterationsTheMostOfThem) {
  NodeProbe probe;
  probe.set(NodeGauge::kEpoch, 3);
  TrafficProbe traffic(2);
  traffic.computed(LayerIndex(0), Milliseconds(250), Milliseconds(500));
  traffic.computed(LayerIndex(1), Milliseconds(125), Milliseconds(125));
  traffic.synced(LayerIndex(0), Milliseconds(1));
  traffic.synced(LayerIndex(1), Milliseconds(1));
  traffic.synced(LayerIndex(1), Milliseconds(1));
  const auto counters = counters_of(probe, &traffic, {});
  EXPECT_EQ(counters.epoch(), 3u);
  EXPECT_DOUBLE_EQ(counters.compute_seconds(), 1.0);
  EXPECT_EQ(counters.compute_iterations(), 2u);
}

TEST(NodeCounters, TellWhatTheDiskAndTheGpuSaidLast) {
  std::atomic<std::uint64_t> free{9};
  const DeviceSampler devices([&free] {
    return DeviceFigures{.disk_free_bytes = free.load(),
                         .disk_bytes = 10,
                         .gpu_utilization = 0.5,
                         .gpu_celsius = 70.0};
  });
  const NodeProbe probe;
  const CounterSources sources{.devices = &devices};
  const auto counters = counters_of(probe, nullptr, sources);
  EXPECT_EQ(counters.disk_free_bytes(), 9u) << "the first reading is there at once";
  EXPECT_EQ(counters.disk_bytes(), 10u);
  EXPECT_EQ(counters.gpu_utilization(), 0.5);
  EXPECT_EQ(counters.gpu_celsius(), 70.0);
  free = 4;
  EXPECT_TRUE(
      eventually([&] { return counters_of(probe, nullptr, sources).disk_free_bytes() == 4; }));
}

TEST(NodeCounters, AFolderThatIsNotThereHasNoDisk) {
  EXPECT_FALSE(disk_figures("/nowhere/at/all").disk_bytes);
  EXPECT_GT(disk_figures("/").disk_bytes.value_or(0), 0u);
}

TEST(NodeCounters, RefusedConnectionsHaveTheReasonsThatOccurred) {
  const std::shared_ptr<Security> security = Security::none();
  google::protobuf::RepeatedPtrField<v1::RefusedCount> out;
  fill_refused_connections(*security, out);
  for (const v1::RefusedCount& count : out) EXPECT_GT(count.count(), 0u) << count.reason();
}

}  // namespace
}  // namespace poseidon::node_counters_test
