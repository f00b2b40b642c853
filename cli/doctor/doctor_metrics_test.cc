#include "cli/doctor/doctor_metrics.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/doctor/doctor_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::doctor_metrics_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Role = DoctorFacts::Daemon::Role;

constexpr std::uint64_t kHere = 7;

v1::NodeStatus node(int rank, const std::string& address, const std::string& metrics_address,
                    std::uint64_t machine) {
  v1::NodeStatus node;
  node.set_rank(rank);
  node.set_address(address);
  node.set_metrics_address(metrics_address);
  node.mutable_load()->set_machine(machine);
  return node;
}

v1::GetStatusResponse cluster() {
  v1::GetStatusResponse status;
  status.set_job_id("digits-1");
  status.set_epoch(3);
  status.set_metrics_address("10.0.0.1:9460");
  *status.add_servers() = node(0, "10.0.0.2:4701", "10.0.0.2:9461", 2);
  *status.add_workers() = node(0, "10.0.0.3:4702", "10.0.0.3:9462", 3);
  return status;
}

absl::StatusOr<MetricsPage> page(const std::string& text) {
  return MetricsPage::parse(text, doctor_metrics());
}

DoctorFacts facts_of(const std::vector<MetricsReading>& readings,
                     const v1::GetStatusResponse& status = cluster()) {
  DoctorFacts facts;
  add_metrics(metrics_targets(status, {.machine = kHere}), readings, status, 1000.0, facts);
  return facts;
}

std::string own(const std::string& role, int epoch) {
  return absl::StrCat("poseidon_build_info{version=\"1\",role=\"", role,
                      "\"} 1\nposeidon_node_rank 0\nposeidon_node_epoch ", epoch, "\n");
}
const std::string kCoordinatorsOwn =
    "poseidon_build_info{version=\"1\",role=\"coordinator\"} 1\n"
    "poseidon_job_info{id=\"digits-1\"} 1\nposeidon_epoch 3\n";
const std::string kServersOwn = own("server", 3);
const std::string kWorkersOwn = own("worker", 3);

MetricsReading unasked() {
  return {.before = absl::UnavailableError("nobody there"),
          .after = absl::UnavailableError("nobody there")};
}
MetricsReading both(const std::string& text, const std::string& before, const std::string& after) {
  return {.before = page(text + before), .after = page(text + after)};
}

TEST(MetricsTargets, AreTheCoordinatorAndTheNodesOfTheJob) {
  v1::GetStatusResponse status = cluster();
  *status.add_workers() = node(-1, "10.0.0.4:4702", "10.0.0.4:9462", 4);
  const auto targets = metrics_targets(status, {.machine = kHere});
  ASSERT_EQ(targets.size(), 3u);
  EXPECT_EQ(targets[0].name, "coordinator");
  EXPECT_EQ(targets[0].address, "10.0.0.1:9460");
  EXPECT_EQ(targets[1].name, "server 0 (10.0.0.2:4701)");
  EXPECT_EQ(targets[1].address, "10.0.0.2:9461");
  EXPECT_EQ(targets[2].name, "worker 0 (10.0.0.3:4702)");
}

TEST(MetricsTargets, ThoseOfOtherMachinesLoopbacksAreNotAsked) {
  v1::GetStatusResponse status;
  *status.add_servers() = node(0, "10.0.0.2:4701", "127.0.0.1:9461", 2);
  *status.add_servers() = node(1, "10.0.0.9:4701", "127.0.0.1:9461", kHere);
  *status.add_servers() = node(2, "10.0.0.9:4702", "", kHere);
  *status.add_servers() = node(3, "10.0.0.9:4703", "no address", kHere);
  const auto targets = metrics_targets(status, {.machine = kHere});
  ASSERT_EQ(targets.size(), 5u);
  EXPECT_THAT(targets[0].why_not, HasSubstr("--metrics-listen"));
  EXPECT_THAT(targets[1].why_not, HasSubstr("their own machines only"));
  EXPECT_EQ(targets[2].address, "127.0.0.1:9461");
  EXPECT_EQ(targets[2].why_not, "");
  EXPECT_THAT(targets[3].why_not, HasSubstr("without --metrics-listen"));
  EXPECT_THAT(targets[4].why_not, HasSubstr("no address"));
  // The coordinator's, where it is reached by an address of this machine.
  status.set_metrics_address("127.0.0.1:9460");
  EXPECT_THAT(metrics_targets(status, {.machine = kHere})[0].why_not,
              HasSubstr("their own machines only"));
  EXPECT_EQ(metrics_targets(status, {.machine = kHere, .is_coordinators = true})[0].address,
            "127.0.0.1:9460");
  // Where nobody knows its own machine, no loopback is another's for sure.
  EXPECT_THAT(metrics_targets(status, {})[2].why_not, HasSubstr("their own machines only"));
}

