// Nodes that come back: on a new stream, and to a coordinator that was started again.

#include <string>
#include <thread>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/threads/mutex.h"
#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::service_return_test {
namespace {

using ::testing::HasSubstr;

/// A worker spoken by hand, whose stream may break.
class ReturnTest : public ServiceTest {
 protected:
  static constexpr const char* kAddress = "10.0.0.2:4711";

  v1::Joined join(RawNode& node, const v1::Join& join) {
    node.join(join);
    const auto message = node.receive();
    EXPECT_TRUE(message && message->has_joined());
    return message ? message->joined() : v1::Joined();
  }
  v1::Join worker() const { return join_as(v1::NODE_ROLE_WORKER, kAddress); }
  v1::Join returning(std::uint64_t oldest, std::uint64_t next) const {
    v1::Join join = worker();
    v1::Resume& resume = *join.mutable_resume();
    resume.set_node_id(node_id_);
    resume.set_epoch(1);
    resume.set_oldest_iteration(oldest);
    resume.set_next_iteration(next);
    return join;
  }
  /// One server, one worker by hand, training.
  void train(RawNode& node) {
    add_server(FakeNode::Plays::kReady);
    node_id_ = join(node, worker()).node_id();
    ASSERT_TRUE(submit(1, 1).ok());
    ASSERT_TRUE(node.receive()->has_assign());
    v1::NodeMessage ready;
    ready.mutable_ready()->set_epoch(1);
    node.send(ready);
    ASSERT_TRUE(node.receive()->has_start());
  }
  /// Such a message, perhaps after others.
  static bool hears(RawNode& node, bool (v1::CoordinatorMessage::*is_it)() const) {
    while (const auto message = node.receive()) {
      if (((*message).*is_it)()) return true;
    }
    return false;
  }
  static void report(RawNode& node, std::uint64_t iteration) {
    v1::NodeMessage message;
    message.mutable_iteration()->set_epoch(1);
    message.mutable_iteration()->set_iteration(iteration);
    message.mutable_iteration()->set_loss(static_cast<double>(iteration));
    node.send(message);
  }
  void await_iteration(std::uint64_t iteration) {
    await([&](const v1::GetStatusResponse& r) { return r.iteration() == iteration; });
  }

  std::uint64_t node_id_ = 0;
};

TEST_F(ReturnTest, AWorkerOnANewStreamKeepsItsPart) {
  RawNode first(address_);
  train(first);
  report(first, 0);
  report(first, 1);
  await_iteration(2);
  first.drop();
  await([](const auto& r) { return r.workers(0).state() == "away"; });
  RawNode second(address_);
  const v1::Joined joined = join(second, returning(0, 4));
  ASSERT_TRUE(joined.has_resumed());
  EXPECT_EQ(joined.node_id(), node_id_);
  EXPECT_EQ(joined.resumed().next_iteration(), 2u);
  EXPECT_EQ(joined.resumed().next_test(), 0u);
  EXPECT_TRUE(second.receive()->has_start()) << "it may not have heard it";
  for (std::uint64_t i = 2; i < 4; ++i) report(second, i);
  await_iteration(4);
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().workers(0).state(), "running");
}

// As when a whole machine is shut down.
TEST_F(ReturnTest, AStopWaitsForNoCheckpointOfNodesThatAreAllGone) {
  CoordinatorOptions patient = options();
  patient.cluster.shutdown_checkpoint_timeout = std::chrono::minutes(2);
  patient.cluster.membership.heartbeat = Milliseconds(50);
  patient.cluster.membership.lease = Milliseconds(200);
  patient.cluster.membership.vouched_limit = std::chrono::minutes(5);
  start(patient);
  RawNode server(address_);
  join(server, join_as(v1::NODE_ROLE_SERVER, "10.0.0.1:4711"));
  RawNode worker(address_);
  join(worker, this->worker());
  ASSERT_TRUE(submit(1, 1).ok());
  v1::NodeMessage ready;
  ready.mutable_ready()->set_epoch(1);
  for (RawNode* const node : {&server, &worker}) {
    ASSERT_TRUE(hears(*node, &v1::CoordinatorMessage::has_assign));
    node->send(ready);
  }
  ASSERT_TRUE(worker.receive()->has_start());
  report(worker, 0);
  await_iteration(1);
  std::thread shutdown([this] { service_->shutdown("SIGTERM"); });
  const Nanoseconds begin = clock_.now();
  EXPECT_TRUE(hears(server, &v1::CoordinatorMessage::has_save_checkpoint));
  server.drop();
  worker.drop();
  shutdown.join();
  EXPECT_LT(clock_.now() - begin, std::chrono::minutes(1));
}

