#include "cli/doctor/doctor_facts.h"

#include <limits>

#include "cli/doctor/doctor_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::doctor_facts_test {
namespace {

using ::testing::HasSubstr;

constexpr double kMs = 1e-3;

/// Two iterations of 10 ms on one worker and one server, whose clock is an hour ahead. A layer of
/// one chunk.
class Facts : public ::testing::Test {
 protected:
  Facts() {
    v1::PlanMessage& plan = *trace_.head.mutable_plan();
    plan.set_batch_size(8);
    plan.set_wire_dtype("fp32");
    plan.add_server_addresses("s:1");
    v1::PlanLayerMessage& layer = *plan.add_layers();
    layer.set_name("fc");
    layer.set_type("fully_connected");
    layer.set_scheme("ps");
    layer.set_parameters(50'000);
    plan.add_chunks()->set_elements(50'000);
    trace_.nodes.resize(2);
    trace_.nodes[0].node.set_role(v1::NODE_ROLE_WORKER);
    trace_.nodes[0].node.set_address("w:1");
    trace_.nodes[1].node.set_role(v1::NODE_ROLE_SERVER);
    trace_.nodes[1].node.set_address("s:1");
    trace_.nodes[1].node.set_clock_offset_ns(kServerAhead);
    for (std::uint64_t i = 5; i < 7; ++i) {
      add_of_worker(i);
      add_of_server(i);
    }
  }
  static double begin_of(std::uint64_t iteration) {
    return static_cast<double>(iteration - 5) * 10;
  }
  void add_of_worker(std::uint64_t iteration) {
    const double t = begin_of(iteration);
    add(0, Stage::kForward, t, 2, iteration);
    add(0, Stage::kBackward, t + 2, 3, iteration);
    add(0, Stage::kSend, t + 5, 0.1, iteration, true);
    add(0, Stage::kCopy, t + 8.5, 0.1, iteration, true);
    add(0, Stage::kStall, t + 5, 4, iteration);
  }
  void add_of_server(std::uint64_t iteration) {
    const double t = begin_of(iteration);
    add(1, Stage::kStep, t + 6, 0.5, iteration, true);
    add(1, Stage::kSend, t + 6.5, 0.1, iteration, true);
  }
  static constexpr std::int64_t kServerAhead = 3'600'000'000'000;

  void add(int node, Stage stage, double ms, double took_ms, std::uint64_t iteration,
           bool message = false) {
    v1::TraceEvent event;
    event.set_stage(static_cast<std::uint32_t>(stage));
    event.set_begin_ns(static_cast<std::uint64_t>(ms * 1e6) + 1'000'000'000 +
                       (node == 1 ? kServerAhead : 0));
    event.set_duration_ns(static_cast<std::uint64_t>(took_ms * 1e6));
    event.set_iteration(iteration);
    event.set_layer(1);
    if (message) {
      event.set_chunk(1);
      event.set_peer(1);
      event.set_bytes(200'000);
    }
    trace_.nodes[static_cast<std::size_t>(node)].events.push_back(event);
  }

  TraceData trace_;
  v1::GetStatusResponse status_;
};

TEST_F(Facts, TimesArePerIteration) {
  const DoctorFacts facts = make_facts(trace_, status_);
  EXPECT_EQ(facts.iterations, 2);
  EXPECT_NEAR(facts.iteration_s, 10 * kMs, 1e-9);
  ASSERT_EQ(facts.workers.size(), 1U);
  EXPECT_EQ(facts.workers[0].node.name, "worker 0 (w:1)");
  EXPECT_NEAR(facts.workers[0].compute_s, 5 * kMs, 1e-9);
  EXPECT_NEAR(facts.workers[0].stall_s, 4 * kMs, 1e-9);
  ASSERT_EQ(facts.servers.size(), 1U);
  EXPECT_NEAR(facts.servers[0].busy_s, 0.5 * kMs, 1e-9);
  EXPECT_DOUBLE_EQ(facts.servers[0].shard_bytes, 200e3);
  EXPECT_TRUE(facts.layers[0].fully_connected_by_ps);
  EXPECT_NEAR(facts.layers[0].stall_s, 4 * kMs, 1e-9);
}

TEST_F(Facts, AMessageIsOnItsWayFromItsSendingUntilItsUseInOneTime) {
  const DoctorFacts facts = make_facts(trace_, status_);
  const DoctorFacts::Node& worker = facts.workers[0].node;
  const DoctorFacts::Node& server = facts.servers[0].node;
  // Up: 200 kB in 1 ms. Down: in 2 ms.
  EXPECT_NEAR(worker.send_bytes_per_s.value_or(0), 200e6, 1e3);
  EXPECT_NEAR(server.receive_bytes_per_s.value_or(0), 200e6, 1e3);
  EXPECT_NEAR(server.send_bytes_per_s.value_or(0), 100e6, 1e3);
  EXPECT_NEAR(worker.receive_bytes_per_s.value_or(0), 100e6, 1e3);
  EXPECT_NEAR(worker.send_s, 1 * kMs, 1e-9);
  EXPECT_NEAR(worker.receive_s, 2 * kMs, 1e-9);
  EXPECT_DOUBLE_EQ(worker.sent_bytes, 200e3);
}

TEST_F(Facts, WhatStaysWithinAMachineTellsNothingOfItsLink) {
  trace_.nodes[0].node.set_address("s:9");
  EXPECT_TRUE(make_facts(trace_, status_).workers[0].node.send_bytes_per_s)
      << "where all are on one, there is no other";
  trace_.nodes.push_back({});
  trace_.nodes[2].node.set_role(v1::NODE_ROLE_WORKER);
  trace_.nodes[2].node.set_index(1);
  trace_.nodes[2].node.set_address("w:1");
  const DoctorFacts facts = make_facts(trace_, status_);
  EXPECT_FALSE(facts.workers[0].node.send_bytes_per_s);
  EXPECT_FALSE(facts.servers.at(0).node.receive_bytes_per_s);
}

/// Ten iterations of 5 ms of computing, three of which take 85 ms: that of the middle hides them.
TEST_F(Facts, AMeanShowsWhatAMedianHides) {
  for (std::uint64_t i = 7; i < 15; ++i) {
    add_of_worker(i);
    add_of_server(i);
  }
  for (const std::uint64_t stopped : {std::uint64_t{7}, std::uint64_t{9}, std::uint64_t{12}}) {
    add(0, Stage::kForward, begin_of(stopped) + 5, 80, stopped);
  }
  const DoctorFacts::Worker worker = make_facts(trace_, status_).workers.at(0);
  EXPECT_NEAR(worker.compute_s, 5 * kMs, 1e-9);
  EXPECT_NEAR(worker.compute_mean_s, (9 * 5 + 2 * 80) / 9.0 * kMs, 1e-9) << "without the longest";
  EXPECT_NEAR(worker.compute_quick_s, 5 * kMs, 1e-9);
}

TEST_F(Facts, OneLongIterationIsNoMean) {
  for (std::uint64_t i = 7; i < 10; ++i) {
    add_of_worker(i);
    add_of_server(i);
  }
  add(0, Stage::kForward, begin_of(7) + 5, 80, 7);
  EXPECT_NEAR(make_facts(trace_, status_).workers.at(0).compute_mean_s, 5 * kMs, 1e-9);
}

TEST_F(Facts, NodesAreOnOneHostByTheirAddresses) {
  EXPECT_FALSE(make_facts(trace_, status_).one_host);
  trace_.nodes[0].node.set_address("s:9");
  EXPECT_TRUE(make_facts(trace_, status_).one_host);
}

TEST_F(Facts, MachinesAreAddedUpWhateverTheirAddresses) {
  for (v1::NodeStatus* node : {status_.add_workers(), status_.add_servers()}) {
    node->mutable_load()->set_machine(42);
    node->mutable_load()->set_cores(2);
    node->mutable_load()->set_cores_used(0.75);
    node->mutable_load()->set_cores_wanted(0.5);
  }
  status_.mutable_servers(0)->mutable_load()->set_disk_bytes_per_s(7);
  const DoctorFacts facts = make_facts(trace_, status_);
  ASSERT_EQ(facts.machines.size(), 1U);
  EXPECT_DOUBLE_EQ(facts.machines[0].cores, 2.0);
  EXPECT_DOUBLE_EQ(facts.machines[0].used, 1.5);
  EXPECT_DOUBLE_EQ(facts.machines[0].wanted, 1.0);
  EXPECT_DOUBLE_EQ(facts.workers.at(0).node.used, 0.75);
  EXPECT_DOUBLE_EQ(facts.workers[0].node.wanted, 0.5);
  EXPECT_EQ(facts.machines[0].processes.size(), 2U);
  EXPECT_DOUBLE_EQ(facts.servers[0].disk_bytes_per_s, 7.0);
}

TEST_F(Facts, AMachineIsKnownBeforeTheFirstLoad) {
  status_.add_workers()->set_machine(42);
  status_.add_servers()->set_machine(43);
  const DoctorFacts facts = make_facts(trace_, status_);
  ASSERT_EQ(facts.machines.size(), 2U);
  EXPECT_EQ(facts.workers.at(0).node.machine, 42U);
  EXPECT_EQ(facts.servers.at(0).node.machine, 43U);
  EXPECT_DOUBLE_EQ(facts.machines[0].cores, 0.0) << "unknown";
}

TEST_F(Facts, WithoutTheOtherEndNothingIsSaidOfALink) {
  trace_.nodes.pop_back();
  trace_.notes = {"server 0 (s:1) did not answer"};
  const DoctorFacts facts = make_facts(trace_, status_);
  EXPECT_FALSE(facts.workers[0].node.send_bytes_per_s);
  EXPECT_THAT(doctor_to_text(facts, diagnose(facts)), HasSubstr("note: server 0 (s:1) did not"));
}

/// Means over all iterations would make a server look idle whose buffer held the first ones only.
TEST_F(Facts, OfAFullBufferOnlyWholeIterationsCount) {
  for (std::uint64_t i = 7; i < 25; ++i) add_of_worker(i);
  for (std::uint64_t i = 7; i < 10; ++i) add_of_server(i);
  // The last event that fitted: of 10 it lacks the sending, so that 9 may lack some too.
  add(1, Stage::kStep, begin_of(10) + 6, 0.5, 10, true);
  for (const std::uint64_t dropped : {std::uint64_t{1000}, std::uint64_t{0}}) {
    trace_.nodes[1].node.set_dropped(dropped);  // 0: its stream broke while it told
    const DoctorFacts facts = make_facts(trace_, status_);
    EXPECT_EQ(facts.iterations, 4) << "5 to 8";
    EXPECT_NEAR(facts.iteration_s, 10 * kMs, 1e-9);
    EXPECT_NEAR(facts.servers.at(0).busy_s, 0.5 * kMs, 1e-9);
    EXPECT_NEAR(facts.servers[0].node.receive_s, 1 * kMs, 1e-9);
    EXPECT_NEAR(facts.servers[0].node.send_s, 2 * kMs, 1e-9);
    EXPECT_DOUBLE_EQ(facts.servers[0].node.received_bytes, 200e3);
    EXPECT_NEAR(facts.workers.at(0).node.send_s, 1 * kMs, 1e-9);
    EXPECT_NEAR(facts.workers[0].compute_s, 5 * kMs, 1e-9);
    EXPECT_NEAR(facts.workers[0].stall_s, 4 * kMs, 1e-9);
    EXPECT_NEAR(facts.layers[0].stall_s, 4 * kMs, 1e-9);
    EXPECT_TRUE(facts.notes.empty());
  }
}

TEST_F(Facts, ANodeThatIsOneIterationBehindIsNotCut) {
  // Time was up: the worker had begun what the server had no gradient of.
  add(0, Stage::kForward, begin_of(7), 2, 7);
  EXPECT_EQ(make_facts(trace_, status_).iterations, 3);
}

TEST_F(Facts, OfABufferThatHeldHardlyAnythingNothingIsSaid) {
  for (std::uint64_t i = 7; i < 25; ++i) add_of_worker(i);
  trace_.nodes[1].node.set_dropped(1000);  // after iterations 5 and 6, of which 5 may lack a part
  const DoctorFacts facts = make_facts(trace_, status_);
  EXPECT_EQ(facts.iterations, 20);
  EXPECT_TRUE(facts.servers.empty());
  EXPECT_FALSE(facts.workers.at(0).node.send_bytes_per_s);
  EXPECT_NEAR(facts.workers[0].compute_s, 5 * kMs, 1e-9);
  ASSERT_EQ(facts.notes.size(), 1U);
  EXPECT_THAT(facts.notes[0], HasSubstr("server 0 (s:1): its events are of less than 2 whole"));
}

TEST(IterationsThatFit, AreThoseOfTheFullestBuffer) {
  const auto cluster = [](int workers, std::uint32_t servers, std::uint32_t layers,
                          const char* scheme) {
    v1::GetStatusResponse status;
    for (int i = 0; i < workers; ++i) status.add_workers()->set_rank(i);
    status.add_workers()->set_rank(-1);  // waits for the next job
    for (std::uint32_t i = 0; i < layers; ++i) {
      v1::LayerStatus& layer = *status.add_layers();
      layer.set_scheme(scheme);
      if (layer.scheme() == "ps") (*layer.mutable_chunks())[i % servers] = 1;
    }
    return status;
  };
  // 28 chunks on each server, from and to 64 workers, three events each: 5376 of 65536.
  EXPECT_EQ(iterations_that_fit(cluster(64, 4, 112, "ps")), 12);
  // The worker's: 112 chunks, three events each, and some of its own.
  EXPECT_EQ(iterations_that_fit(cluster(2, 4, 112, "ps")), 65536 / (3 * 112 + 112 + 4));
  EXPECT_EQ(iterations_that_fit(cluster(64, 4, 2, "sfb")), 65536 / (3 * 2 * 64 + 2 + 4));
  v1::GetStatusResponse gpus = cluster(2, 4, 112, "ps");
  for (v1::NodeStatus& worker : *gpus.mutable_workers()) worker.set_device("cuda:0 (H100)");
  gpus.mutable_layers(3)->set_parameters(std::int64_t{100} << 20);  // goes up in 50 parts
  gpus.mutable_layers(4)->set_parameters(-1);
  EXPECT_EQ(iterations_that_fit(gpus), 65536 / (3 * 112 + 4 * 112 + 4 + 128 + 2 * 50))
      << "and their copies";
  v1::GetStatusResponse large = cluster(1000, 1, 1, "ps");
  (*large.mutable_layers(0)->mutable_chunks())[0] = 200;
  EXPECT_EQ(iterations_that_fit(large), 1);
  for (std::uint32_t layer = 0; layer < 5000; ++layer) {
    (*large.add_layers()->mutable_chunks())[0] = std::numeric_limits<std::uint32_t>::max();
  }
  EXPECT_EQ(iterations_that_fit(large), 1);
  EXPECT_GE(iterations_that_fit({}), 1000);
}

TEST_F(Facts, AreToldAsTextAndAsJson) {
  const DoctorFacts facts = make_facts(trace_, status_);
  const std::vector<Finding> findings = {{.kind = Finding::Kind::kLink,
                                          .guilty = "worker 0",
                                          .cost_s = 0.002,
                                          .share = 0.2,
                                          .what = "it is slow",
                                          .remedy = "look"}};
  const std::string text = doctor_to_text(facts, findings);
  EXPECT_THAT(text,
              HasSubstr("looked at 2 iterations of 10 ms\n\n1. link: it is slow (costs about 2 "
                        "ms, 20 % of an iteration)\n   -> look\n"));
  EXPECT_THAT(text, HasSubstr("worker 0 (w:1)"));
  const nlohmann::json json = doctor_to_json(facts, findings);
  EXPECT_EQ(json["findings"][0]["kind"], "link");
  EXPECT_EQ(json["findings"][0]["guilty"], "worker 0");
  EXPECT_EQ(json["workers"][0]["name"], "worker 0 (w:1)");
  EXPECT_EQ(json["servers"].size(), 1U);
}

}  // namespace
}  // namespace poseidon::doctor_facts_test
