#include "cli/terminal/status_format.h"
#include "common/pages/status_json.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::status_format_test {
namespace {

using ::testing::HasSubstr;

v1::GetStatusResponse example() {
  v1::GetStatusResponse status;
  status.set_job("digits");
  status.set_job_id("digits-1");
  status.set_state("running");
  status.set_iteration(120);
  status.set_iterations(500);
  status.set_epoch(7);
  status.set_loss(0.5);
  status.set_images_per_s(2000);
  status.set_test_accuracy(std::numeric_limits<double>::quiet_NaN());
  status.set_test_loss(std::numeric_limits<double>::quiet_NaN());
  status.set_training_seconds(12);
  status.set_iterated_seconds(12);
  status.set_run_directory("/runs/digits");
  v1::NodeStatus& worker = *status.add_workers();
  worker.set_rank(0);
  worker.set_address("127.0.0.1:4000");
  worker.set_device("cpu");
  worker.set_state("running");
  worker.set_compute_share(0.5);
  worker.set_stall_share(0.125);
  worker.set_data_stall_share(0.25);
  worker.set_corrupt_samples(3);
  v1::NodeStatus& late = *status.add_workers();
  late.set_rank(-1);
  late.set_state("idle");
  late.set_data_stall_share(std::numeric_limits<double>::quiet_NaN());
  v1::NodeStatus& server = *status.add_servers();
  server.set_rank(0);
  server.set_address("127.0.0.1:5000");
  server.set_state("running");
  server.set_data_stall_share(std::numeric_limits<double>::quiet_NaN());
  v1::LayerStatus& layer = *status.add_layers();
  (*layer.mutable_chunks())[0] = 3;
  (*layer.mutable_chunks())[12] = 1;
  layer.set_name("conv1");
  layer.set_scheme("ps");
  layer.set_sent_bytes_per_s(1e6);
  layer.set_received_bytes_per_s(2e6);
  layer.set_stall_share(0.125);
  layer.set_parameters(520);
  layer.set_reason("a convolution layer has no factors to send");
  layer.mutable_predicted()->set_forward(1e-3);
  layer.mutable_predicted()->set_backward(2e-3);
  layer.mutable_predicted()->set_sync(4e-4);
  layer.mutable_measured()->set_forward(1.1e-3);
  layer.mutable_measured()->set_backward(2.2e-3);
  layer.mutable_measured()->set_sync(0.5);
  v1::LayerStatus& unknown = *status.add_layers();
  unknown.set_name("fc1");
  unknown.set_scheme("sfb");
  status.set_plan_basis("measured in 1.2 s before this job");
  status.set_predicted_iteration_seconds(0.0123);
  status.set_measured_iteration_seconds(std::numeric_limits<double>::quiet_NaN());
  status.set_recommendation("fc1 by ps: 1 ms instead of 2 ms per iteration");
  v1::RefusedCount& refused = *status.add_refused();
  refused.set_reason("stale_epoch");
  refused.set_count(3);
  return status;
}

TEST(StatusJsonTest, HasTheFieldsOfTheContract) {
  const nlohmann::json json = status_to_json(example());
  for (const char* key : {"job", "state", "iteration", "iterations", "epoch", "loss",
                          "images_per_s", "workers", "servers", "layers"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["iteration"], 120);
  EXPECT_EQ(json["epoch"], 7);
  EXPECT_EQ(json["loss"], 0.5);
  EXPECT_TRUE(json["test_accuracy"].is_null());
  for (const char* key : {"rank", "address", "device", "state", "metrics_address"}) {
    EXPECT_TRUE(json["workers"][0].contains(key)) << key;
    EXPECT_TRUE(json["servers"][0].contains(key)) << key;
  }
  EXPECT_EQ(json["workers"][1]["rank"], -1);
  EXPECT_EQ(json["workers"][0]["compute_share"], 0.5);
  EXPECT_EQ(json["workers"][0]["stall_share"], 0.125);
  EXPECT_EQ(json["workers"][0]["data_stall_share"], 0.25);
  EXPECT_EQ(json["workers"][0]["corrupt_samples"], 3);
  EXPECT_TRUE(json["workers"][1]["data_stall_share"].is_null());
  EXPECT_FALSE(json["servers"][0].contains("data_stall_share"));
  for (const char* key :
       {"name", "scheme", "sent_bytes_per_s", "received_bytes_per_s", "stall_share"}) {
    EXPECT_TRUE(json["layers"][0].contains(key)) << key;
  }
  EXPECT_EQ(json["refused"][0]["reason"], "stale_epoch");
  EXPECT_EQ(json["layers"][0]["predicted"]["sync_seconds"], 4e-4);
  EXPECT_EQ(json["layers"][0]["measured"]["forward_seconds"], 1.1e-3);
  EXPECT_EQ(json["layers"][0]["chunks"], nlohmann::json({{"0", 3}, {"12", 1}}));
  EXPECT_EQ(json["layers"][1]["chunks"], nlohmann::json::object());
  EXPECT_EQ(json["layers"][0]["reason"], "a convolution layer has no factors to send");
  EXPECT_TRUE(json["layers"][1]["predicted"].is_null());
  EXPECT_EQ(json["predicted_iteration_seconds"], 0.0123);
  EXPECT_TRUE(json["measured_iteration_seconds"].is_null());
  EXPECT_EQ(json["plan_basis"], "measured in 1.2 s before this job");
  EXPECT_EQ(json["recommendation"], "fc1 by ps: 1 ms instead of 2 ms per iteration");
}

TEST(StatusJsonTest, AnEmptyClusterHasEmptyLists) {
  const nlohmann::json json = status_to_json(v1::GetStatusResponse());
  EXPECT_TRUE(json["workers"].is_array());
  EXPECT_TRUE(json["layers"].is_array());
}

TEST(StatusTextTest, TellsWhatThereIsToSayOfNodes) {
  v1::GetStatusResponse status = example();
  EXPECT_EQ(status_to_json(status)["workers"][0]["note"], "");
  status.mutable_workers(0)->set_note("the coordinator cannot connect to it");
  status.mutable_servers(0)->set_note("waits for worker 1");
  EXPECT_EQ(status_to_json(status)["workers"][0]["note"], "the coordinator cannot connect to it");
  const std::string text = status_to_text(status);
  EXPECT_THAT(text,
              HasSubstr("\nworker 0 (127.0.0.1:4000): the coordinator cannot connect to it\n"));
  EXPECT_THAT(text, HasSubstr("): waits for worker 1\n"));
}

TEST(StatusTextTest, TellsJobNodesLayersAndRefusals) {
  const std::string text = status_to_text(example());
  EXPECT_THAT(text, HasSubstr("job digits (digits-1): running\n"));
  EXPECT_THAT(text, HasSubstr("iteration 120/500  loss 0.5000  2000 images/s  training 0:12  "
                              "0:38 left\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "worker 0  running  127.0.0.1:4000  cpu     -        50.0%    12.5%  25.0%       3"));
  EXPECT_THAT(text, HasSubstr("worker -  idle     -"));
  EXPECT_THAT(text, HasSubstr("conv1  ps      520         1 MB/s  2 MB/s    12.5%"));
  EXPECT_THAT(text, HasSubstr("stale_epoch       3"));
  EXPECT_THAT(text,
              HasSubstr("plan: measured in 1.2 s before this job; iteration predicted 12.3 ms, "
                        "measured -\n"));
  EXPECT_THAT(text, HasSubstr("a better plan: fc1 by ps"));
  EXPECT_THAT(text,
              HasSubstr("conv1  ps      1 ms / 1.1 ms  2 ms / 2.2 ms  400 us / 500 ms  a con"));
  EXPECT_THAT(text, HasSubstr("fc1    sfb     - / -"));
}

TEST(StatusTextTest, SaysThatNothingIsThere) {
  EXPECT_EQ(status_to_text(v1::GetStatusResponse()),
            "no job yet\nno worker and no server has joined yet\n");
  v1::GetStatusResponse given_up;
  given_up.set_message("no job is in progress");
  EXPECT_EQ(status_to_text(given_up),
            "no job is in progress\nno worker and no server has joined yet\n");
}

/// Nodes name their devices and reasons; the terminal is the operator's.
TEST(StatusTextTest, NamesCommandNoTerminal) {
  v1::GetStatusResponse status = example();
  status.set_message("lost \x1b[2J");
  status.mutable_workers(0)->set_device("\x1b[31mcpu\n");
  status.mutable_layers(0)->set_reason("\u009b2J");
  const std::string text = status_to_text(status);
  EXPECT_THAT(text, HasSubstr("lost  [2J"));
  EXPECT_THAT(text, HasSubstr(" [31mcpu   ")) << "in one row";
  for (const char* command : {"\x1b", "\u009b"}) EXPECT_EQ(text.find(command), std::string::npos);
}

}  // namespace
}  // namespace poseidon::status_format_test
