#include "cli/doctor/doctor_counters.h"

#include <cmath>
#include <limits>
#include <string>

#include "cli/doctor/doctor_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::doctor_counters_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Role = DoctorFacts::Daemon::Role;

constexpr std::uint64_t kEpoch = 3;

void add_node(google::protobuf::RepeatedPtrField<v1::NodeStatus>& nodes, const char* address,
              std::uint64_t id) {
  v1::NodeStatus& node = *nodes.Add();
  node.set_rank(0);
  node.set_address(address);
  node.set_node_id(id);
  node.set_state("running");
  node.mutable_counters()->set_reports(4);
  node.mutable_counters()->mutable_counters()->set_epoch(kEpoch);
}

v1::GetStatusResponse cluster() {
  v1::GetStatusResponse status;
  status.set_job_id("digits-1");
  status.set_epoch(kEpoch);
  status.mutable_counters()->set_heartbeat_ms(500);
  add_node(*status.mutable_servers(), "10.0.0.2:4701", 1);
  add_node(*status.mutable_workers(), "10.0.0.3:4702", 2);
  return status;
}

/// Two statuses of one cluster: `after` is to be changed by the test.
struct Look {
  v1::GetStatusResponse before = cluster(), after = cluster();

  Look() {
    after.mutable_servers(0)->mutable_counters()->set_reports(9);
    after.mutable_workers(0)->mutable_counters()->set_reports(9);
  }
  static v1::NodeCounters& server(v1::GetStatusResponse& status) {
    return *status.mutable_servers(0)->mutable_counters()->mutable_counters();
  }
  static v1::NodeCounters& worker(v1::GetStatusResponse& status) {
    return *status.mutable_workers(0)->mutable_counters()->mutable_counters();
  }
  DoctorFacts facts() const {
    DoctorFacts facts;
    add_counters(before, after, 1000.0, facts);
    return facts;
  }
  DoctorFacts::Daemon daemon(Role role) const {
    for (const auto& daemon : facts().daemons) {
      if (daemon.role == role) return daemon;
    }
    ADD_FAILURE() << "nothing is known of it";
    return {};
  }
};

void refuse(google::protobuf::RepeatedPtrField<v1::RefusedCount>& list, const char* reason,
            std::uint64_t count) {
  v1::RefusedCount& added = *list.Add();
  added.set_reason(reason);
  added.set_count(count);
}