TEST(DoctorMetrics, CountersTellOfTheTimeBetweenTheReadings) {
  const DoctorFacts facts = facts_of(
      {both(kCoordinatorsOwn,
            "poseidon_checkpoints_total{result=\"failed\"} 2\nposeidon_job_iteration 450\n",
            "poseidon_checkpoints_total{result=\"failed\"} 3\nposeidon_job_iteration 460\n"
            "poseidon_checkpoint_bytes 8e6\nposeidon_checkpoint_every_iterations 100\n"
            "poseidon_refused_connections_total{reason=\"wrong_role\",role=\"coordinator\"} 1\n"),
       both(kServersOwn,
            "poseidon_refused_messages_total{reason=\"length\",role=\"server\"} 4\n"
            "poseidon_refused_messages_total{reason=\"epoch\",role=\"server\"} 1\n"
            "poseidon_refused_messages_total{reason=\"layer\",role=\"server\"} 9\n"
            "poseidon_server_paused_streams 1\n",
            "poseidon_refused_messages_total{reason=\"length\",role=\"server\"} 6\n"
            "poseidon_refused_messages_total{reason=\"epoch\",role=\"server\"} 5\n"
            "poseidon_refused_messages_total{reason=\"layer\",role=\"server\"} 9\n"
            "poseidon_server_paused_streams 2\nposeidon_server_streams 4\n"
            "poseidon_store_background_errors 1\nposeidon_disk_free_bytes 5e9\n"
            "poseidon_disk_bytes 1e11\nposeidon_snapshots_total{result=\"sealed\"} 4\n"
            "poseidon_snapshots_total{result=\"failed\"} 3\n"),
       both(kWorkersOwn,
            "poseidon_retries_total{peer=\"server\"} 1\nposeidon_retries_total{peer=\"worker\"} 1\n"
            "poseidon_transport_sent_bytes_total{path=\"socket\"} 100\n",
            "poseidon_retries_total{peer=\"server\"} 3\nposeidon_retries_total{peer=\"worker\"} 1\n"
            "poseidon_transport_sent_bytes_total{path=\"socket\"} 150\n"
            "poseidon_certificate_expiry_time_seconds 4000\n"
            "poseidon_gpu_utilization_ratio 0.5\nposeidon_gpu_temperature_celsius 80\n")});
  EXPECT_THAT(facts.notes, IsEmpty());
  ASSERT_EQ(facts.daemons.size(), 3u);
  const auto& coordinator = facts.daemons[0];
  EXPECT_EQ(coordinator.checkpoints_failed, 1.0);
  EXPECT_EQ(coordinator.checkpoint_every, 100.0);
  EXPECT_EQ(coordinator.iterations_since_checkpoint, 450.0);
  EXPECT_THAT(coordinator.refused_connections, ElementsAre(Pair("wrong_role", 1.0)));
  const auto& server = facts.daemons[1];
  EXPECT_EQ(server.name, "server 0 (10.0.0.2:4701)");
  EXPECT_THAT(server.refused_messages, ElementsAre(Pair("length", 2.0)))
      << "messages of an earlier epoch are no trouble";
  EXPECT_EQ(server.paused_streams, 1.0);
  EXPECT_EQ(server.streams, 4.0);
  EXPECT_EQ(server.store_errors, 1.0);
  EXPECT_EQ(server.disk_free_bytes, 5e9);
  EXPECT_EQ(server.disk_bytes, 1e11);
  EXPECT_EQ(server.snapshot_bytes, 8e6);
  EXPECT_EQ(server.snapshots_failed, 3.0);
  const auto& worker = facts.daemons[2];
  EXPECT_THAT(worker.broken_streams, ElementsAre(Pair("server", 2.0)));
  EXPECT_EQ(worker.socket_bytes, 50.0);
  EXPECT_EQ(worker.certificate_left_s, 3000.0);
  EXPECT_EQ(worker.gpu_utilization, 0.5);
  EXPECT_EQ(worker.gpu_celsius, 80.0);
}

