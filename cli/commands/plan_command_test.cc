#include "cli/commands/plan_command.h"

#include "coordinator/planning/test_networks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::plan_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

PlanQuestion vgg19_22k() {
  return {.name = "vgg",
          .layers = vgg19(21841),
          .batch_size = 32,
          .sync = {},
          .workers = 16,
          .servers = 16,
          .machines = {.device_ops_per_s = 6e12, .images_per_s = 34.6},
          .machines_known = true};
}

PlanAnswer answer_to(const PlanQuestion& question) {
  absl::StatusOr<PlanAnswer> answer = answer_plan(question);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return *std::move(answer);
}

TEST(PlanCommand, JsonHasTheFieldsOfTheContract) {
  const PlanQuestion question = vgg19_22k();
  const nlohmann::ordered_json json = plan_answer_to_json(question, answer_to(question));
  EXPECT_EQ(json["workers"], 16);
  EXPECT_EQ(json["servers"], 16);
  EXPECT_EQ(json["batch_size"], 32);
  ASSERT_EQ(json["layers"].size(), 19u);
  std::int64_t bytes = 0;
  for (const auto& layer : json["layers"]) {
    for (const char* key : {"name", "type", "shape", "parameters", "scheme", "ps_bytes",
                            "sfb_bytes", "reason", "ps_seconds", "sfb_seconds"}) {
      EXPECT_TRUE(layer.contains(key)) << key;
    }
    bytes += layer[layer["scheme"] == "ps" ? "ps_bytes" : "sfb_bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(json["iteration_bytes"], bytes);
  EXPECT_EQ(json["cost"], "time");
  EXPECT_EQ(json["layers"][18]["scheme"], "sfb");
  EXPECT_NEAR(json["predicted"]["iteration_seconds"].get<double>(), 0.946, 0.005);
  EXPECT_NEAR(json["calibration"]["workers"][0]["send_bytes_per_s"].get<double>(), 1.25e9, 1);
  EXPECT_FALSE(json.contains("worker_addresses")) << "they are invented";
}

TEST(PlanCommand, ScalingIsFrom1To64InTheProportionAskedFor) {
  PlanQuestion question = vgg19_22k();
  question.servers = 4;
  const PlanAnswer answer = answer_to(question);
  ASSERT_EQ(answer.scaling.size(), 7u);
  const std::size_t servers[] = {1, 1, 1, 2, 4, 8, 16};
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(answer.scaling[i].workers, std::size_t{1} << i);
    EXPECT_EQ(answer.scaling[i].servers, servers[i]);
    EXPECT_GT(answer.scaling[i].efficiency, 0.0);
  }
  EXPECT_NEAR(answer.scaling[0].efficiency, 1.0, 0.01);
  EXPECT_NEAR(answer.scaling[0].images_per_s, 34.6, 0.3);
  EXPECT_DOUBLE_EQ(answer.scaling[4].iteration_s, answer.plan.prediction->iteration_s);
}

// LeNet's shape on a CPU: most of its bytes, and a sixth of its multiply-adds, are fully connected.
TEST(PlanCommand, NobodyGetsMoreThanAllThatItsWorkersTrainAlone) {
  PlanQuestion question = vgg19_22k();
  question.layers = {convolution("conv2", 50, 20, 5, 64), fully_connected("ip1", 500, 800)};
  question.machines = {.images_per_s = 350};
  const PlanAnswer answer = answer_to(question);
  for (const ScalingRow& row : answer.scaling) {
    EXPECT_LE(row.efficiency, 1.0 + 1e-9) << row.workers;
    EXPECT_LE(row.images_per_s, 350.0 * static_cast<double>(row.workers) * (1 + 1e-9));
  }
  EXPECT_THAT(plan_answer_to_text(question, answer), HasSubstr("one worker alone 350 images/s"));
}

TEST(PlanCommand, WithoutSpeedsItChoosesByBytesAndSaysSo) {
  PlanQuestion question = vgg19_22k();
  question.machines = {};
  question.machines_known = false;
  const PlanAnswer answer = answer_to(question);
  EXPECT_FALSE(answer.by_time);
  EXPECT_EQ(answer.plan.layers[16].scheme, Scheme::kSfb);
  EXPECT_THAT(plan_answer_to_text(question, answer),
              AllOf(HasSubstr("fewest bytes, as in a cluster that was not calibrated"),
                    HasSubstr("fewer bytes: SFB")));
}

TEST(PlanCommand, TextExplainsTheChoice) {
  const PlanQuestion question = vgg19_22k();
  const std::string text = plan_answer_to_text(question, answer_to(question));
  EXPECT_THAT(text, AllOf(HasSubstr("vgg: 16 workers, 16 servers on the workers' machines"),
                          HasSubstr("10 Gbit/s each way"), HasSubstr("4096x25088"),
                          HasSubstr("shortest iteration: 946 ms by SFB"),
                          HasSubstr("predicted iteration: 946 ms"), HasSubstr("EFFICIENCY")));
  EXPECT_THAT(text, Not(HasSubstr("not calibrated")));
}

// A server has all of its own NIC, a worker's machine half of its own: at little bandwidth that
// shows.
TEST(PlanCommand, ServersOnTheirOwnMachinesAreFaster) {
  PlanQuestion question = vgg19_22k();
  question.sync.scheme = "ps";
  const double shared_s = answer_to(question).plan.prediction->iteration_s;
  question.separate_servers = true;
  EXPECT_LT(answer_to(question).plan.prediction->iteration_s, 0.8 * shared_s);
}

TEST(PlanCommand, WorkersOfOneMachineSendOneSum) {
  PlanQuestion question = vgg19_22k();
  question.sync.scheme = "ps";
  question.servers = 4;
  const std::int64_t apart_bytes = answer_to(question).plan.layers[0].ps_bytes;
  question.workers_per_machine = 4;
  const PlanAnswer grouped = answer_to(question);
  EXPECT_LT(grouped.plan.layers[0].ps_bytes, apart_bytes / 2);
  EXPECT_THAT(plan_answer_to_text(question, grouped),
              AllOf(HasSubstr("16 workers (4 to a machine)"), HasSubstr("summed before they go")));
  EXPECT_EQ(plan_answer_to_json(question, grouped)["local_groups"].size(), 4U);

  question.sync.local_aggregation = false;
  const PlanAnswer each = answer_to(question);
  EXPECT_LT(grouped.plan.prediction->iteration_s, 0.5 * each.plan.prediction->iteration_s)
      << "a link carries four times as much without";
  question.sync.local_aggregation = true;
  question.norm_scope = NormScope::kNetwork;
  EXPECT_TRUE(answer_to(question).plan.leaders.empty());
}

TEST(PlanCommand, WhatCannotBePlannedIsRefused) {
  PlanQuestion question = vgg19_22k();
  question.sync.layer_schemes = {{"fc9", "sfb"}};
  EXPECT_THAT(std::string(answer_plan(question).status().message()), HasSubstr("sync.scheme.fc9"));
}

}  // namespace
}  // namespace poseidon::plan_command_test
