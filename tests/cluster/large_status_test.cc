// A cluster of 64 workers and a network of 500 layers as its operators see it: the coordinator
// itself, its status, the page's JSON and `poseidon top`.

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/terminal/top_format.h"
#include "common/base/text.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/cluster_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::large_status_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kWorkers = 64, kServers = 64, kLayers = 500;
constexpr int kBlock = 5;  // convolutions, and a fully connected one
/// Of one message, with a client that sets nothing: gRPC's own limit.
constexpr std::size_t kMostMessageBytes = 4 << 20;

std::string layer_name(int index) {
  const char* const kind = index % kBlock == 0 ? "fc" : "conv";
  return absl::StrCat("stage", index / 100, "_block", index / kBlock, "_", kind, index % kBlock);
}

/// 500 parameter layers, some of several chunks.
ResolvedJob large_job() {
  ResolvedJob job;
  job.name = "large";
  job.batch_size = 8;
  job.iterations = 1000;
  for (int i = 0; i < kLayers; ++i) {
    const bool is_fully_connected = i % kBlock == 0;
    const std::int64_t inputs = is_fully_connected ? 2048 : 64 * (1 + i % 7);
    job.layers.push_back({layer_name(i),
                          is_fully_connected ? "fully_connected" : "convolution",
                          {512, inputs},
                          512 * inputs,
                          is_fully_connected});
  }
  job.sync.cost = "bytes";
  job.sync.chunk_bytes = 1 << 20;
  job.learning_rate = [](Iteration) { return 0.1; };
  return job;
}

class LargeStatus : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              absl::StrCat("poseidon_large_status_test_", ::getpid());
    std::filesystem::remove_all(folder_);
    auto state = StateDirectory::open(folder_ / "state");
    ASSERT_TRUE(state.ok()) << state.status();
    ClusterDisk disk;
    disk.background = std::make_unique<TestBackground>(&tasks_);
    cluster_ = std::make_unique<Cluster>(
        ClusterOptions{},
        [](const std::string&) -> absl::StatusOr<ResolvedJob> { return large_job(); },
        *std::move(state), &clock_, std::move(disk));
    cluster_->tick();
    for (int i = 0; i < kServers; ++i) servers_.push_back(join(v1::NODE_ROLE_SERVER, i));
    for (int i = 0; i < kWorkers; ++i) workers_.push_back(join(v1::NODE_ROLE_WORKER, i));
    v1::SubmitRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_job_json("{}");
    request.set_workers(kWorkers);
    request.set_servers(kServers);
    const auto submitted = cluster_->submit(request);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    run_tasks();
    v1::NodeMessage ready;
    ready.mutable_ready()->set_epoch(1);
    for (const auto* links : {&servers_, &workers_}) {
      for (const auto& link : *links) cluster_->on_message(link.get(), ready);
    }
    ASSERT_EQ(status().state(), "running");
  }
  void TearDown() override {
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<TestLink> join(v1::NodeRole role, int number) {
    const bool is_server = role == v1::NODE_ROLE_SERVER;
    auto link = std::make_shared<TestLink>();
    cluster_->on_open(link);
    v1::NodeMessage message;
    v1::Join& join = *message.mutable_join();
    join.set_protocol_version(kProtocolVersion);
    join.set_role(role);
    join.set_incarnation(7);
    join.set_address(absl::StrCat("10.0.", is_server ? 1 : 2, ".", number, ":4700"));
    join.set_device("cuda:0 (NVIDIA H100 80GB HBM3)");
    join.set_metrics_address(absl::StrCat("10.0.", is_server ? 1 : 2, ".", number, ":9462"));
    if (is_server) {
      join.set_store_identity(absl::StrCat(std::string(30, 'a'), 10 + number));
    }
    cluster_->on_message(link.get(), message);
    EXPECT_TRUE(link->closed.ok()) << link->closed;
    return link;
  }

  /// A second of training: iteration `number`, and what each node has moved since the beginning.
  void train(int number) {
    clock_.advance(std::chrono::seconds(1));
    for (int rank = 0; rank < kWorkers; ++rank) {
      v1::NodeMessage report;
      report.mutable_iteration()->set_epoch(1);
      report.mutable_iteration()->set_iteration(static_cast<std::uint64_t>(number));
      report.mutable_iteration()->set_loss(2.5);
      const auto& link = workers_[static_cast<std::size_t>(rank)];
      cluster_->on_message(link.get(), report);
      v1::NodeMessage message;
      v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
      const auto passes = static_cast<std::uint64_t>(number + 1);
      heartbeat.set_batches(passes);
      for (int i = 0; i < kLayers; ++i) {
        v1::LayerTraffic& layer = *heartbeat.add_layers();
        layer.set_layer(static_cast<std::uint32_t>(i));
        layer.set_sent_bytes(passes * 1'234'567);
        layer.set_received_bytes(passes * 1'234'567);
        layer.set_stall_seconds(static_cast<double>(passes) * (i == 123 ? 0.2 : 1e-4));
        layer.set_forward_seconds(static_cast<double>(passes) * 3.217e-4);
        layer.set_backward_seconds(static_cast<double>(passes) * 6.433e-4);
        layer.set_passes(passes);
        layer.set_sync_seconds(static_cast<double>(passes) * 1.117e-3);
        layer.set_syncs(passes);
      }
      cluster_->on_message(link.get(), message);
    }
    v1::NodeMessage alive;
    alive.mutable_heartbeat();
    for (const auto& link : servers_) cluster_->on_message(link.get(), alive);
    cluster_->tick();
    run_tasks();
  }

  v1::GetStatusResponse status() { return status_of(*cluster_); }
  void run_tasks() { run_all(tasks_); }

  TestClock clock_;
  std::deque<std::function<void()>> tasks_;
  std::filesystem::path folder_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::shared_ptr<TestLink>> servers_, workers_;
};

