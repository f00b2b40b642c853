// A job's life at the coordinator: joins of nodes, messages to them, files, and the state that
// survives a restart.

#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/service_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::service_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace fs = std::filesystem;

TEST_F(ServiceTest, AWholeJobFromSubmitToItsFiles) {
  for (int i = 0; i < 2; ++i) add_server(FakeNode::Plays::kWholeJob);
  for (int i = 0; i < 3; ++i) add_worker(FakeNode::Plays::kWholeJob);
  EXPECT_EQ(status().state(), "idle");
  const grpc::Status submitted = submit(3, 2, R"({"name": "digits"})");
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  EXPECT_EQ(submitted_.job_id(), "digits-1");
  for (const auto& node : nodes_) {
    ASSERT_TRUE(node->wait_stop());
    EXPECT_TRUE(node->stops_[0].succeeded()) << node->stops_[0].reason();
    EXPECT_EQ(node->assigned_[0].job_json(), R"({"name": "digits"})");
  }
  const v1::GetStatusResponse done = await_state("done");
  EXPECT_EQ(done.job(), "digits");
  EXPECT_EQ(done.iteration(), 5u);
  EXPECT_EQ(done.iterations(), 5u);
  EXPECT_EQ(done.loss(), 2.0) << "mean of 1, 2 and 3";
  EXPECT_EQ(done.test_loss(), 0.5);
  EXPECT_EQ(done.test_accuracy(), 0.9);
  EXPECT_EQ(done.tested_iteration(), 5u);
  EXPECT_EQ(done.workers_size(), 3);
  EXPECT_EQ(done.servers_size(), 2);
  EXPECT_EQ(done.layers_size(), 2);
  EXPECT_EQ(done.layers(1).name(), "fc");
  EXPECT_EQ(done.layers(1).scheme(), "ps");
  EXPECT_EQ(done.images_per_s(), 0.0) << "rates end with the job";
  EXPECT_GT(done.training_seconds(), 0.0);
  for (const auto& layer : done.layers()) EXPECT_EQ(layer.sent_bytes_per_s(), 0.0);
  for (const auto& worker : done.workers()) EXPECT_TRUE(std::isnan(worker.images_per_s()));

  const fs::path run = folder_ / "run";
  std::istringstream metrics(read_file(run / "metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_THAT(lines, SizeIs(kIterations + 1));
  for (int i = 0; i < kIterations; ++i)
    EXPECT_EQ(lines[static_cast<std::size_t>(i)]["iteration"], i);
  EXPECT_EQ(lines[0]["loss"], 2.0);
  EXPECT_EQ(lines[0]["learning_rate"], 0.05);
  EXPECT_EQ(lines[5]["test_accuracy"], 0.9);
  EXPECT_EQ(read_file(run / "model.safetensors"), nodes_[0]->model());
  EXPECT_EQ(read_file(run / "job.json"), R"({"name": "digits"})");
  EXPECT_EQ(nlohmann::json::parse(read_file(run / "plan.json"))["workers"], 3);
  EXPECT_EQ(std::distance(fs::directory_iterator(run), {}), 4) << "and no temporary files";

  start();  // another process
  const v1::GetStatusResponse recalled = status();
  EXPECT_EQ(recalled.state(), "done");
  EXPECT_EQ(recalled.job_id(), "digits-1");
  EXPECT_EQ(recalled.iteration(), 5u);
  EXPECT_EQ(recalled.loss(), 2.0);
  EXPECT_EQ(recalled.run_directory(), run.string());
  EXPECT_EQ(recalled.layers_size(), 0);
  ASSERT_TRUE(submit(3, 2).ok());
  EXPECT_FALSE(fs::exists(folder_ / "state" / "last_job.json")) << "it is not the last any more";
  EXPECT_EQ(read_file(run / "earlier" / "model.safetensors"), nodes_[0]->model());
}

TEST_F(ServiceTest, TheNextJobRunsOnTheSameNodesInANewEpoch) {
  add_server(FakeNode::Plays::kWholeJob);
  for (std::size_t round = 1; round <= 2; ++round) {
    if (round == 1) add_worker(FakeNode::Plays::kReady);
    ASSERT_TRUE(submit(1, 1).ok());
    await_state("running");
    EXPECT_EQ(status().epoch(), round);
    if (round == 1) {
      v1::NodeMessage message;
      message.mutable_failed()->set_epoch(round);
      EXPECT_TRUE(nodes_.back()->client().send(message));
      await_state("failed");
    }
  }
}

TEST_F(ServiceTest, AnAddressThatDoesNotAnswerIsInTheStatus) {
  CoordinatorOptions probing = options();
  probing.probes_addresses = true;
  start(probing);
  FakeNode node(address_, join_as(v1::NODE_ROLE_SERVER, "127.0.0.1:1"), FakeNode::Plays::kReady);
  const auto answer = await([](const v1::GetStatusResponse& r) {
    return r.servers_size() == 1 && !r.servers(0).note().empty();
  });
  EXPECT_THAT(answer.servers(0).note(),
              HasSubstr("cannot connect to 127.0.0.1:1 (Connection refused)"));
}

TEST_F(ServiceTest, StatusShowsNodesAndTheirTraffic) {
  start_with_short_lease();
  run_job();
  const v1::GetStatusResponse response = await([](const v1::GetStatusResponse& r) {
    return r.layers_size() == 2 && r.layers(0).sent_bytes_per_s() > 0.0;
  });
  EXPECT_NEAR(response.layers(0).received_bytes_per_s() / response.layers(0).sent_bytes_per_s(),
              2.0, 1e-9);
  EXPECT_EQ(response.layers(1).sent_bytes_per_s(), 0.0);
  ASSERT_EQ(response.workers_size(), 1);
  EXPECT_EQ(response.workers(0).rank(), 0);
  EXPECT_EQ(response.workers(0).state(), "running");
  EXPECT_EQ(response.workers(0).device(), "cpu");
  EXPECT_EQ(response.servers(0).address(), "127.0.0.1:5000");
  EXPECT_TRUE(std::isnan(response.loss()));
  EXPECT_EQ(refused("stale_data"), 4u) << "2 from each of two nodes, as running totals";
}

TEST_F(ServiceTest, AWorkerThatComesLateIsToldWhatForItIsHere) {
  run_job();
  FakeNode& late = add_worker(FakeNode::Plays::kReady);
  EXPECT_THAT(
      late.joined_[0].note(),
      HasSubstr("job digits-1 is running with 1 workers and 1 servers; this worker joins the "
                "job if it accepts more workers"));
  const v1::GetStatusResponse response = status();
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(1).rank(), -1);
  EXPECT_EQ(response.workers(1).state(), "idle");
}

TEST_F(ServiceTest, AWildcardHostBecomesTheOneThatIsSeen) {
  FakeNode node(address_, join_as(v1::NODE_ROLE_SERVER, "0.0.0.0:4711"), FakeNode::Plays::kReady);
  ASSERT_TRUE(node.wait_joined());
  EXPECT_EQ(status().servers(0).address(), "127.0.0.1:4711");
}

TEST_F(ServiceTest, NodesOutliveARestartOfTheCoordinator) {
  run_job();
  CoordinatorOptions again = options();
  again.listen = address_;
  service_->shutdown("SIGTERM");
  ASSERT_TRUE(nodes_[1]->wait_stop());
  EXPECT_THAT(nodes_[1]->stop_reason(), HasSubstr("the coordinator was stopped (SIGTERM)"));
  start(again);
  for (const auto& node : nodes_) {
    EXPECT_TRUE(node->wait_joined(2));
    EXPECT_THAT(node->away_, SizeIs(1));
    EXPECT_THAT(node->lost_, IsEmpty()) << "its part had ended before";
  }
  const v1::GetStatusResponse last = status();
  EXPECT_EQ(last.job_id(), "digits-1");
  EXPECT_EQ(last.state(), "stopped");
  EXPECT_THAT(last.message(), HasSubstr("the coordinator was stopped (SIGTERM)"));
  EXPECT_EQ(last.workers_size(), 1) << "as they are now";
  EXPECT_EQ(last.workers(0).state(), "idle");
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_EQ(status().job_id(), "digits-2");
  EXPECT_EQ(submitted_.job_id(), "digits-2") << "epochs are never given twice";
}

TEST_F(ServiceTest, AnOperatorEndsTheJobAndTheClusterStays) {
  const auto end_job = [this](const std::string& id, v1::EndJobResponse& response) {
    grpc::ClientContext context;
    v1::EndJobRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_job_id(id);
    return stub_->EndJob(&context, request, &response);
  };
  v1::EndJobResponse response;
  grpc::Status refused = end_job("", response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("no job is active"));
  run_job();
  refused = end_job("digits-7", response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("job digits-7 is not active"));
  EXPECT_EQ(status().state(), "running");
  const grpc::Status ended = end_job("digits-1", response);
  ASSERT_TRUE(ended.ok()) << ended.error_message();
  EXPECT_EQ(response.job_id(), "digits-1");
  EXPECT_EQ(response.run_directory(), (folder_ / "run").string());
  EXPECT_FALSE(response.waits());
  EXPECT_THAT(await_state("stopped").message(), HasSubstr("an operator stopped it"));
  ASSERT_TRUE(nodes_[1]->wait_stop());
  EXPECT_THAT(nodes_[1]->stop_reason(), HasSubstr("an operator stopped it"));
  refused = end_job("digits-1", response);
  EXPECT_THAT(refused.error_message(), HasSubstr("no job is active"));
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_EQ(status().job_id(), "digits-2");
}

TEST_F(ServiceTest, WeightsThatTheRunWouldMoveAreRefused) {
  const auto submit_with = [this](const char* name) {
    return submit(1, 1, "weights " + (folder_ / "run" / name).string());
  };
  for (const char* name : {"model.safetensors", "earlier/model.safetensors",
                           "earlier/incoming/model.safetensors", "x/../model.safetensors"}) {
    const grpc::Status refused = submit_with(name);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << name;
    EXPECT_THAT(refused.error_message(), HasSubstr("--run-dir"));
  }
  EXPECT_TRUE(submit_with("initial.safetensors").ok());
}

// Clients that follow a job poll; the coordinator waits for no other clients.
TEST_F(ServiceTest, AStopWaitsForThoseWhoFollowTheJobAlone) {
  const auto time_to_stop = [this] {
    const Nanoseconds begin = clock_.now();
    service_->shutdown("SIGTERM");
    return clock_.now() - begin;
  };
  CoordinatorOptions patient = options();
  patient.cluster.last_words = std::chrono::minutes(1);
  start(patient);
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_LT(time_to_stop(), std::chrono::minutes(1));

  // With a connection of its own each: one asks all the time, one now and then.
  grpc::ChannelArguments apart;
  apart.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  start(patient);
  ASSERT_TRUE(submit(1, 1).ok());
  std::array<std::atomic<bool>, 2> follows{};
  std::array<std::string, 2> heard;
  std::vector<std::thread> followers;
  for (std::size_t i = 0; i < 2; ++i) {
    followers.emplace_back([&, i, pause = i * Milliseconds(300)] {
      const auto stub = v1::Coordinator::NewStub(
          grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), apart));
      for (v1::GetStatusResponse now = status(*stub); now.state() != ""; now = status(*stub)) {
        follows[i] = true;
        heard[i] = now.message();
        if (now.state() == "stopped") return;
        std::this_thread::sleep_for(pause);
      }
    });
  }
  for (const auto& one : follows) {
    while (!one) std::this_thread::yield();
  }
  EXPECT_LT(time_to_stop(), std::chrono::seconds(50)) << "no longer than it must";
  for (std::thread& follower : followers) follower.join();
  EXPECT_THAT(heard, Each(HasSubstr("the coordinator was stopped (SIGTERM)")));
}

