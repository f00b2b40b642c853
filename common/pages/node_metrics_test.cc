#include "common/pages/node_metrics.h"

#include <zlib.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/support/page_values.h"
#include "tests/support/scrape.h"
#include "tests/support/toy_plan.h"

namespace poseidon::node_metrics_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::histogram_of;
using testing_support::scrape;
using testing_support::value_of;

class NodePage : public ::testing::Test {
 protected:
  NodePage()
      : probe_(std::make_shared<NodeProbe>()),
        traffic_(std::make_shared<TrafficProbe>(2, probe_)),
        job_{.plan = std::make_shared<const Plan>(testing_support::toy_plan(1, 1, {4, 4}, 4)),
             .traffic = traffic_,
             .data = std::make_shared<DataProbe>()} {}

  MetricFamilies page(const std::string& role, const ShownJob& job) const {
    return node_page({.role = role,
                      .probe = probe_.get(),
                      .refusals = &refusals_,
                      .traffic = {&sent_, &sent_},
                      .data_dir = role == "server" ? "/" : ""},
                     job);
  }

  RefusalCounts refusals_;
  PacedTraffic sent_;
  std::shared_ptr<NodeProbe> probe_;
  std::shared_ptr<TrafficProbe> traffic_;
  ShownJob job_;
};