std::string computed(int iterations, double forward_s, double backward_s) {
  return absl::StrCat(
      "poseidon_layer_forward_seconds_total{layer=\"a\"} ", forward_s,
      "\nposeidon_layer_backward_seconds_total{layer=\"a\"} ", backward_s / 2,
      "\nposeidon_layer_backward_seconds_total{layer=\"b\"} ", backward_s / 2,
      "\nposeidon_layer_sync_seconds_count{layer=\"a\",scheme=\"ps\"} ", iterations - 1,
      "\nposeidon_layer_sync_seconds_count{layer=\"b\",scheme=\"sfb\"} ", iterations, "\n");
}

TEST(DoctorMetrics, ComputingBeforeAndNow) {
  const auto worker = [](const std::string& before, const std::string& after) {
    const DoctorFacts facts = facts_of({unasked(), unasked(), both(kWorkersOwn, before, after)});
    EXPECT_EQ(facts.daemons.size(), 1u);
    return facts.daemons.empty() ? DoctorFacts::Daemon() : facts.daemons[0];
  };
  const auto known = worker(computed(1000, 10.0, 20.0), computed(1100, 12.0, 24.0));
  EXPECT_DOUBLE_EQ(known.compute_before_s.value_or(0.0), 0.03);
  EXPECT_DOUBLE_EQ(known.compute_now_s.value_or(0.0), 0.06);
  const auto young = worker(computed(5, 1.0, 2.0), computed(100, 3.0, 4.0));
  EXPECT_EQ(young.compute_before_s, std::nullopt);
  EXPECT_NE(young.compute_now_s, std::nullopt);
  const auto short_look = worker(computed(1000, 10.0, 20.0), computed(1002, 10.1, 20.2));
  EXPECT_EQ(short_look.compute_now_s, std::nullopt);
  const DoctorFacts facts =
      facts_of({unasked(),
                unasked(),
                {.before = page(own("worker", 2) + computed(1000, 10.0, 20.0)),
                 .after = page(kWorkersOwn + computed(1100, 12.0, 24.0))}});
  ASSERT_EQ(facts.daemons.size(), 1u);
  const auto& recovered = facts.daemons[0];
  EXPECT_EQ(recovered.compute_before_s, std::nullopt);
  EXPECT_EQ(recovered.compute_now_s, std::nullopt);
}

TEST(DoctorMetrics, ADaemonThatWasStartedAgainCountsFromNothing) {
  const DoctorFacts facts =
      facts_of({unasked(), unasked(),
                both(kWorkersOwn, "poseidon_retries_total{peer=\"server\"} 9\n",
                     "poseidon_retries_total{peer=\"server\"} 1\n")});
  ASSERT_EQ(facts.daemons.size(), 1u);
  EXPECT_THAT(facts.daemons[0].broken_streams, IsEmpty());
}