TEST_F(ReturnTest, ANewStreamTakesThePlaceOfOneThatIsStillOpen) {
  RawNode first(address_);
  train(first);
  RawNode second(address_);
  EXPECT_TRUE(join(second, returning(0, 0)).has_resumed());
  const grpc::Status end = first.end();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(end.error_message(), HasSubstr("another stream"));
  report(second, 0);
  await_iteration(1);
}

TEST_F(ReturnTest, WhatAWorkerNoLongerHasIsLeftOut) {
  RawNode first(address_);
  train(first);
  report(first, 0);
  await_iteration(1);
  RawNode second(address_);
  EXPECT_EQ(join(second, returning(3, 5)).resumed().next_iteration(), 3u);
  report(second, 3);
  report(second, 4);
  await_iteration(5);
  EXPECT_EQ(status().state(), "running");
}

TEST_F(ReturnTest, AnotherPartIsNotGivenBack) {
  RawNode first(address_);
  train(first);
  RawNode second(address_);
  v1::Join join = returning(0, 0);
  join.mutable_resume()->set_epoch(7);
  const v1::Joined joined = this->join(second, join);
  EXPECT_FALSE(joined.has_resumed());
  EXPECT_GT(joined.node_id(), node_id_);
  EXPECT_THAT(await_state("recovering").message(),
              HasSubstr("came back without its part in the job"));
}

TEST_F(ReturnTest, ReportsFromNowhereAreRefused) {
  RawNode first(address_);
  train(first);
  for (const std::uint64_t oldest : {std::uint64_t{6}, UINT64_MAX}) {
    RawNode stranger(address_);
    v1::Join join = returning(oldest, oldest);
    join.set_process_id(12);  // not the one that left
    stranger.join(join);
    EXPECT_EQ(stranger.end().error_code(), grpc::StatusCode::UNAVAILABLE) << "the place is taken";
  }
  EXPECT_EQ(status().state(), "running");
}

TEST_F(ReturnTest, AnotherProcessAtTheAddressMeansThatTheFirstIsDead) {
  RawNode first(address_);
  train(first);
  first.drop();
  await([](const auto& r) { return r.workers(0).state() == "away"; });
  RawNode second(address_);
  v1::Join fresh = worker();
  fresh.set_process_id(99);
  EXPECT_FALSE(join(second, fresh).has_resumed());
  EXPECT_THAT(await_state("recovering").message(), HasSubstr("another process has its address"));
}

TEST_F(ReturnTest, AfterTheLeaseNobodyIsTakenBack) {
  start_with_short_lease();
  RawNode first(address_);
  train(first);
  first.drop();
  EXPECT_THAT(await_state("recovering").message(), HasSubstr("did not come back for"));
  RawNode second(address_);
  EXPECT_FALSE(join(second, returning(0, 0)).has_resumed());
}

TEST_F(ReturnTest, TheControlClientComesBackAndTellsWhatIsLacking) {
  add_server(FakeNode::Plays::kReady);
  FakeNode node(address_, worker(), FakeNode::Plays::kReady);
  ASSERT_TRUE(node.wait_joined());
  node_id_ = node.joined_[0].node_id();
  ASSERT_TRUE(submit(1, 1).ok());
  await_state("running");
  const auto tell = [&node](std::uint64_t iteration) {
    v1::NodeMessage message;
    message.mutable_iteration()->set_epoch(1);
    message.mutable_iteration()->set_iteration(iteration);
    message.mutable_iteration()->set_loss(1.0);
    EXPECT_TRUE(node.client().send(message)) << "with or without a stream";
  };
  for (std::uint64_t i = 0; i < 2; ++i) tell(i);
  await_iteration(2);
  // Takes its place, which ends its stream, and it takes it back. What it says meanwhile is kept.
  RawNode thief(address_);
  ASSERT_TRUE(join(thief, returning(0, 2)).has_resumed());
  for (std::uint64_t i = 2; i < 5; ++i) tell(i);
  ASSERT_TRUE(node.wait_joined(2));
  EXPECT_EQ(thief.end().error_code(), grpc::StatusCode::ABORTED);
  await_iteration(5);
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(refused("duplicate"), 1u) << "Ready, which is told again; no iteration";
  const MutexLock lock(node.mutex_);
  EXPECT_TRUE(node.joined_[1].has_resumed());
  EXPECT_EQ(node.joined_[1].node_id(), node_id_);
  EXPECT_EQ(node.away_.size(), 1u);
  EXPECT_TRUE(node.lost_.empty());
}