TEST_F(NodePage, AWorkerShowsItsLayersAndItsInput) {
  traffic_->sent(LayerIndex(1), 4096);
  traffic_->received(LayerIndex(1), 512);
  traffic_->stalled(LayerIndex(1), 250'000'000);
  traffic_->computed(LayerIndex(1), Milliseconds(3), Milliseconds(5));
  traffic_->synced(LayerIndex(1), Milliseconds(5));
  traffic_->synced(LayerIndex(1), Milliseconds(6));
  traffic_->synced(LayerIndex(1), std::chrono::seconds(60));
  auto data = std::make_shared<DataProbe>();
  data->stalled(125'000'000);
  data->found_corrupt();
  data->ready(3);
  job_.data = data;
  const MetricFamilies page = this->page("worker", job_);
  const MetricLabels layer = {{"layer", "layer1"}, {"scheme", "ps"}, {"role", "worker"}};
  EXPECT_EQ(value_of(page, "poseidon_layer_sent_bytes_total", layer), 4096.0);
  EXPECT_EQ(value_of(page, "poseidon_layer_received_bytes_total", layer), 512.0);
  const MetricLabels name = {{"layer", "layer1"}};
  EXPECT_EQ(value_of(page, "poseidon_layer_stall_seconds_total", name), 0.25);
  EXPECT_EQ(value_of(page, "poseidon_layer_forward_seconds_total", name), 0.003);
  EXPECT_EQ(value_of(page, "poseidon_layer_backward_seconds_total", name), 0.005);
  const auto* sync = histogram_of(page, "poseidon_layer_sync_seconds", layer);
  ASSERT_NE(sync, nullptr);
  EXPECT_EQ(sync->sample_count, 3u);
  EXPECT_NEAR(sync->sample_sum, 60.011, 1e-9);
  ASSERT_EQ(sync->bucket.size(), LayerTimeHistogram::kBuckets);
  EXPECT_EQ(sync->bucket[3].upper_bound, 0.003);
  EXPECT_EQ(sync->bucket[3].cumulative_count, 0u);
  EXPECT_EQ(sync->bucket[4].upper_bound, 0.01);
  EXPECT_EQ(sync->bucket[4].cumulative_count, 2u);
  EXPECT_EQ(sync->bucket.back().cumulative_count, 3u);
  EXPECT_TRUE(std::isinf(sync->bucket.back().upper_bound));
  EXPECT_EQ(value_of(page, "poseidon_data_stall_seconds_total"), 0.125);
  EXPECT_EQ(value_of(page, "poseidon_data_corrupt_samples_total"), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_data_ready_batches"), 3.0);
}

TEST_F(NodePage, AWorkerShowsItsIterations) {
  probe_->iteration(Milliseconds(20), 32, 0.75);
  probe_->iteration(Milliseconds(40), 32, 0.5);
  probe_->took(Stage::kForward, Milliseconds(4));
  probe_->count(NodeCount::kRetriesWorker, 2);
  probe_->count(NodeCount::kNotFinite);
  probe_->set(NodeGauge::kRank, 3);
  probe_->set(NodeGauge::kIteration, 12);
  const MetricFamilies page = this->page("worker", job_);
  EXPECT_EQ(value_of(page, "poseidon_images_total"), 64.0);
  EXPECT_EQ(value_of(page, "poseidon_worker_loss"), 0.5);
  EXPECT_EQ(value_of(page, "poseidon_node_rank"), 3.0);
  EXPECT_EQ(value_of(page, "poseidon_worker_iteration"), 12.0);
  EXPECT_EQ(value_of(page, "poseidon_retries_total", {{"peer", "worker"}}), 2.0);
  EXPECT_EQ(value_of(page, "poseidon_retries_total", {{"peer", "server"}}), 0.0);
  EXPECT_EQ(value_of(page, "poseidon_training_faults_total", {{"fault", "not_finite"}}), 1.0);
  const auto* iterations = histogram_of(page, "poseidon_iteration_seconds", {});
  ASSERT_NE(iterations, nullptr);
  EXPECT_EQ(iterations->sample_count, 2u);
  EXPECT_NEAR(iterations->sample_sum, 0.06, 1e-9);
  const auto* forward = histogram_of(page, "poseidon_stage_seconds", {{"stage", "forward"}});
  ASSERT_NE(forward, nullptr);
  EXPECT_EQ(forward->sample_count, 1u);
  EXPECT_EQ(histogram_of(page, "poseidon_stage_seconds", {{"stage", "sum"}}), nullptr);
  EXPECT_EQ(histogram_of(page, "poseidon_stage_seconds", {{"stage", "step"}}), nullptr);
  EXPECT_EQ(histogram_of(page, "poseidon_stage_seconds", {{"stage", "upload"}}), nullptr)
      << "what only traces have measured";
}

TEST_F(NodePage, AWorkerThatLeadsAGroupShowsItsSums) {
  probe_->took({.stage = Stage::kSum, .end = Milliseconds(20)});
  const MetricFamilies page = this->page("worker", job_);
  const auto* sum = histogram_of(page, "poseidon_stage_seconds", {{"stage", "sum"}});
  ASSERT_NE(sum, nullptr);
  EXPECT_EQ(sum->sample_count, 1u);
}

TEST_F(NodePage, AServerShowsWhatIsItsOwn) {
  traffic_->sent(LayerIndex(0), 100);
  traffic_->aggregated(LayerIndex(0), Milliseconds(3));
  probe_->took(Stage::kStep, Milliseconds(1));
  probe_->count(NodeCount::kSnapshotsSealed);
  probe_->count(NodeCount::kSnapshotBytes, 4096);
  probe_->set(NodeGauge::kStoreSnapshots, 3);
  probe_->set(NodeGauge::kPausedStreams, 1);
  refusals_.add(DataRefusal::kEpoch);
  sent_.shared_bytes = 7;
  sent_.sent_bytes = 5;
  const MetricFamilies page = this->page("server", job_);
  EXPECT_EQ(value_of(page, "poseidon_layer_sent_bytes_total",
                     {{"layer", "layer0"}, {"scheme", "ps"}, {"role", "server"}}),
            100.0);
  EXPECT_NEAR(
      value_of(page, "poseidon_layer_aggregation_seconds_total", {{"layer", "layer0"}}).value(),
      0.003, 1e-9);
  EXPECT_EQ(value_of(page, "poseidon_snapshots_total", {{"result", "sealed"}}), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_snapshot_written_bytes_total"), 4096.0);
  EXPECT_EQ(value_of(page, "poseidon_store_snapshots"), 3.0);
  EXPECT_EQ(value_of(page, "poseidon_server_paused_streams"), 1.0);
  EXPECT_EQ(
      value_of(page, "poseidon_refused_messages_total", {{"reason", "epoch"}, {"role", "server"}}),
      1.0);
  EXPECT_EQ(value_of(page, "poseidon_transport_sent_bytes_total", {{"path", "shared_memory"}}),
            14.0);
  EXPECT_EQ(value_of(page, "poseidon_transport_sent_bytes_total", {{"path", "socket"}}), 10.0);
  EXPECT_GT(value_of(page, "poseidon_disk_bytes"), 0.0);
  const auto* step = histogram_of(page, "poseidon_stage_seconds", {{"stage", "step"}});
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->sample_count, 1u);
  for (const char* workers : {"poseidon_layer_stall_seconds_total", "poseidon_images_total",
                              "poseidon_iteration_seconds", "poseidon_worker_loss"}) {
    EXPECT_EQ(value_of(page, workers), std::nullopt) << workers;
  }
}

/// What node_metrics.h says of the number of series, and that no family comes twice, which
/// Prometheus would refuse.
TEST_F(NodePage, SeriesAreAsManyAsPromised) {
  const auto series_of = [](const MetricFamilies& page) {
    std::size_t series = 0;
    for (const prometheus::MetricFamily& family : page) {
      for (const prometheus::ClientMetric& metric : family.metric) {
        series += family.type == prometheus::MetricType::Histogram
                      ? metric.histogram.bucket.size() + 2
                      : 1;
      }
    }
    return series;
  };
  for (const auto& [role, per_layer] : {std::pair("worker", 22u), {"server", 3u}}) {
    std::set<std::string> names;
    const MetricFamilies page = this->page(role, job_);
    for (const prometheus::MetricFamily& family : page) {
      EXPECT_TRUE(names.insert(family.name).second) << family.name;
    }
    EXPECT_LT(series_of(page), 520u + 2 * per_layer) << role;
    ShownJob three = job_;
    three.plan = std::make_shared<const Plan>(testing_support::toy_plan(1, 1, {4, 4, 4}, 4));
    three.traffic = std::make_shared<TrafficProbe>(3, probe_);
    EXPECT_EQ(series_of(this->page(role, three)), series_of(page) + per_layer) << role;
  }
}

TEST_F(NodePage, TheLayersOfAJobGoWithIt) {
  LoopPulse pulse("heartbeats", SystemClock().now());
  auto metrics = NodeMetrics::serve("127.0.0.1:0", {.role = "worker",
                                                    .probe = probe_.get(),
                                                    .refusals = &refusals_,
                                                    .traffic = {},
                                                    .pulse = &pulse});
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  const std::string layer =
      "poseidon_layer_sent_bytes_total{layer=\"layer1\",scheme=\"ps\",role=\"worker\"} 0";
  (*metrics)->show(job_);
  const std::string during = scrape((*metrics)->address());
  EXPECT_THAT(during, HasSubstr(layer));
  EXPECT_THAT(during, HasSubstr("poseidon_node_rank 0"));
  EXPECT_THAT(during, HasSubstr("poseidon_process_cpu_seconds_total "));
  (*metrics)->show({});
  const std::string afterwards = scrape((*metrics)->address());
  EXPECT_THAT(afterwards, HasSubstr("poseidon_images_total 0"));
  for (const char* of_job : {"layer1", "poseidon_data", "poseidon_node_rank", "_worker_loss"}) {
    EXPECT_THAT(afterwards, Not(HasSubstr(of_job)));
  }
}

TEST(MetricsServer, ATakenAddressIsNamed) {
  const LoopPulse pulse("heartbeats", SystemClock().now());
  const auto page = [] { return MetricFamilies(); };
  auto first = MetricsServer::start("127.0.0.1:0", Security::none(), page, &pulse);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::start((*first)->address(), Security::none(), page, &pulse);
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MetricsServer::start("here", Security::none(), page, &pulse).status()));
}

