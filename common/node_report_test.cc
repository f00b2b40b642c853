#include "common/node_report.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// What an HTTP GET of /metrics answers.
std::string scrape(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t n = 0; (n = recv(fd, part, sizeof part, 0)) > 0;) {
    answer.append(part, static_cast<std::size_t>(n));
  }
  close(fd);
  return answer;
}

TEST(NodeReport, HeartbeatsCarryTotalsAndOnlyTheReasonsThatOccurred) {
  TrafficProbe traffic(2);
  traffic.sent(LayerIndex(1), 100);
  traffic.sent(LayerIndex(1), 20);
  traffic.received(LayerIndex(0), 7);
  traffic.stalled(LayerIndex(0), 1500000000);
  traffic.computed(LayerIndex(0), Milliseconds(250), Milliseconds(500));
  traffic.computed(LayerIndex(0), Milliseconds(250), Milliseconds(750));
  traffic.synced(LayerIndex(1), Milliseconds(125));
  RefusalCounts refusals;
  refusals.add(DataRefusal::kSize);
  v1::Heartbeat heartbeat;
  DataProbe data;
  data.stalled(1'500'000'000);
  data.found_corrupt();
  fill_heartbeat_totals(&traffic, &data, refusals, heartbeat);
  EXPECT_EQ(heartbeat.data_stall_seconds(), 1.5);
  EXPECT_EQ(heartbeat.corrupt_samples(), 1u);
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
  ASSERT_EQ(heartbeat.refused_size(), 1);
  EXPECT_EQ(heartbeat.refused(0).reason(), "size");
  EXPECT_EQ(heartbeat.refused(0).count(), 1u);
}

TEST(NodeReport, WithoutAJobThereAreNoLayers) {
  v1::Heartbeat heartbeat;
  fill_heartbeat_totals(nullptr, nullptr, RefusalCounts{}, heartbeat);
  EXPECT_EQ(heartbeat.layers_size(), 0);
}

TEST(NodeReport, PrometheusSeesLayersWhileAJobRuns) {
  RefusalCounts refusals;
  refusals.add(DataRefusal::kEpoch);
  auto metrics = NodeMetrics::serve("127.0.0.1:0", "worker", &refusals);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  auto traffic = std::make_shared<TrafficProbe>(2);
  traffic->sent(LayerIndex(1), 4096);
  traffic->stalled(LayerIndex(1), 250000000);
  traffic->synced(LayerIndex(1), Milliseconds(5));
  traffic->synced(LayerIndex(1), Milliseconds(6));
  traffic->synced(LayerIndex(1), std::chrono::seconds(60));
  auto data = std::make_shared<DataProbe>();
  data->stalled(125'000'000);
  data->found_corrupt();
  (*metrics)->show(std::make_shared<const Plan>(testing_support::toy_plan(1, 1, {4, 4}, 4)),
                   traffic, data);
  const std::string during = scrape((*metrics)->address());
  EXPECT_THAT(during, HasSubstr("poseidon_layer_sent_bytes_total{layer=\"layer1\",scheme=\"ps\","
                                "role=\"worker\"} 4096"));
  EXPECT_THAT(during, HasSubstr("poseidon_layer_stall_seconds_total{layer=\"layer1\"} 0.25"));
  const std::string sync = "{layer=\"layer1\",scheme=\"ps\",role=\"worker\"";
  EXPECT_THAT(during, HasSubstr("poseidon_layer_sync_seconds_count" + sync + "} 3"));
  for (const auto& [bound, count] : {std::pair("0.005", 1), {"0.01", 2}, {"10", 2}, {"+Inf", 3}}) {
    EXPECT_THAT(during, HasSubstr("poseidon_layer_sync_seconds_bucket" + sync + ",le=\"" + bound +
                                  "\"} " + std::to_string(count)));
  }
  EXPECT_THAT(during,
              HasSubstr("poseidon_refused_messages_total{reason=\"epoch\",role=\"worker\"} 1"));
  EXPECT_THAT(during, HasSubstr("poseidon_data_stall_seconds_total 0.125"));
  EXPECT_THAT(during, HasSubstr("poseidon_data_corrupt_samples_total 1"));
  (*metrics)->show(nullptr, nullptr);
  const std::string afterwards = scrape((*metrics)->address());
  EXPECT_THAT(afterwards, Not(HasSubstr("layer1")));
  EXPECT_THAT(afterwards, Not(HasSubstr("poseidon_data")));
}

TEST(NodeReport, ATakenAddressIsNamed) {
  RefusalCounts refusals;
  auto first = NodeMetrics::serve("127.0.0.1:0", "server", &refusals);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = NodeMetrics::serve((*first)->address(), "server", &refusals);
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace poseidon