TEST(DoctorCounters, TellOfTheTimeBetweenTheStatuses) {
  Look look;
  look.before.mutable_counters()->set_checkpoints_failed(2);
  look.before.set_iteration(450);
  look.after.set_iteration(460);
  v1::CoordinatorCounters& own = *look.after.mutable_counters();
  own.set_checkpoints_failed(3);
  own.set_checkpoint_bytes(8'000'000);
  own.set_checkpoint_every(100);
  refuse(*own.mutable_refused_connections(), "wrong_role", 1);
  refuse(*own.mutable_refused_messages(), "stale_epoch", 5);

  auto& then = *look.before.mutable_servers(0)->mutable_counters()->mutable_refused_messages();
  auto& now = *look.after.mutable_servers(0)->mutable_counters()->mutable_refused_messages();
  refuse(then, "length", 4);
  refuse(then, "epoch", 1);
  refuse(then, "layer", 9);
  refuse(now, "length", 6);
  refuse(now, "epoch", 5);
  refuse(now, "layer", 9);
  Look::server(look.before).set_paused_streams(1);
  v1::NodeCounters& server_now = Look::server(look.after);
  server_now.set_paused_streams(2);
  server_now.set_streams(4);
  server_now.set_early_gradient_bytes(77);
  server_now.set_store_errors(1);
  server_now.set_disk_free_bytes(5'000'000'000);
  server_now.set_disk_bytes(100'000'000'000);
  server_now.set_snapshots_failed(3);

  Look::worker(look.before).set_retries_server(1);
  Look::worker(look.before).set_retries_worker(1);
  Look::worker(look.before).set_socket_bytes(100);
  v1::NodeCounters& worker_now = Look::worker(look.after);
  worker_now.set_retries_server(3);
  worker_now.set_retries_worker(1);
  worker_now.set_socket_bytes(150);
  worker_now.set_shared_memory_bytes(30);
  worker_now.set_certificate_expiry_unix_s(4000);
  worker_now.set_gpu_utilization(0.5);
  worker_now.set_gpu_celsius(80.0);

  const DoctorFacts facts = look.facts();
  EXPECT_THAT(facts.notes, IsEmpty());
  ASSERT_EQ(facts.daemons.size(), 3u);
  const auto& coordinator = facts.daemons[0];
  EXPECT_EQ(coordinator.name, "coordinator");
  EXPECT_EQ(coordinator.checkpoints_failed, 1.0);
  EXPECT_EQ(coordinator.checkpoint_every, 100.0);
  EXPECT_EQ(coordinator.iterations_since_checkpoint, 450.0);
  EXPECT_THAT(coordinator.refused_connections, ElementsAre(Pair("wrong_role", 1.0)));
  EXPECT_THAT(coordinator.refused_messages, IsEmpty());
  EXPECT_EQ(coordinator.certificate_left_s, std::nullopt);
  const auto& server = facts.daemons[1];
  EXPECT_EQ(server.name, "server 0 (10.0.0.2:4701)");
  EXPECT_THAT(server.refused_messages, ElementsAre(Pair("length", 2.0)))
      << "messages of an earlier epoch are no trouble";
  EXPECT_EQ(server.paused_streams, 1.0);
  EXPECT_EQ(server.streams, 4.0);
  EXPECT_EQ(server.early_gradient_bytes, 77.0);
  EXPECT_EQ(server.store_errors, 1.0);
  EXPECT_EQ(server.disk_free_bytes, 5e9);
  EXPECT_EQ(server.disk_bytes, 1e11);
  EXPECT_EQ(server.snapshot_bytes, 8e6);
  EXPECT_EQ(server.snapshots_failed, 3.0);
  const auto& worker = facts.daemons[2];
  EXPECT_EQ(worker.name, "worker 0 (10.0.0.3:4702)");
  EXPECT_THAT(worker.broken_streams, ElementsAre(Pair("server", 2.0)));
  EXPECT_EQ(worker.socket_bytes, 50.0);
  EXPECT_EQ(worker.shared_memory_bytes, 30.0);
  EXPECT_EQ(worker.certificate_left_s, 3000.0);
  EXPECT_EQ(worker.gpu_utilization, 0.5);
  EXPECT_EQ(worker.gpu_celsius, 80.0);
}

DoctorFacts::Daemon worker_that_computed(std::uint64_t iterations_before, double seconds_before,
                                         std::uint64_t iterations_now, double seconds_now,
                                         std::uint64_t epoch_before = kEpoch) {
  Look look;
  Look::worker(look.before).set_epoch(epoch_before);
  Look::worker(look.before).set_compute_iterations(iterations_before);
  Look::worker(look.before).set_compute_seconds(seconds_before);
  Look::worker(look.after).set_compute_iterations(iterations_now);
  Look::worker(look.after).set_compute_seconds(seconds_now);
  return look.daemon(Role::kWorker);
}

TEST(DoctorCounters, ComputingBeforeAndNow) {
  const auto known = worker_that_computed(1000, 30.0, 1100, 36.0);
  EXPECT_DOUBLE_EQ(known.compute_before_s.value_or(0.0), 0.03);
  EXPECT_DOUBLE_EQ(known.compute_now_s.value_or(0.0), 0.06);
  const auto young = worker_that_computed(5, 3.0, 100, 7.0);
  EXPECT_EQ(young.compute_before_s, std::nullopt);
  EXPECT_NE(young.compute_now_s, std::nullopt);
  EXPECT_EQ(worker_that_computed(1000, 30.0, 1002, 30.3).compute_now_s, std::nullopt);
  const auto recovered = worker_that_computed(1000, 30.0, 1100, 36.0, kEpoch - 1);
  EXPECT_EQ(recovered.compute_before_s, std::nullopt);
  EXPECT_EQ(recovered.compute_now_s, std::nullopt);
}

TEST(DoctorCounters, WhatIsNoNumberIsNotKnown) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(worker_that_computed(1000, kInfinity, 1100, kInfinity).compute_now_s, std::nullopt);
  EXPECT_EQ(worker_that_computed(1000, -1.0, 1100, std::nan("")).compute_before_s, std::nullopt);
  Look look;
  Look::worker(look.after).set_gpu_celsius(kInfinity);
  Look::worker(look.after).set_gpu_utilization(std::nan(""));
  EXPECT_EQ(look.daemon(Role::kWorker).gpu_celsius, std::nullopt);
  EXPECT_EQ(look.daemon(Role::kWorker).gpu_utilization, std::nullopt);
}

TEST(DoctorCounters, CountersThatGoBackSayNothing) {
  Look look;
  Look::worker(look.before).set_retries_server(9);
  Look::worker(look.after).set_retries_server(1);
  EXPECT_THAT(look.daemon(Role::kWorker).broken_streams, IsEmpty());
}

TEST(DoctorCounters, ACheckpointThatCameOrThatAnEpochsEndGaveUpIsNoTrouble) {
  Look look;
  look.after.mutable_counters()->set_checkpoints_failed(1);
  EXPECT_EQ(look.daemon(Role::kCoordinator).checkpoints_failed, 1.0);
  look.before.set_epoch(kEpoch - 1);
  EXPECT_EQ(look.daemon(Role::kCoordinator).checkpoints_failed, 0.0);

  look.before.set_iteration(900);
  look.after.set_iteration(950);
  look.before.mutable_counters()->set_checkpoint_iteration(100);
  look.after.mutable_counters()->set_checkpoint_iteration(100);
  EXPECT_EQ(look.daemon(Role::kCoordinator).iterations_since_checkpoint, 800.0);
  look.after.mutable_counters()->set_checkpoint_iteration(200);
  EXPECT_EQ(look.daemon(Role::kCoordinator).iterations_since_checkpoint, 0.0);
}

TEST(DoctorCounters, WhoSentNoneIsNamedWithTheReason) {
  Look silent;
  silent.before.mutable_workers(0)->clear_counters();
  silent.after.mutable_workers(0)->clear_counters();
  silent.after.mutable_servers(0)->mutable_counters()->set_reports(4);
  EXPECT_THAT(silent.facts().notes,
              ElementsAre("no counters of server 0 (10.0.0.2:4701), worker 0 (10.0.0.3:4702): no "
                          "report of it came within 6 s"));
  Look away;
  away.after.mutable_workers(0)->mutable_counters()->set_reports(4);
  away.after.mutable_workers(0)->set_state("away");
  EXPECT_THAT(away.facts().notes,
              ElementsAre("no counters of worker 0 (10.0.0.3:4702): it is away"));
  Look newcomer;
  newcomer.before.mutable_workers(0)->set_node_id(77);
  EXPECT_THAT(newcomer.facts().notes,
              ElementsAre("no counters of worker 0 (10.0.0.3:4702): it joined during the look"));
  Look behind;
  Look::worker(behind.after).set_epoch(kEpoch - 1);
  EXPECT_THAT(behind.facts().notes, ElementsAre("no counters of worker 0 (10.0.0.3:4702): it is in "
                                                "epoch 2, the job is in 3"));
  Look::worker(behind.after).clear_epoch();
  EXPECT_THAT(behind.facts().notes, ElementsAre("no counters of worker 0 (10.0.0.3:4702): it is in "
                                                "no epoch, the job is in 3"));
  Look old;
  old.before.clear_counters();
  EXPECT_THAT(old.facts().notes,
              ElementsAre("no counters of coordinator: it is of a version that tells none"));
  Look another;
  another.after.set_job_id("digits-2");
  EXPECT_THAT(another.facts().notes,
              ElementsAre("no counters of coordinator: another job began during the look"));
}

TEST(DoctorCounters, NodesWithoutAPartInTheJobAreNobodysConcern) {
  Look look;
  look.before.mutable_workers(0)->set_rank(-1);
  look.after.mutable_workers(0)->set_rank(-1);
  look.after.mutable_workers(0)->clear_counters();
  EXPECT_THAT(look.facts().notes, IsEmpty());
  EXPECT_EQ(look.facts().daemons.size(), 2u);
  EXPECT_TRUE(all_have_reported(look.after, look.before));
}

TEST(DoctorReports, AreAwaitedFromEveryNodeThatIsHere) {
  Look look;
  EXPECT_TRUE(all_have_reported(look.before, {}));
  EXPECT_FALSE(all_have_reported(look.before, look.before));
  EXPECT_TRUE(all_have_reported(look.after, look.before));
  look.after.mutable_servers(0)->mutable_counters()->set_reports(4);
  EXPECT_FALSE(all_have_reported(look.after, look.before));
  look.after.mutable_servers(0)->set_state("lost");
  EXPECT_TRUE(all_have_reported(look.after, look.before));
  look.before.mutable_workers(0)->clear_counters();
  EXPECT_FALSE(all_have_reported(look.before, {}));
  EXPECT_EQ(report_patience(look.before), Milliseconds(6000));
}

TEST(DoctorCounters, AreInTheJson) {
  Look look;
  Look::worker(look.after).set_retries_server(2);
  const nlohmann::json json = doctor_to_json(look.facts(), {});
  ASSERT_EQ(json["metrics"].size(), 3u);
  EXPECT_EQ(json["metrics"][0]["checkpoints_failed"], 0.0);
  EXPECT_EQ(json["metrics"][1]["paused_streams"], 0.0);
  EXPECT_EQ(json["metrics"][2]["broken_streams"]["server"], 2.0);
  EXPECT_TRUE(json["metrics"][2]["compute_now_seconds"].is_null());
}

}  // namespace
}  // namespace poseidon::doctor_counters_test
