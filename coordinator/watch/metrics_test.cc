#include "coordinator/watch/metrics.h"

#include <chrono>
#include <string>
#include <thread>

#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/support/eventually.h"
#include "tests/support/page_values.h"
#include "tests/support/scrape.h"

namespace poseidon::metrics_test {
namespace {

using ::testing::HasSubstr;
using testing_support::eventually;
using testing_support::scrape;
using testing_support::value_of;

TEST(CoordinatorPage, WithoutAJobEverythingThatIsCountedIsThere) {
  const MetricFamilies page = coordinator_page({});
  EXPECT_EQ(value_of(page, "poseidon_members", {{"role", "worker"}, {"state", "running"}}), 0.0);
  EXPECT_EQ(value_of(page, "poseidon_job_state", {{"state", "idle"}}), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_job_state", {{"state", "running"}}), 0.0);
  EXPECT_EQ(value_of(page, "poseidon_recoveries_total", {{"reason", "worker_lost"}}), 0.0);
  EXPECT_EQ(value_of(page, "poseidon_departures_total", {{"role", "server"}, {"how", "lost"}}),
            0.0);
  EXPECT_EQ(value_of(page, "poseidon_refused_messages_total",
                     {{"reason", "stale_epoch"}, {"role", "coordinator"}}),
            0.0);
  EXPECT_EQ(value_of(page, "poseidon_loss"), std::nullopt);
}

TEST(CoordinatorPage, ShowsNodesJobAndCheckpoints) {
  CoordinatorFigures figures;
  figures.nodes = {{"worker", "0", "10.0.0.1:4", "running"},
                   {"worker", "1", "10.0.0.2:4", "lost"},
                   {"worker", "2", "10.0.0.3:4", "running"},
                   {"server", "", "10.0.0.4:4", "idle"}};
  figures.is_cut_off = true;
  figures.counts.iterations = 77;
  figures.counts.jobs.passes = 900;
  figures.counts.jobs_failed = 2;
  figures.counts.jobs_stopped = 4;
  figures.counts.departures[NodeRole::kWorker] = {4, 5};
  figures.counts.jobs.of(EpochEnd::kBetterPlan) = 3;
  figures.counts.jobs.checkpoints_failed = 6;
  figures.refusals["stale_epoch"] = 8;
  figures.refusals["late"] = 2;
  JobFigures& job = figures.job.emplace();
  job.id = "digits-7";
  job.state = "recovering";
  job.iterations = 500;
  job.progress.completed = 120;
  job.progress.loss = 0.25;
  job.progress.test = TestResult{.iteration = 100, .loss = 0.5, .accuracy = 0.75};
  job.progress.images_per_s = 1000.0;
  job.progress.training_seconds = 60.0;
  job.epoch = Epoch(9);
  job.predicted_iteration_s = 0.125;
  job.checkpoint_every = 50;
  job.workers = 3;
  job.begun_with = 4;
  job.checkpoints_kept = 2;
  job.newest = NewestCheckpoint{
      .iteration = 100, .bytes = 4096, .time_unix_s = 1'700'000'000, .seconds = 1.5};
  const MetricFamilies page = coordinator_page(figures);
  EXPECT_EQ(value_of(page, "poseidon_members", {{"role", "worker"}, {"state", "running"}}), 2.0);
  EXPECT_EQ(value_of(page, "poseidon_members", {{"role", "worker"}, {"state", "lost"}}), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_members", {{"role", "server"}, {"state", "idle"}}), 1.0);
  EXPECT_EQ(
      value_of(page, "poseidon_node_state",
               {{"role", "worker"}, {"rank", "1"}, {"address", "10.0.0.2:4"}, {"state", "lost"}}),
      1.0);
  EXPECT_EQ(value_of(page, "poseidon_departures_total", {{"role", "worker"}, {"how", "left"}}),
            4.0);
  EXPECT_EQ(value_of(page, "poseidon_departures_total", {{"role", "worker"}, {"how", "lost"}}),
            5.0);
  EXPECT_EQ(value_of(page, "poseidon_coordinator_cut_off"), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_iterations_total"), 77.0);
  EXPECT_EQ(value_of(page, "poseidon_passes_total"), 900.0);
  EXPECT_EQ(value_of(page, "poseidon_jobs_total", {{"result", "failed"}}), 2.0);
  EXPECT_EQ(value_of(page, "poseidon_jobs_total", {{"result", "stopped"}}), 4.0);
  EXPECT_EQ(value_of(page, "poseidon_recoveries_total", {{"reason", "better_plan"}}), 3.0);
  EXPECT_EQ(value_of(page, "poseidon_checkpoints_total", {{"result", "failed"}}), 6.0);
  EXPECT_EQ(value_of(page, "poseidon_refused_messages_total",
                     {{"reason", "stale_epoch"}, {"role", "coordinator"}}),
            8.0);
  EXPECT_EQ(value_of(page, "poseidon_refused_messages_total",
                     {{"reason", "late"}, {"role", "coordinator"}}),
            2.0);
  EXPECT_EQ(value_of(page, "poseidon_job_state", {{"state", "recovering"}}), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_job_info", {{"id", "digits-7"}}), 1.0);
  EXPECT_EQ(value_of(page, "poseidon_job_iterations"), 500.0);
  EXPECT_EQ(value_of(page, "poseidon_job_iteration"), 120.0);
  EXPECT_EQ(value_of(page, "poseidon_job_workers"), 3.0);
  EXPECT_EQ(value_of(page, "poseidon_job_workers_at_start"), 4.0);
  EXPECT_EQ(value_of(page, "poseidon_job_training_seconds"), 60.0);
  EXPECT_EQ(value_of(page, "poseidon_epoch"), 9.0);
  EXPECT_EQ(value_of(page, "poseidon_images_per_second"), 1000.0);
  EXPECT_EQ(value_of(page, "poseidon_loss"), 0.25);
  EXPECT_EQ(value_of(page, "poseidon_test_loss"), 0.5);
  EXPECT_EQ(value_of(page, "poseidon_test_accuracy"), 0.75);
  EXPECT_EQ(value_of(page, "poseidon_predicted_iteration_seconds"), 0.125);
  EXPECT_EQ(value_of(page, "poseidon_checkpoint_every_iterations"), 50.0);
  EXPECT_EQ(value_of(page, "poseidon_checkpoints"), 2.0);
  EXPECT_EQ(value_of(page, "poseidon_checkpoint_iteration"), 100.0);
  EXPECT_EQ(value_of(page, "poseidon_checkpoint_bytes"), 4096.0);
  EXPECT_EQ(value_of(page, "poseidon_checkpoint_time_seconds"), 1.7e9);
  EXPECT_EQ(value_of(page, "poseidon_checkpoint_duration_seconds"), 1.5);
}

TEST(PrometheusTargets, NameEveryDaemonThatServesMetrics) {
  NodeInfo worker;
  worker.metrics_address = "10.0.0.2:9102";
  NodeInfo server;
  server.role = NodeRole::kServer;
  server.metrics_address = "10.0.0.3:9103";
  const NodeInfo silent;
  const nlohmann::json targets =
      nlohmann::json::parse(prometheus_targets("10.0.0.1:9101", {worker, silent, server}, false));
  EXPECT_EQ(targets, nlohmann::json::parse(R"([
      {"targets": ["10.0.0.1:9101"], "labels": {"daemon": "coordinator"}},
      {"targets": ["10.0.0.2:9102"], "labels": {"daemon": "worker"}},
      {"targets": ["10.0.0.3:9103"], "labels": {"daemon": "server"}}])"));
  EXPECT_EQ(prometheus_targets("", {silent}, false), "[]\n");
}

/// Prometheus asks each as it wants to be asked.
TEST(PrometheusTargets, SayWhoSpeaksTls) {
  NodeInfo near, named, far;
  near.metrics_address = "127.0.0.1:9102";
  named.metrics_address = "127.0.1.1:9104";
  far.metrics_address = "[2001:db8::2]:9103";
  const nlohmann::json targets =
      nlohmann::json::parse(prometheus_targets("10.0.0.1:9101", {near, named, far}, true));
  EXPECT_EQ(targets, nlohmann::json::parse(R"([
      {"targets": ["10.0.0.1:9101"], "labels": {"daemon": "coordinator", "__scheme__": "https"}},
      {"targets": ["127.0.0.1:9102"], "labels": {"daemon": "worker"}},
      {"targets": ["127.0.1.1:9104"], "labels": {"daemon": "worker", "__scheme__": "https"}},
      {"targets": ["[2001:db8::2]:9103"],
       "labels": {"daemon": "worker", "__scheme__": "https"}}])"));
}

class ServedMetrics : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    CoordinatorOptions with_metrics = options();
    with_metrics.metrics_listen = "127.0.0.1:0";
    start(with_metrics);
  }
  /// Asks again until the answer has this line.
  std::string await_line(const std::string& line) {
    std::string page;
    eventually([&] {
      page = scrape(service_->metrics_address());
      return page.find(line) != std::string::npos;
    });
    EXPECT_THAT(page, HasSubstr(line));
    return page;
  }
  std::string await_targets(const std::string& text) {
    const std::filesystem::path file = folder_ / "state" / "prometheus-targets.json";
    eventually([&] { return read_file(file).find(text) != std::string::npos; });
    EXPECT_THAT(read_file(file), HasSubstr(text));
    return read_file(file);
  }
};

TEST_F(ServedMetrics, TellWhetherTheTimerTurns) {
  pulse_.turn(SystemClock().now() - kLoopPatience);
  std::string health;
  eventually([&] {
    health =
        testing_support::answer_to(service_->metrics_address(), "GET /healthz HTTP/1.0\r\n\r\n");
    return health.find(" 200 OK\r\n") != std::string::npos;
  });
  EXPECT_THAT(health, HasSubstr(" 200 OK\r\n"));
}

TEST_F(ServedMetrics, FollowAJobAndItsNodes) {
  add_server(FakeNode::Plays::kWholeJob);
  add_worker(FakeNode::Plays::kWholeJob);
  await_line("poseidon_members{role=\"worker\",state=\"idle\"} 1");
  ASSERT_TRUE(submit(1, 1).ok());
  await_state("done");
  const std::string page = await_line("poseidon_job_state{state=\"done\"} 1");
  for (const char* line :
       {"poseidon_iterations_total 5\n", "poseidon_jobs_total{result=\"done\"} 1\n",
        "poseidon_job_iteration 5\n", "poseidon_epoch 1\n", "poseidon_test_accuracy 0.9",
        "poseidon_build_info{version="}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  nodes_.pop_back();
  await_line("poseidon_departures_total{role=\"worker\",how=\"left\"} 1\n");
}

TEST_F(ServedMetrics, CountWhyAJobRecovers) {
  run_job();
  v1::NodeMessage message;
  message.mutable_failed()->set_epoch(1);
  message.mutable_failed()->set_failure(v1::FAILURE_PEER);
  message.mutable_failed()->set_reason("worker 0 does not answer");
  ASSERT_TRUE(nodes_.back()->client().send(message));
  await_line("poseidon_recoveries_total{reason=\"peer_unreachable\"} 1\n");
  await_line("poseidon_job_state{state=\"recovering\"} 1\n");
}

TEST_F(ServedMetrics, TheTargetsFollowTheMembers) {
  const std::string own = "\"" + service_->metrics_address() + "\"";
  EXPECT_THAT(await_targets(own), HasSubstr("coordinator"));
  v1::Join join = join_as(v1::NODE_ROLE_WORKER, "");
  join.set_metrics_address("127.0.0.1:9102");
  {
    FakeNode worker(address_, join, FakeNode::Plays::kNothing);
    ASSERT_TRUE(worker.wait_joined());
    EXPECT_THAT(await_targets("127.0.0.1:9102"), HasSubstr(own));
  }
  await_line("poseidon_departures_total{role=\"worker\",how=\"left\"} 1\n");
  EXPECT_TRUE(eventually([&] { return await_targets(own).find("9102") == std::string::npos; }));
}

}  // namespace
}  // namespace poseidon::metrics_test
