#include "coordinator/records/durable_job.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::durable_job_test {
namespace {

using ::testing::HasSubstr;

NodeInfo node(std::uint64_t id, NodeRole role, std::string address) {
  NodeInfo info;
  info.id = NodeId(id);
  info.role = role;
  info.address = std::move(address);
  info.process_id = 4711;
  return info;
}

DurableJob running_job() {
  DurableJob job;
  job.id = "digits-3";
  job.job_json = R"({"name": "digits", "weird": "\"\n"})";
  job.run_directory = "/runs/3";
  job.workers = 2;
  DurableJob::Running running;
  running.plan.epoch = Epoch(3);
  running.plan.batch_size = 32;
  running.plan.worker_addresses = {"w:1", ""};
  running.plan.server_addresses = {"s:1"};
  PlanLayer layer;
  layer.name = "fc";
  layer.type = "fully_connected";
  layer.shape = {10, 50};
  layer.parameters = 510;
  layer.reason = "because";
  running.plan.layers = {layer};
  running.plan.chunks = {
      {.layer = LayerIndex(0), .offset = 0, .elements = 510, .server = ServerIndex(0)}};
  running.plan_basis = "not calibrated: one worker";
  running.workers = {node(4, NodeRole::kWorker, "w:1"), node(2, NodeRole::kWorker, "")};
  running.workers[0].device = "cpu";
  running.workers[0].peer_host = "10.0.0.9";
  running.servers = {node(9, NodeRole::kServer, "s:1")};
  running.servers[0].store_identity = "disk-9";
  running.first_iteration = 40;
  running.begun_with = 3;
  running.samples = 5120;
  running.started_unix_ms = 1'700'000'000'000;
  running.has_checkpoints = true;
  running.abandoned = {snapshot_id(Epoch(2), 60), snapshot_id(Epoch(2), 80)};
  running.data = DataIdentity{.train = {.samples = 60000, .digest = 7},
                              .test = DatasetIdentity{.samples = 10000, .digest = 9}};
  job.running = running;
  return job;
}

TEST(DurableJob, MetricsMayHaveBeenTakenBackForAnEpochThatHadNotBegun) {
  DurableJob::Running running = *running_job().running;  // from 40 on
  std::vector<CheckpointManifest> committed(3);
  committed[0].snapshot = snapshot_id(Epoch(2), 20);
  committed[1].snapshot = snapshot_id(Epoch(2), 40);
  committed[2].snapshot = snapshot_id(Epoch(2), 60);
  EXPECT_EQ(completed_iterations(running, committed, 55), 55);
  EXPECT_EQ(completed_iterations(running, committed, 20), 40) << "lines were lost";
  running.stopped = true;
  EXPECT_EQ(completed_iterations(running, committed, 55), 55);
  EXPECT_EQ(completed_iterations(running, committed, 20), 20) << "40 could not be read";
  running.abandoned.push_back(committed[0].snapshot);
  EXPECT_EQ(completed_iterations(running, committed, 20), 40) << "nothing goes back there";
  // A branch begins without lines, from another run's checkpoint.
  EXPECT_EQ(completed_iterations(running, {committed[1]}, 0), 40);
  EXPECT_EQ(completed_iterations(running, {}, 0), 40);
}