TEST_F(ReturnTest, TheControlClientHearsThatItIsNotTakenBack) {
  add_server(FakeNode::Plays::kReady);
  FakeNode node(address_, worker(), FakeNode::Plays::kReady);
  ASSERT_TRUE(node.wait_joined());
  node_id_ = node.joined_[0].node_id();
  ASSERT_TRUE(submit(1, 1).ok());
  await_state("running");
  RawNode thief(address_);  // ends the job in its name
  thief.join(returning(0, 0));
  v1::NodeMessage leave;
  leave.mutable_leave()->set_reason("goodbye");
  thief.send(leave);  // at once: the node will be back soon
  await_state("recovering");
  ASSERT_TRUE(node.wait_joined(2));
  EXPECT_TRUE(node.wait([&] { return node.lost_.size() == 1; }));
  const MutexLock lock(node.mutex_);
  EXPECT_FALSE(node.joined_.back().has_resumed());
  EXPECT_GT(node.joined_.back().node_id(), node_id_);
}

TEST_F(ReturnTest, SayingGoodbyeNeedsNoLease) {
  RawNode first(address_);
  train(first);
  v1::NodeMessage leave;
  leave.mutable_leave()->set_reason("SIGTERM");
  first.send(leave);
  EXPECT_THAT(await_state("recovering").message(), HasSubstr("left (SIGTERM)"));
}

// ---- the coordinator comes back ----

/// As after SIGKILL: what a coordinator leaves on disk, without its goodbye.
class RestartTest : public ReturnTest {
 protected:
  std::filesystem::path record() const { return folder_ / "state" / "job.json"; }
  void restart_as_if_killed() {
    await([&](const auto&) { return read_file(record()).find("running") != std::string::npos; });
    const std::string kept = read_file(record());
    const std::string metrics = read_file(folder_ / "run" / "metrics.jsonl");
    CoordinatorOptions again = options();
    again.listen = address_;
    service_->shutdown("the test ends it");
    EXPECT_FALSE(std::filesystem::exists(record())) << "a job that ended is not gone on with";
    nodes_.clear();
    service_.reset();
    std::ofstream(record()) << kept;
    std::ofstream(folder_ / "run" / "metrics.jsonl") << metrics << R"({"iteration":)";
    start(again);
  }
};

TEST_F(RestartTest, GoesOnWhereTheMetricsEnd) {
  RawNode first(address_);
  train(first);
  report(first, 0);
  report(first, 1);
  await_iteration(2);
  await([&](const auto&) {
    return read_file(folder_ / "run" / "metrics.jsonl").find("\"iteration\":1") !=
           std::string::npos;
  });
  restart_as_if_killed();
  const v1::GetStatusResponse waiting = status();
  EXPECT_EQ(waiting.state(), "running");
  EXPECT_EQ(waiting.iteration(), 2u);
  EXPECT_EQ(waiting.epoch(), 1u);
  EXPECT_EQ(waiting.loss(), 1.0);
  EXPECT_EQ(waiting.workers(0).state(), "away");
  EXPECT_THAT(waiting.message(), HasSubstr("no message from any node"));
  EXPECT_EQ(submit(1, 1).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  RawNode second(address_);
  const v1::Joined joined = join(second, returning(0, 5));
  ASSERT_TRUE(joined.has_resumed());
  EXPECT_EQ(joined.resumed().next_iteration(), 2u);
  EXPECT_TRUE(second.receive()->has_start());
  for (std::uint64_t i = 2; i < 5; ++i) report(second, i);
  await_iteration(5);
  RawNode server(address_);
  v1::Join back = join_as(v1::NODE_ROLE_SERVER, "127.0.0.1:5000");
  back.mutable_resume()->set_node_id(node_id_ - 1);
  back.mutable_resume()->set_epoch(1);
  EXPECT_TRUE(join(server, back).has_resumed());
  // Lines are written behind what status tells.
  await([&](const auto&) {
    return read_file(folder_ / "run" / "metrics.jsonl").find("\"iteration\":4") !=
           std::string::npos;
  });
  std::istringstream metrics(read_file(folder_ / "run" / "metrics.jsonl"));
  std::string line;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(std::getline(metrics, line));
    EXPECT_THAT(line, HasSubstr("{\"iteration\":" + std::to_string(i) + ",")) << "torn, or twice";
  }
}