// Who asked just before, and never comes again.
TEST_F(ServiceTest, AStopDoesNotWaitForThemForEver) {
  CoordinatorOptions patient = options();
  patient.cluster.last_words = Milliseconds(300);
  start(patient);
  ASSERT_TRUE(submit(1, 1).ok());
  EXPECT_EQ(status().job_id(), "digits-1");
  const Nanoseconds begin = clock_.now();
  service_->shutdown("SIGTERM");
  EXPECT_LT(clock_.now() - begin, std::chrono::seconds(30));
}

TEST_F(ServiceTest, AnOutcomeThatCannotBeReadIsNoHindrance) {
  const std::filesystem::path file = folder_ / "state" / "last_job.json";
  service_.reset();
  std::ofstream(file) << R"({"state": "done", "job_id": "digits-7"})";
  start();
  EXPECT_EQ(status().job_id(), "digits-7");
  service_.reset();
  std::ofstream(file) << "torn";
  start();
  EXPECT_EQ(status().state(), "idle");
}

TEST_F(ServiceTest, LeavingCleanlyIsSeenAtOnce) {
  FakeNode& worker = add_worker(FakeNode::Plays::kReady);
  worker.client().stop("SIGTERM");
  EXPECT_TRUE(worker.wait_result().ok());
  await([](const v1::GetStatusResponse& r) { return r.workers_size() == 0; });
}

TEST_F(ServiceTest, ANodeWaitsForACoordinatorThatComesLater) {
  service_.reset();
  CoordinatorOptions later = options();
  later.listen = "127.0.0.1:" + std::to_string(free_port());
  FakeNode node(later.listen, join_as(v1::NODE_ROLE_WORKER, ""), FakeNode::Plays::kReady);
  EXPECT_FALSE(node.client().send(v1::NodeMessage())) << "there is no stream yet";
  std::this_thread::sleep_for(Milliseconds(300));  // some tries fail first
  start(later);
  EXPECT_TRUE(node.wait_joined());
}

TEST_F(ServiceTest, StopEndsTheSearchForACoordinator) {
  FakeNode node("127.0.0.1:" + std::to_string(free_port()), join_as(v1::NODE_ROLE_WORKER, ""),
                FakeNode::Plays::kReady);
  node.client().stop("SIGTERM");
  EXPECT_TRUE(node.wait_result().ok());
}

}  // namespace
}  // namespace poseidon::service_test