TEST_F(LargeStatus, HasEveryNodeAndLayerInOneMessage) {
  for (int i = 0; i < 3; ++i) train(i);
  const v1::GetStatusResponse told = status();
  EXPECT_LT(told.ByteSizeLong(), kMostMessageBytes);
  RecordProperty("bytes", static_cast<int>(told.ByteSizeLong()));
  ASSERT_EQ(told.workers_size(), kWorkers);
  for (int i = 0; i < kWorkers; ++i) {
    EXPECT_EQ(told.workers(i).rank(), i);
    EXPECT_EQ(told.workers(i).state(), "running");
  }
  ASSERT_EQ(told.servers_size(), kServers);
  ASSERT_EQ(told.layers_size(), kLayers);
  std::vector<std::uint32_t> owned(kServers);
  for (int i = 0; i < kLayers; ++i) {
    const v1::LayerStatus& layer = told.layers(i);
    EXPECT_EQ(layer.name(), layer_name(i));
    EXPECT_GT(layer.sent_bytes_per_s(), 0.0);
    EXPECT_TRUE(layer.has_measured());
    EXPECT_THAT(layer.scheme(), AnyOf("ps", "sfb"));
    EXPECT_NE(layer.reason(), "");
    EXPECT_EQ(layer.chunks().empty(), layer.scheme() == "sfb") << layer.name();
    std::uint32_t chunks = 0;
    for (const auto& [server, number] : layer.chunks()) {
      ASSERT_LT(server, kServers);
      owned[server] += number;
      chunks += number;
    }
    constexpr std::int64_t kChunkElements = (1 << 20) / 4;
    const std::int64_t wanted =
        layer.scheme() == "sfb" ? 0 : (layer.parameters() + kChunkElements - 1) / kChunkElements;
    EXPECT_EQ(chunks, wanted) << layer.name();
  }
  EXPECT_GT(*std::min_element(owned.begin(), owned.end()), 0u) << "a server without work";
}

TEST_F(LargeStatus, IsOnThePageWhole) {
  for (int i = 0; i < 3; ++i) train(i);
  const std::string text = status_view_to_json(cluster_->view());
  RecordProperty("bytes", static_cast<int>(text.size()));
  EXPECT_LT(text.size(), 512u << 10) << "every two seconds, for each who looks";
  const nlohmann::json page = nlohmann::json::parse(text);
  ASSERT_EQ(page["workers"].size(), std::size_t{kWorkers});
  EXPECT_EQ(page["workers"][63]["address"], "10.0.2.63:4700");
  ASSERT_EQ(page["servers"].size(), std::size_t{kServers});
  ASSERT_EQ(page["layers"].size(), std::size_t{kLayers});
  EXPECT_EQ(page["layers"][499]["name"], layer_name(499));
  EXPECT_GT(page["layers"][499]["measured"]["sync_seconds"], 0.0);
}

TEST_F(LargeStatus, FillsTheScreenOfTopAndNoMore) {
  for (int i = 0; i < 3; ++i) train(i);
  const v1::GetStatusResponse told = status();
  for (const TopSize size :
       {TopSize{.columns = 80, .rows = 24}, TopSize{.columns = 120, .rows = 50},
        TopSize{.columns = 237, .rows = 63}}) {
    const auto lines = top_lines(told, size);
    EXPECT_EQ(lines.size(), size.rows);
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), size.columns);
      EXPECT_TRUE(std::none_of(line.begin(), line.end(), is_control)) << "one row each";
    }
    const auto layers = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.rfind("LAYER", 0) == 0;
    });
    ASSERT_NE(layers, lines.end());
    EXPECT_THAT(*(layers + 1), HasSubstr("conv3")) << "layer 123, which all wait for";
    EXPECT_THAT(lines.back(), HasSubstr(" more: "));
  }
}

}  // namespace
}  // namespace poseidon::large_status_test