TEST_F(RestartTest, AStopMayKeepTheJob) {
  CoordinatorOptions keeping = options();
  keeping.cluster.on_shutdown = OnShutdown::kKeepJob;
  keeping.cluster.shutdown_checkpoint_timeout = Nanoseconds::zero();
  start(keeping);
  RawNode first(address_);
  train(first);
  report(first, 0);
  report(first, 1);
  await_iteration(2);
  keeping.listen = address_;
  service_->shutdown("SIGTERM");
  EXPECT_FALSE(first.receive()) << "no word about the job";
  EXPECT_EQ(first.end().error_code(), grpc::StatusCode::UNAVAILABLE);
  service_.reset();
  EXPECT_THAT(read_file(record()), HasSubstr("running"));
  EXPECT_THAT(read_file(folder_ / "run" / "metrics.jsonl"), HasSubstr("\"iteration\":1"));
  start(keeping);
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().iteration(), 2u);
  RawNode second(address_);
  EXPECT_TRUE(join(second, returning(0, 4)).has_resumed());
}

TEST_F(RestartTest, AServerHearsWhatIsWantedOfItsStore) {
  CheckpointManifest manifest;
  manifest.job_id = "digits-1";
  manifest.job_name = "digits";
  manifest.run_directory = "/runs/1";
  manifest.workers = 1;
  manifest.begun_with = 1;
  manifest.job_json = "{}";
  manifest.stores = {std::string(32, 'a'), std::string(32, 'b')};
  manifest.plan = {.servers = 2, .layers = {{.name = "fc", .shape = {2, 2}, .parameters = 4}}};
  manifest.pieces = {{.layer = LayerIndex(0), .elements = 4},
                     {.layer = std::nullopt, .holder = ServerIndex(0), .giver = WorkerRank(0)}};
  const std::filesystem::path folder = folder_ / "state" / "checkpoints" / "digits-1";
  std::filesystem::create_directories(folder);
  for (const Iteration iteration : {10, 20}) {
    manifest.snapshot = snapshot_id(Epoch(1), iteration);
    std::ofstream(folder / (snapshot_name(manifest.snapshot) + ".json"))
        << manifest_to_json(manifest);
    manifest.stores.pop_back();  // the later one is on the first store alone
  }
  start();
  const auto wanted_of = [this](char digit) {
    RawNode server(address_);
    v1::Join server_join = join_as(v1::NODE_ROLE_SERVER, std::string("10.0.0.") + digit + ":1");
    server_join.set_store_identity(std::string(32, digit));
    join(server, server_join);
    const auto message = server.receive();
    EXPECT_TRUE(message && message->has_keep_checkpoints());
    return message->keep_checkpoints();
  };
  const v1::KeepCheckpoints first = wanted_of('a');
  EXPECT_EQ(first.identity() + "\n", read_file(folder_ / "state" / "STATE_IDENTITY"));
  EXPECT_THAT(first.snapshots(), ::testing::ElementsAre(snapshot_id(Epoch(1), 10).value(),
                                                        snapshot_id(Epoch(1), 20).value()));
  EXPECT_THAT(wanted_of('b').snapshots(),
              ::testing::ElementsAre(snapshot_id(Epoch(1), 10).value()));
  EXPECT_EQ(wanted_of('c').snapshots_size(), 0);
  std::ofstream(folder / "1-30.json") << "torn";
  start();
  EXPECT_EQ(wanted_of('a').identity(), "") << "what it wants of 1-30 it cannot tell";
}

// The state directory is an older copy, or the server another coordinator's.
TEST_F(RestartTest, WhoHearsOfEpochsThatItHasNotBegunRemovesNothing) {
  start();
  RawNode node(address_);
  train(node);
  const std::string identity = read_file(folder_ / "state" / "STATE_IDENTITY");
  const auto wanted_of = [this](char digit, std::uint64_t newest_epoch) {
    RawNode server(address_);
    v1::Join server_join = join_as(v1::NODE_ROLE_SERVER, std::string("10.0.0.") + digit + ":1");
    server_join.set_store_identity(std::string(32, digit));
    server_join.set_newest_epoch(newest_epoch);
    join(server, server_join);
    const auto message = server.receive();
    EXPECT_TRUE(message && message->has_keep_checkpoints());
    return message->keep_checkpoints().identity() + "\n";
  };
  start();
  EXPECT_EQ(wanted_of('a', 1), identity) << "the epoch that was begun here";
  EXPECT_EQ(wanted_of('b', 3), "\n");
  EXPECT_EQ(wanted_of('a', 1), "\n") << "one that was not there since may have them, too";
  await(
      [&](const auto&) { return !std::filesystem::exists(folder_ / "state" / "STATE_IDENTITY"); });
  start();
  EXPECT_NE(read_file(folder_ / "state" / "STATE_IDENTITY"), identity) << "of what is a copy";
  EXPECT_EQ(wanted_of('a', 1), read_file(folder_ / "state" / "STATE_IDENTITY"));
}