TEST(DoctorMetrics, ACheckpointThatCameOrThatAnEpochsEndGaveUpIsNoTrouble) {
  const auto coordinator = [](const std::string& before, const std::string& after, int epoch) {
    v1::GetStatusResponse status = cluster();
    status.set_epoch(static_cast<std::uint64_t>(epoch));
    const std::string job =
        "poseidon_build_info{role=\"coordinator\"} 1\nposeidon_job_info{id=\"digits-1\"} 1\n";
    const DoctorFacts facts =
        facts_of({{.before = page(job + "poseidon_epoch 3\n" + before),
                   .after = page(absl::StrCat(job, "poseidon_epoch ", epoch, "\n", after))},
                  unasked(),
                  unasked()},
                 status);
    EXPECT_EQ(facts.daemons.size(), 1u);
    return facts.daemons.empty() ? DoctorFacts::Daemon() : facts.daemons[0];
  };
  const std::string none = "poseidon_checkpoints_total{result=\"failed\"} 0\n";
  const std::string one = "poseidon_checkpoints_total{result=\"failed\"} 1\n";
  EXPECT_EQ(coordinator(none, one, 3).checkpoints_failed, 1.0);
  EXPECT_EQ(coordinator(none, one, 4).checkpoints_failed, 0.0);
  const std::string old = "poseidon_job_iteration 900\nposeidon_checkpoint_iteration 100\n";
  EXPECT_EQ(coordinator(old, old, 3).iterations_since_checkpoint, 800.0);
  EXPECT_EQ(coordinator(old, "poseidon_job_iteration 950\nposeidon_checkpoint_iteration 200\n", 3)
                .iterations_since_checkpoint,
            0.0);
}

TEST(DoctorMetrics, WhoIsMissingIsSaidWithTheReason) {
  const DoctorFacts facts =
      facts_of({unasked(),
                unasked(),
                {.before = page(kWorkersOwn), .after = absl::UnavailableError("gone")}});
  EXPECT_THAT(facts.daemons, IsEmpty());
  EXPECT_THAT(
      facts.notes,
      ElementsAre("metrics not read of worker 0 (10.0.0.3:4702): gone",
                  "metrics not read of coordinator, server 0 (10.0.0.2:4701): nobody there"));
}

TEST(DoctorMetrics, APageOfSomebodyElseCountsForNobody) {
  const auto said_of = [](const std::string& text, std::size_t target) {
    std::vector<MetricsReading> readings = {unasked(), unasked(), unasked()};
    readings[target] = both(text, "", "");
    const DoctorFacts facts = facts_of(readings);
    EXPECT_THAT(facts.daemons, IsEmpty());
    std::string notes;
    for (const std::string& note : facts.notes) absl::StrAppend(&notes, note, "\n");
    return notes;
  };
  EXPECT_THAT(said_of("up 1\n", 1), HasSubstr("at 10.0.0.2:9461 is no daemon of ours"));
  EXPECT_THAT(said_of(kWorkersOwn, 1), HasSubstr("at 10.0.0.2:9461 is a worker"));
  EXPECT_THAT(said_of("poseidon_build_info{role=\"server\"} 1\n", 1),
              HasSubstr("is a server without a part in a job"));
  EXPECT_THAT(said_of("poseidon_build_info{role=\"server\"} 1\nposeidon_node_rank 3\n", 1),
              HasSubstr("is a server of rank 3"));
  EXPECT_THAT(said_of(own("server", 2), 1),
              HasSubstr("at 10.0.0.2:9461 is a server in epoch 2, the job is in 3"));
  EXPECT_THAT(said_of("poseidon_build_info{role=\"coordinator\"} 1\n"
                      "poseidon_job_info{id=\"digits-1\"} 1\n",
                      0),
              HasSubstr("is a coordinator in no epoch"));
  EXPECT_THAT(said_of("poseidon_build_info{role=\"coordinator\"} 1\n"
                      "poseidon_job_info{id=\"another\"} 1\n",
                      0),
              HasSubstr("is the coordinator of another job"));
}

TEST(DoctorMetrics, AreInTheJson) {
  const DoctorFacts facts =
      facts_of({both(kCoordinatorsOwn, "", ""), both(kServersOwn, "", ""),
                both(kWorkersOwn, "", "poseidon_retries_total{peer=\"server\"} 2\n")});
  const nlohmann::json json = doctor_to_json(facts, {});
  ASSERT_EQ(json["metrics"].size(), 3u);
  EXPECT_EQ(json["metrics"][0]["checkpoints_failed"], 0.0);
  EXPECT_EQ(json["metrics"][1]["paused_streams"], 0.0);
  EXPECT_EQ(json["metrics"][2]["broken_streams"]["server"], 2.0);
  EXPECT_TRUE(json["metrics"][2]["compute_now_seconds"].is_null());
}

}  // namespace
}  // namespace poseidon::doctor_metrics_test
