// What Cluster makes of time; the rest of it is tested over gRPC (service_*_test.cc) and in
// simulations of whole clusters (tests/sim).

#include "coordinator/cluster/cluster.h"

#include <deque>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/log_capture.h"

namespace poseidon::cluster_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Two servers and `workers` workers train.
class TrainingTest : public ::testing::Test {
 protected:
  void start(int workers) {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("poseidon_cluster_test_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    auto state = StateDirectory::open(folder_ / "state");
    ASSERT_TRUE(state.ok()) << state.status();
    ClusterDisk disk;
    disk.background = std::make_unique<TestBackground>(&tasks_);
    cluster_ = std::make_unique<Cluster>(
        ClusterOptions{},
        [](const std::string&) -> absl::StatusOr<ResolvedJob> { return toy_job(); },
        *std::move(state), &clock_, std::move(disk));
    cluster_->tick();
    servers_ = {join(v1::NODE_ROLE_SERVER, 1), join(v1::NODE_ROLE_SERVER, 2)};
    for (int i = 0; i < workers; ++i) workers_.push_back(join(v1::NODE_ROLE_WORKER, 3 + i));
    v1::SubmitRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_job_json("{}");
    const auto submitted = cluster_->submit(request);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    run_tasks();
    for (const auto* group : {&servers_, &workers_}) {
      for (const auto& link : *group) {
        v1::NodeMessage message;
        message.mutable_ready()->set_epoch(1);
        cluster_->on_message(link.get(), message);
      }
    }
    ASSERT_EQ(status().state(), "running");
  }
  void TearDown() override {
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<TestLink> join(v1::NodeRole role, int number) {
    auto link = std::make_shared<TestLink>();
    cluster_->on_open(link);
    v1::NodeMessage message;
    v1::Join& join = *message.mutable_join();
    join.set_protocol_version(kProtocolVersion);
    join.set_role(role);
    join.set_incarnation(7);
    join.set_address("127.0.0.1:" + std::to_string(4700 + number));
    join.set_device("cpu");
    join.set_machine(42);
    if (role == v1::NODE_ROLE_SERVER) {
      join.set_store_identity(std::string(31, 'a') + std::to_string(number));
    }
    cluster_->on_message(link.get(), message);
    EXPECT_TRUE(link->closed.ok()) << link->closed;
    return link;
  }
  v1::GetStatusResponse status() { return status_of(*cluster_); }
  void run_tasks() { run_all(tasks_); }
  void beat(TestLink& link) {
    v1::NodeMessage message;
    message.mutable_heartbeat();
    cluster_->on_message(&link, message);
  }

  TestClock clock_;
  std::deque<std::function<void()>> tasks_;
  std::filesystem::path folder_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::shared_ptr<TestLink>> servers_, workers_;
};

/// One worker; the second server is lost, and its place waits for it.
class ClusterTest : public TrainingTest {
 protected:
  void SetUp() override {
    start(1);
    v1::NodeMessage leave;
    leave.mutable_leave()->set_reason("the test");
    cluster_->on_message(servers_[1].get(), leave);
    ASSERT_EQ(status().state(), "recovering");
    ASSERT_THAT(status().message(), HasSubstr("waits for server 1"));
  }
  /// Ticks for this time; living nodes send heartbeats.
  void go_on(Nanoseconds duration) {
    for (Nanoseconds passed{0}; passed < duration; passed += Milliseconds(500)) {
      clock_.advance(Milliseconds(500));
      for (const auto& link : {servers_[0], workers_[0]}) beat(*link);
      cluster_->tick();
      run_tasks();
    }
  }
};

// A folder in its place takes no file, as a full disk does.
TEST_F(TrainingTest, TargetsThatCouldNotBeWrittenAreTriedAgain) {
  start(1);
  const std::filesystem::path targets = folder_ / "state/prometheus-targets.json";
  std::filesystem::remove(targets);
  std::filesystem::create_directory(targets);
  cluster_->set_metrics_address("127.0.0.1:4710", /*has_tls=*/false);
  run_tasks();
  EXPECT_TRUE(std::filesystem::is_directory(targets));
  std::filesystem::remove(targets);
  cluster_->tick();
  run_tasks();
  EXPECT_FALSE(std::filesystem::exists(targets)) << "not at every tick";
  clock_.advance(std::chrono::seconds(2));
  cluster_->tick();
  run_tasks();
  EXPECT_TRUE(std::filesystem::is_regular_file(targets));
}

TEST_F(TrainingTest, StatusHasTheNewestCountersOfEachNodeAndTheCoordinatorsOwn) {
  start(1);
  const v1::GetStatusResponse first = status();
  EXPECT_EQ(first.workers(0).machine(), 42u) << "known since it joined";
  EXPECT_FALSE(first.workers(0).has_load());
  EXPECT_FALSE(first.workers(0).has_counters());
  EXPECT_EQ(first.counters().heartbeat_ms(), 500u);
  v1::NodeMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  for (const std::uint64_t retries : {3, 5}) {
    heartbeat.mutable_counters()->set_retries_server(retries);
    cluster_->on_message(workers_[0].get(), message);
  }
  beat(*workers_[0]);
  cluster_->count_refusal(Refusal::kMalformed, "the test");
  const v1::GetStatusResponse second = status();
  EXPECT_EQ(second.workers(0).counters().reports(), 2u);
  EXPECT_EQ(second.workers(0).counters().counters().retries_server(), 5u);
  EXPECT_FALSE(second.servers(0).has_counters());
  ASSERT_EQ(second.counters().refused_messages_size(), 1);
  EXPECT_EQ(second.counters().refused_messages(0).reason(), "malformed");
  v1::NodeMessage leave;
  leave.mutable_leave()->set_reason("the test");
  cluster_->on_message(workers_[0].get(), leave);
  const v1::GetStatusResponse third = status();
  ASSERT_EQ(third.workers_size(), 1);
  EXPECT_FALSE(third.workers(0).has_counters());
}

TEST_F(TrainingTest, WhatNodesAwaitSaysWhyTheJobStandsStill) {
  start(1);
  v1::NodeMessage waits;
  v1::AwaitedData& data = *waits.mutable_heartbeat()->add_awaited();
  data.add_ranks(0);
  data.set_iteration(std::numeric_limits<std::uint64_t>::max());  // and others that nobody reads
  for (int i = 0; i < 1000; ++i) waits.mutable_heartbeat()->add_awaited()->add_ranks(4711);
  for (int step = 0; step < 64; ++step) {
    clock_.advance(Milliseconds(500));
    for (const auto& link : servers_) beat(*link);
    cluster_->on_message(workers_[0].get(), waits);
    cluster_->tick();
    run_tasks();
  }
  EXPECT_EQ(status().state(), "running");
  EXPECT_THAT(status().message(),
              AllOf(HasSubstr("worker 0"), HasSubstr("waits for the factors of layer fc"),
                    HasSubstr("from worker 0")));
}

// 13 s of a full data directory were watched, and the status said nothing.
TEST_F(TrainingTest, ACheckpointThatFailedIsTold) {
  start(1);
  v1::RequestCheckpointRequest request;
  request.set_protocol_version(kProtocolVersion);
  const auto asked = cluster_->request_checkpoint(request);
  ASSERT_TRUE(asked.ok()) << asked.status();
  v1::NodeMessage message;
  message.mutable_checkpoint()->set_epoch(1);
  message.mutable_checkpoint()->set_iteration(asked->iteration());
  message.mutable_checkpoint()->set_reason("no space left on the device");
  cluster_->on_message(servers_[0].get(), message);
  EXPECT_EQ(status().state(), "running");
  EXPECT_THAT(status().message(),
              AllOf(HasSubstr("checkpoint 1-" + std::to_string(asked->iteration()) + " failed"),
                    HasSubstr("no space left on the device"), HasSubstr("there is none yet")));
}

// The first version was too late, and a periodic checkpoint came before the second.
TEST_F(TrainingTest, AnOperatorsCheckpointIsToldFromAPeriodicOne) {
  start(1);
  v1::RequestCheckpointRequest request;
  request.set_protocol_version(kProtocolVersion);
  const auto asked = cluster_->request_checkpoint(request);
  ASSERT_TRUE(asked.ok()) << asked.status();
  const auto list = [&] {
    v1::ListCheckpointsRequest all;
    all.set_protocol_version(kProtocolVersion);
    auto listed = cluster_->list_checkpoints(all);
    EXPECT_TRUE(listed.ok()) << listed.status();
    return listed.ok() ? *listed : v1::ListCheckpointsResponse();
  };
  EXPECT_TRUE(list().making().asked());
  EXPECT_EQ(list().making().iteration(), asked->iteration());
  const auto report = [&](std::uint64_t iteration, bool stored) {
    v1::NodeMessage message;
    message.mutable_checkpoint()->set_epoch(1);
    message.mutable_checkpoint()->set_iteration(iteration);
    message.mutable_checkpoint()->set_stored(stored);
    message.mutable_checkpoint()->set_too_late(!stored);
    for (const auto& server : servers_) cluster_->on_message(server.get(), message);
    run_tasks();
  };
  report(asked->iteration(), false);
  const std::uint64_t own = list().making().iteration();
  ASSERT_GT(own, asked->iteration() + 1);
  report(own - 1, true);
  ASSERT_EQ(list().committed_size(), 1);
  EXPECT_FALSE(list().committed(0).asked());
  EXPECT_TRUE(list().making().asked());
  EXPECT_EQ(list().making().iteration(), own);
  report(own, true);
  ASSERT_EQ(list().committed_size(), 2);
  EXPECT_TRUE(list().committed(1).asked());
  EXPECT_EQ(list().committed(1).iteration(), own);
  EXPECT_FALSE(list().has_making());
}

TEST_F(ClusterTest, APlaceIsKeptForAsLongAsWasPromised) {
  go_on(std::chrono::seconds(29));
  EXPECT_THAT(status().message(), HasSubstr("waits for server 1"));
  go_on(std::chrono::seconds(2));
  EXPECT_EQ(status().state(), "preparing") << "with one server";
}

/// SIGSTOP, or a machine that slept. What had piled up is handled before the first look at the
/// time.
TEST_F(ClusterTest, TimeInWhichThisProcessStoodStillIsForgivenBeforeAnythingIsJudged) {
  go_on(std::chrono::seconds(10));
  for (int i = 0; i < 3; ++i) {
    clock_.advance(std::chrono::seconds(60));
    cluster_->on_end(join(v1::NODE_ROLE_WORKER, 4 + i).get(), "it broke");
    run_tasks();
  }
  go_on(Milliseconds(500));
  EXPECT_THAT(status().message(), HasSubstr("waits for server 1"));
  go_on(std::chrono::seconds(17));
  EXPECT_THAT(status().message(), HasSubstr("waits for server 1"));
  go_on(std::chrono::seconds(5));
  EXPECT_EQ(status().state(), "preparing");
}

/// No training node sends messages, while strangers come and go.
TEST_F(ClusterTest, SoIsTimeInWhichItWasCutOff) {
  go_on(std::chrono::seconds(10));
  for (int i = 0; i < 120; ++i) {
    clock_.advance(Milliseconds(500));
    cluster_->tick();
    if (i % 20 == 19) cluster_->on_end(join(v1::NODE_ROLE_WORKER, 4 + i).get(), "it broke");
    run_tasks();
  }
  EXPECT_THAT(status().message(), HasSubstr("no message from any node"));
  go_on(Milliseconds(500));
  EXPECT_THAT(status().message(), HasSubstr("waits for server 1"));
  go_on(std::chrono::seconds(16));
  EXPECT_THAT(status().message(), HasSubstr("waits for server 1"));
  go_on(std::chrono::seconds(6));
  EXPECT_EQ(status().state(), "preparing");
}

/// They are what --log-level warning still shows.
TEST_F(ClusterTest, WhoIsLostAndARecoveryAreWarnings) {
  testing_support::LogCapture log;
  cluster_->on_end(join(v1::NODE_ROLE_WORKER, 5).get(), "broke its stream");
  v1::NodeMessage leave;
  leave.mutable_leave()->set_reason("the test");
  cluster_->on_message(workers_[0].get(), leave);
  EXPECT_THAT(log.end(), AllOf(HasSubstr("[info] worker 127.0.0.1:4705"),
                               HasSubstr("[warning] worker 127.0.0.1:4705"),
                               HasSubstr("[warning] job toy-1: worker 0 ")));
}

/// One of two workers is cut off from the coordinator only.
class CutOffWorkerTest : public TrainingTest {
 protected:
  void SetUp() override { start(2); }
  void report(TestLink& worker, Iteration iteration) {
    v1::NodeMessage message;
    message.mutable_iteration()->set_epoch(1);
    message.mutable_iteration()->set_iteration(static_cast<std::uint64_t>(iteration));
    message.mutable_iteration()->set_loss(1.0);
    cluster_->on_message(&worker, message);
  }
  /// Half a second passes, in which all but the one say that they live.
  void pass() {
    clock_.advance(Milliseconds(500));
    for (const auto& link : {servers_[0], servers_[1], workers_[0]}) beat(*link);
    cluster_->tick();
    run_tasks();
  }
  void stand_still(int halves) {
    for (int i = 0; i < halves; ++i) pass();
  }
  /// The first worker reports an iteration every half second.
  void train(Iteration until) {
    for (; next_ < until; ++next_) {
      report(*workers_[0], next_);
      pass();
    }
  }
  std::string state_of(int worker) {
    const v1::GetStatusResponse now = status();
    for (const v1::NodeStatus& node : now.workers()) {
      if (node.rank() == worker) return node.state();
    }
    return "";
  }

  Iteration next_ = 0;
};

TEST_F(CutOffWorkerTest, KeepsItsPlaceAndTellsLater) {
  testing_support::LogCapture log;
  train(40);  // 20 s
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().iteration(), 0) << "it has not told of any";
  EXPECT_EQ(state_of(1), "away");
  for (Iteration i = 0; i < 40; ++i) report(*workers_[1], i);
  train(41);
  EXPECT_EQ(status().iteration(), 40);
  EXPECT_EQ(state_of(1), "running");
  EXPECT_THAT(status().message(), Not(HasSubstr("recover")));
  EXPECT_THAT(log.end(),
              AllOf(HasSubstr("[error] worker 127.0.0.1:4704 (node 4) sends no messages, but the "
                              "job trains with it"),
                    HasSubstr("worker 127.0.0.1:4704 (node 4) answers again")));
}

TEST_F(CutOffWorkerTest, MayOpenAnotherStreamMeanwhile) {
  train(20);
  cluster_->on_end(workers_[1].get(), "broke its stream");
  train(40);
  EXPECT_EQ(state_of(1), "away");
  auto link = std::make_shared<TestLink>();
  cluster_->on_open(link);
  v1::NodeMessage message;
  v1::Join& join = *message.mutable_join();
  join.set_protocol_version(kProtocolVersion);
  join.set_role(v1::NODE_ROLE_WORKER);
  join.set_incarnation(7);
  join.set_address("127.0.0.1:4704");
  join.set_device("cpu");
  join.mutable_resume()->set_node_id(4);
  join.mutable_resume()->set_epoch(1);
  join.mutable_resume()->set_index(1);
  cluster_->on_message(link.get(), message);
  ASSERT_TRUE(link->closed.ok()) << link->closed;
  ASSERT_FALSE(link->sent.empty());
  EXPECT_TRUE(link->sent[0].joined().has_resumed());
  for (Iteration i = 0; i < 40; ++i) report(*link, i);
  EXPECT_EQ(status().iteration(), 40);
  EXPECT_THAT(status().message(), Not(HasSubstr("recover")));
}

/// Only the end of the job still waits for it.
TEST_F(CutOffWorkerTest, IsAwaitedWhenTheOthersHaveFinished) {
  train(100);
  for (const auto& worker : workers_) {
    if (worker == workers_[1]) {
      stand_still(60);
      ASSERT_EQ(status().state(), "running") << status().message();
      for (Iteration i = 0; i < 100; ++i) report(*worker, i);
    }
    v1::NodeMessage message;
    message.mutable_finished()->set_epoch(1);
    cluster_->on_message(worker.get(), message);
  }
  EXPECT_EQ(status().iteration(), 100);
  EXPECT_EQ(status().state(), "running") << "until the model is there";
  EXPECT_THAT(status().message(), Not(HasSubstr("recover")));
}

/// As if its machine had lost its power in the middle of an iteration.
TEST_F(CutOffWorkerTest, IsGivenUpWhenTheOthersWaitForItWithoutAWordOfBeingCutOff) {
  testing_support::LogCapture log;
  report(*workers_[1], 0);
  train(2);
  stand_still(8);
  EXPECT_EQ(status().state(), "recovering");
  EXPECT_THAT(log.end(), Not(HasSubstr("cut off")));
}

TEST_F(CutOffWorkerTest, IsGivenUpWhenTheOthersWaitForIt) {
  train(40);
  stand_still(8);
  EXPECT_EQ(status().state(), "recovering");
  EXPECT_EQ(state_of(1), "lost");
}

}  // namespace
}  // namespace poseidon::cluster_test