// A hundred nodes that are named in a reason.
TEST(DurableJob, IsReadHoweverLongItsReasonIs) {
  DurableJob job = running_job();
  job.running->recovering_from = std::string(5000, 'x');
  job.running->plan_basis = std::string(5000, 'y');
  const absl::StatusOr<DurableJob> read = durable_job_from_json(durable_job_to_json(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->running->recovering_from, std::string(4096, 'x'));
  EXPECT_EQ(read->running->plan_basis, std::string(4096, 'y'));
}

TEST(DurableJob, ThereAndBack) {
  const absl::StatusOr<DurableJob> read = durable_job_from_json(durable_job_to_json(running_job()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, "digits-3");
  EXPECT_EQ(read->job_json, running_job().job_json);
  EXPECT_EQ(read->run_directory, "/runs/3");
  EXPECT_EQ(read->workers, 2u);
  EXPECT_EQ(read->servers, 0u);
  ASSERT_TRUE(read->running);
  EXPECT_EQ(read->running->plan.epoch, Epoch(3));
  EXPECT_EQ(read->running->plan.layers[0].parameters, 510);
  EXPECT_EQ(read->running->plan_basis, "not calibrated: one worker");
  EXPECT_EQ(read->running->started_unix_ms, 1'700'000'000'000);
  ASSERT_EQ(read->running->workers.size(), 2u);
  EXPECT_EQ(read->running->workers[0].id, NodeId(4));
  EXPECT_EQ(read->running->workers[0].device, "cpu");
  EXPECT_EQ(read->running->workers[0].peer_host, "10.0.0.9");
  EXPECT_EQ(read->running->workers[0].process_id, 4711u);
  EXPECT_EQ(read->running->servers[0].role, NodeRole::kServer);
  EXPECT_EQ(read->running->servers[0].store_identity, "disk-9");
  EXPECT_EQ(read->running->first_iteration, 40);
  EXPECT_EQ(read->running->begun_with, 3);
  EXPECT_EQ(read->running->samples, 5120);
  EXPECT_TRUE(read->running->has_checkpoints);
  EXPECT_EQ(read->running->abandoned, running_job().running->abandoned);
  EXPECT_EQ(read->running->data, running_job().running->data);
}

TEST(DurableJob, BeforeTheStartThereIsNoPlan) {
  DurableJob job = running_job();
  job.running.reset();
  const absl::StatusOr<DurableJob> read = durable_job_from_json(durable_job_to_json(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->running);
}

TEST(DurableJob, ARecoveryThatHasBegun) {
  DurableJob job = running_job();
  EXPECT_EQ(durable_job_from_json(durable_job_to_json(job))->running->recovering_from, "");
  job.source = snapshot_id(Epoch(2), 40);
  job.running->recovering_from = "worker 1 was lost";
  job.running->lost = {NodeId(2)};
  absl::StatusOr<DurableJob> read = durable_job_from_json(durable_job_to_json(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->source, snapshot_id(Epoch(2), 40));
  EXPECT_EQ(read->running->recovering_from, "worker 1 was lost");
  EXPECT_THAT(read->running->lost, ::testing::ElementsAre(NodeId(2)));
  EXPECT_FALSE(read->running->stopped);
  job.running->stopped = true;
  job.running->workers.pop_back();  // the others do without it
  read = durable_job_from_json(durable_job_to_json(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->running->stopped);
  EXPECT_EQ(read->running->workers.size(), 1u);
}

TEST(DurableJob, TrustsNothing) {
  const auto refusal = [](const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json json = nlohmann::json::parse(durable_job_to_json(running_job()));
    json.erase("checksum");  // as who edits it does
    spoil(json);
    return std::string(durable_job_from_json(json.dump()).status().message());
  };
  using J = nlohmann::json;
  EXPECT_EQ(refusal([](J&) {}), "") << "unspoilt it is fine";
  EXPECT_THAT(refusal([](J& j) { j["version"] = 2; }), HasSubstr("version"));
  EXPECT_THAT(refusal([](J& j) { j.erase("id"); }), HasSubstr("id"));
  EXPECT_THAT(refusal([](J& j) { j["job"] = 1; }), HasSubstr("job"));
  EXPECT_THAT(refusal([](J& j) { j["run_directory"] = "x"; }), HasSubstr("absolute"));
  EXPECT_THAT(refusal([](J& j) { j["running"] = nullptr; }), HasSubstr("running"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["plan"] = "????"; }), HasSubstr("plan"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["plan"] = "AAAA"; }), HasSubstr("plan"));
  EXPECT_NE(refusal([](J& j) { j["running"]["plan"] = ""; }), "");
  EXPECT_THAT(refusal([](J& j) { j["running"]["workers"].erase(1); }), HasSubstr("of the plan"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["workers"][0]["address"] = "x:1"; }),
              HasSubstr("of the plan"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["workers"][0]["id"] = 9; }), HasSubstr("twice"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["servers"][0]["id"] = -1; }),
              HasSubstr("running.servers[0].id"));
  EXPECT_THAT(refusal([](J& j) { j["source"] = "x"; }), HasSubstr("source"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["lost"] = "x"; }), HasSubstr("lost"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["lost"] = {1.5}; }), HasSubstr("lost"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["stopped"] = 1; }), HasSubstr("stopped"));
  EXPECT_THAT(refusal([](J& j) { j["running"]["first_iteration"] = std::int64_t{1} << 40; }),
              HasSubstr("first_iteration"));
  DurableJob far = running_job();
  far.running->plan.epoch = Epoch(std::uint64_t{1} << 24);
  EXPECT_THAT(std::string(durable_job_from_json(durable_job_to_json(far)).status().message()),
              HasSubstr("epoch 16777216"));
  for (const J& none : {J("2-60"), J({"2-60", "x"}), J({2})}) {
    EXPECT_THAT(refusal([&none](J& j) { j["running"]["abandoned"] = none; }),
                HasSubstr("abandoned"));
    EXPECT_THAT(refusal([&none](J& j) { j["running"]["data"] = none; }), HasSubstr("running.data"));
  }
  EXPECT_NE(durable_job_from_json("").status().message(), "");
  const std::string whole = durable_job_to_json(running_job());
  for (std::size_t n = 0; n + 1 < whole.size(); n += 13) {
    EXPECT_FALSE(durable_job_from_json(whole.substr(0, n)).ok()) << n;
  }
}

TEST(DurableJob, NoBitMayTurn) {
  const std::string whole = durable_job_to_json(running_job());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string turned = whole;
    turned[i] = static_cast<char>(turned[i] ^ (1 << i % 8));
    EXPECT_FALSE(durable_job_from_json(turned).ok()) << "bit " << i % 8 << " of byte " << i;
  }
}

TEST(Outcome, ComesBackWithoutNodesAndLayers) {
  v1::GetStatusResponse status = status_without_job();
  status.set_job_id("digits-3");
  status.set_state("failed");
  status.set_message("loss is nan\nat \"fc\"");
  status.set_iteration(std::uint64_t{1} << 60);
  status.set_test_accuracy(0.1 + 0.2);
  const std::string job = status.SerializeAsString();
  status.add_workers()->set_address("w:1");
  status.add_layers()->set_name("fc");
  status.add_refused()->set_count(1);
  const auto text = outcome_to_json(status);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto back = outcome_from_json(*text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->SerializeAsString(), job);
}

TEST(Outcome, WhatIsNoneIsRefused) {
  EXPECT_TRUE(outcome_from_json(R"({"state": "done", "of_a_later_version": 1})").ok());
  for (const char* text :
       {"", "{", "[]", R"({"state": 1})", R"({"state": "running"})", R"({"iteration": -1})"}) {
    EXPECT_EQ(outcome_from_json(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(UnknownEnd, NamesTheNewestCheckpoint) {
  EXPECT_EQ(unknown_end_text(nullptr),
            "no job is in progress, and how the last one ended, if there was one, is not known");
  CheckpointManifest manifest;
  manifest.snapshot = snapshot_id(Epoch(2), 100);
  manifest.job_id = "digits-1";
  EXPECT_THAT(unknown_end_text(&manifest), HasSubstr("the newest checkpoint is 2-100 of digits-1"));
}

}  // namespace
}  // namespace poseidon::durable_job_test