TEST_F(RestartTest, ARecordThatMakesNoSenseIsSetAside) {
  service_.reset();
  std::ofstream(record()) << "{\"version\": 1, \"id\"";
  start();
  EXPECT_EQ(status().state(), "idle");
  EXPECT_FALSE(std::filesystem::exists(record()));
  EXPECT_THAT(read_file(folder_ / "state" / "job.json.broken"), HasSubstr("version"));
  EXPECT_TRUE(submit(1, 1).ok());
}

TEST_F(RestartTest, AJobWhoseRecordWasMovedAwayIsNotPassedOver) {
  start();
  EXPECT_EQ(status().message(), "") << "there was none";
  RawNode node(address_);
  train(node);
  service_.reset();
  std::filesystem::remove(folder_ / "state" / "last_job.json");
  ASSERT_FALSE(std::filesystem::exists(record()));
  start();
  EXPECT_EQ(status().state(), "idle");
  EXPECT_THAT(status().message(),
              HasSubstr("how the last one ended, if there was one, is not known"));
}

TEST_F(RestartTest, WhatStandsInTheWayOfAJobEndsItNot) {
  RawNode first(address_);
  train(first);
  report(first, 0);
  await_iteration(1);
  await([&](const auto&) { return read_file(record()).find("running") != std::string::npos; });
  const std::string kept = read_file(record());
  CoordinatorOptions again = options();
  again.listen = address_;
  service_->shutdown("the test ends it");
  nodes_.clear();
  service_.reset();
  std::ofstream(record()) << kept;
  // Its disk is not there yet.
  std::filesystem::rename(folder_ / "run", folder_ / "unmounted");
  const auto refused = CoordinatorService::start(again, resolver, &clock_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& part : {record().string(), (folder_ / "run").string(),
                                  std::string("correct that"), std::string("give the job up")}) {
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(part));
  }
  EXPECT_EQ(read_file(record()), kept);
  std::filesystem::rename(folder_ / "unmounted", folder_ / "run");
  // Its checkpoints are not there.
  std::string with_checkpoints = kept;
  const std::size_t at = with_checkpoints.find("\"first_iteration\"");
  ASSERT_NE(at, std::string::npos);
  with_checkpoints.insert(at, "\"has_checkpoints\": true, ");
  std::ofstream(record()) << with_checkpoints;
  const auto changed = CoordinatorService::start(again, resolver, &clock_);
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(changed.status().message()), HasSubstr("the file has changed"));
  EXPECT_EQ(read_file(record()), with_checkpoints) << "its nodes wait for a whole one";
  with_checkpoints.erase(2, with_checkpoints.find('\n', 2) - 1);  // the checksum
  std::ofstream(record()) << with_checkpoints;
  const auto without = CoordinatorService::start(again, resolver, &clock_);
  EXPECT_EQ(without.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part :
       {"it has checkpoints, but", "checkpoints has none that can be read", "correct that"}) {
    EXPECT_THAT(std::string(without.status().message()), HasSubstr(part));
  }
  EXPECT_EQ(read_file(record()), with_checkpoints);
  std::ofstream(record()) << kept;
  // Another process has its port, or that of its page.
  for (const bool page : {false, true}) {
    CoordinatorOptions elsewhere = options();
    elsewhere.state_dir = (folder_ / "other").string();
    if (page) elsewhere.status_listen = "127.0.0.1:0";
    auto other = CoordinatorService::start(elsewhere, resolver, &clock_);
    ASSERT_TRUE(other.ok()) << other.status();
    CoordinatorOptions taken = again;
    if (page) {
      const std::string url = (*other)->status_url();
      taken.status_listen = url.substr(url.rfind('/') + 1);
    } else {
      taken.listen = (*other)->address();
    }
    EXPECT_FALSE(CoordinatorService::start(taken, resolver, &clock_).ok());
    EXPECT_EQ(read_file(record()), kept);
  }
  start(again);
  EXPECT_EQ(status().state(), "running");
  EXPECT_EQ(status().iteration(), 1u);
}

TEST_F(RestartTest, AJobThatHadNotStartedBeginsAnew) {
  ASSERT_TRUE(submit(1, 1).ok());
  const std::string kept = read_file(record());
  service_.reset();
  std::ofstream(record()) << kept;
  start();
  EXPECT_EQ(status().state(), "waiting");
  EXPECT_EQ(status().job_id(), "digits-1");
  EXPECT_EQ(status().epoch(), 2u) << "epochs are never given twice";
  add_server(FakeNode::Plays::kWholeJob);
  add_worker(FakeNode::Plays::kWholeJob);
  await_state("done");
}

}  // namespace
}  // namespace poseidon::service_return_test