/// They would blind Prometheus.
TEST(MetricsServer, SilentClientsAreCutOff) {
  const LoopPulse pulse("heartbeats", SystemClock().now());
  const HttpLimits limits{.threads = 2, .request_timeout_s = 1};
  const auto server = MetricsServer::start(
      "127.0.0.1:0", Security::none(), [] { return MetricFamilies(); }, &pulse, limits);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto clients = testing_support::silent_clients((*server)->address(), limits);
  EXPECT_THAT(scrape((*server)->address()), HasSubstr("200 OK"));
}

TEST(MetricsServer, AnswersOnlyWhatItHas) {
  const LoopPulse pulse("heartbeats", SystemClock().now());
  const auto page = [] { return MetricFamilies{single_gauge("poseidon_answer", "Of all", 42)}; };
  const auto server = MetricsServer::start("127.0.0.1:0", Security::none(), page, &pulse);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->url(), "http://" + (*server)->address() + "/metrics");
  const auto ask = [&](const std::string& request) {
    return testing_support::answer_to((*server)->address(), request + "\r\nHost: x\r\n\r\n");
  };
  const std::string shown = ask("GET /metrics HTTP/1.1");
  EXPECT_THAT(shown, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(shown, HasSubstr("\nposeidon_answer 42\n"));
  EXPECT_THAT(ask("GET / HTTP/1.1"), HasSubstr(" 404 "));
  EXPECT_THAT(ask("DELETE /metrics HTTP/1.1"), HasSubstr(" 405 "));
  const std::string refuses_gzip = ask("GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip;q=0, br");
  EXPECT_THAT(refuses_gzip, HasSubstr("\nposeidon_answer 42\n"));

  const std::string packed = ask("GET /metrics HTTP/1.1\r\nAccept-Encoding: br, gzip;q=0.9");
  EXPECT_THAT(packed, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_EQ(packed.substr(packed.find("\r\n\r\n") + 4),
            gzipped(shown.substr(shown.find("\r\n\r\n") + 4)));
}

/// The threads that answer go on when the daemon's own loop hangs; the metrics still come, the
/// health does not.
TEST(MetricsServer, TellsWhetherTheLoopTurns) {
  LoopPulse pulse("heartbeats", SystemClock().now());
  const auto server = MetricsServer::start(
      "127.0.0.1:0", Security::none(), [] { return MetricFamilies(); }, &pulse);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto health = [&] {
    return testing_support::answer_to((*server)->address(), "GET /healthz HTTP/1.0\r\n\r\n");
  };
  EXPECT_THAT(health(), AllOf(HasSubstr(" 200 OK\r\n"), EndsWith("\r\n\r\nok\n")));
  pulse.turn(SystemClock().now() - kLoopPatience);
  EXPECT_THAT(health(),
              AllOf(HasSubstr(" 503 "),
                    HasSubstr("\r\n\r\nthe loop of heartbeats has been silent for 30 s")));
  EXPECT_THAT(scrape((*server)->address()), HasSubstr("200 OK"));
  pulse.turn(SystemClock().now());
  EXPECT_THAT(health(), HasSubstr(" 200 OK\r\n"));
}

TEST(Gzipped, IsReadByZlib) {
  std::string text;
  for (int i = 0; i < 10000; ++i)
    text += "poseidon_layer_sent_bytes_total{layer=\"fc6\"} " + std::to_string(i);
  const std::string packed = gzipped(text);
  EXPECT_LT(packed.size(), text.size() / 4);
  z_stream stream{};
  ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  std::string back(text.size() + 1, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(back.data());
  stream.avail_out = static_cast<uInt>(back.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  back.resize(stream.total_out);
  inflateEnd(&stream);
  EXPECT_EQ(back, text);
}

/// Every daemon's stop waits for it.
TEST(MetricsServer, StopsAtOnce) {
  double slowest_s = 0.0;
  const LoopPulse pulse("heartbeats", SystemClock().now());
  for (int i = 0; i < 5; ++i) {
    auto server = MetricsServer::start(
        "127.0.0.1:0", Security::none(), [] { return MetricFamilies(); }, &pulse);
    ASSERT_TRUE(server.ok()) << server.status();
    scrape((*server)->address());
    const auto since = std::chrono::steady_clock::now();
    server->reset();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
    slowest_s = std::max(slowest_s, took.count());
  }
  EXPECT_LT(slowest_s, 1.0);
}

}  // namespace
}  // namespace poseidon::node_metrics_test
