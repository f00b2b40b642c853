#include "cli/status_format.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon {
namespace {

using testing::HasSubstr;

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
  status.set_run_directory("/runs/digits");
  v1::NodeStatus& worker = *status.add_workers();
  worker.set_rank(0);
  worker.set_address("127.0.0.1:4000");
  worker.set_device("cpu");
  worker.set_state("running");
  v1::NodeStatus& late = *status.add_workers();
  late.set_rank(-1);
  late.set_state("idle");
  v1::NodeStatus& server = *status.add_servers();
  server.set_rank(0);
  server.set_address("127.0.0.1:5000");
  server.set_state("running");
  v1::LayerStatus& layer = *status.add_layers();
  layer.set_name("conv1");
  layer.set_scheme("ps");
  layer.set_sent_bytes_per_s(1e6);
  layer.set_received_bytes_per_s(2e6);
  layer.set_stall_share(0.125);
  layer.set_parameters(520);
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
  for (const char* key :
       {"name", "scheme", "sent_bytes_per_s", "received_bytes_per_s", "stall_share"}) {
    EXPECT_TRUE(json["layers"][0].contains(key)) << key;
  }
  EXPECT_EQ(json["refused"][0]["reason"], "stale_epoch");
}

TEST(StatusJsonTest, AnEmptyClusterHasEmptyLists) {
  const nlohmann::json json = status_to_json(v1::GetStatusResponse());
  EXPECT_TRUE(json["workers"].is_array());
  EXPECT_TRUE(json["layers"].is_array());
}

TEST(StatusTextTest, TellsJobNodesLayersAndRefusals) {
  const std::string text = status_to_text(example());
  EXPECT_THAT(text, HasSubstr("job digits (digits-1): running\n"));
  EXPECT_THAT(text, HasSubstr("iteration 120/500  loss 0.5000  2000 images/s  training 0:12  "
                              "0:38 left\n"));
  EXPECT_THAT(text, HasSubstr("worker 0  running  127.0.0.1:4000  cpu"));
  EXPECT_THAT(text, HasSubstr("worker -  idle     -"));
  EXPECT_THAT(text, HasSubstr("conv1  ps      520         1 MB/s  2 MB/s    12.5%"));
  EXPECT_THAT(text, HasSubstr("stale_epoch       3"));
}

TEST(StatusTextTest, SaysThatNothingIsThere) {
  EXPECT_EQ(status_to_text(v1::GetStatusResponse()),
            "no job yet\nno worker and no server has joined yet\n");
}

}  // namespace
}  // namespace poseidon
