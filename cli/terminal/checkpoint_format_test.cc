#include "cli/terminal/checkpoint_format.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::checkpoint_format_test {
namespace {

using ::testing::HasSubstr;

v1::CheckpointInfo info(const char* id, std::uint64_t iteration, bool committed) {
  v1::CheckpointInfo made;
  made.set_id(id);
  made.set_job("digits");
  made.set_job_id("digits-12");
  made.set_iteration(iteration);
  made.set_committed(committed);
  if (committed) {
    made.set_bytes(1'724'320);
    made.set_time_unix_s(1'700'000'000);
    made.set_loss(0.25);
  } else {
    made.set_reason("no space left on device");
  }
  return made;
}

/// That an operator asked for.
v1::CheckpointInfo own(v1::CheckpointInfo made) {
  made.set_asked(true);
  return made;
}

v1::ListCheckpointsResponse running() {
  v1::ListCheckpointsResponse list;
  list.set_job_id("digits-12");
  list.set_epoch(12);
  list.set_state("job digits-12 is running (410 of 500 iterations)");
  *list.add_committed() = info("12-400", 400, true);
  return list;
}

v1::RequestCheckpointResponse asked() {
  v1::RequestCheckpointResponse made;
  made.set_job_id("digits-12");
  made.set_epoch(12);
  made.set_iteration(412);
  return made;
}

TEST(CheckpointFormatTest, JsonHasTheFieldsOfTheContract) {
  v1::ListCheckpointsResponse list = running();
  *list.mutable_failed() = info("12-410", 410, false);
  const nlohmann::json json = checkpoints_to_json(list);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["id"], "12-400");
  EXPECT_EQ(json[0]["iteration"], 400);
  EXPECT_EQ(json[0]["bytes"], 1'724'320);
  EXPECT_EQ(json[0]["committed"], true);
  EXPECT_EQ(json[0]["time"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(json[0]["loss"], 0.25);
  EXPECT_FALSE(json[0].contains("reason"));
  EXPECT_EQ(json[1]["committed"], false);
  EXPECT_EQ(json[1]["reason"], "no space left on device");
  EXPECT_TRUE(json[1]["time"].is_null());
  EXPECT_EQ(checkpoints_to_json({}).dump(), "[]");
}

TEST(CheckpointFormatTest, TheTableTellsTheSame) {
  v1::ListCheckpointsResponse list = running();
  *list.mutable_making() = info("12-412", 412, false);
  const std::string text = checkpoints_to_text(list);
  EXPECT_THAT(text, HasSubstr("12-400  digits-12  400        0.2500  1.72 MB  "
                              "2023-11-14T22:13:20Z  yes\n"));
  EXPECT_THAT(text, HasSubstr("no: no space left on device"));
  EXPECT_EQ(checkpoints_to_text({}), "no checkpoint yet\n");
}

TEST(SaveOutcomeTest, WaitsUntilOneIsAsFar) {
  v1::ListCheckpointsResponse list = running();
  EXPECT_EQ(*save_outcome(asked(), list), std::nullopt);
  *list.mutable_making() = own(info("12-416", 416, false));
  EXPECT_EQ(*save_outcome(asked(), list), std::nullopt) << "put off, not failed";
  *list.mutable_failed() = own(info("12-412", 412, false));
  EXPECT_EQ(*save_outcome(asked(), list), std::nullopt) << "of the one that was too late";
  *list.add_committed() = own(info("12-416", 416, true));
  EXPECT_EQ(*save_outcome(asked(), list), "12-416");
}

TEST(SaveOutcomeTest, NamesItsOwnAndNoPeriodicOne) {
  v1::ListCheckpointsResponse list = running();
  *list.mutable_making() = own(info("12-414", 414, false));
  *list.add_committed() = info("12-413", 413, true);
  EXPECT_EQ(*save_outcome(asked(), list), std::nullopt) << "a periodic one was committed first";
  *list.mutable_failed() = info("12-413", 413, false);
  EXPECT_EQ(*save_outcome(asked(), list), std::nullopt) << "a periodic one has failed";
  *list.add_committed() = own(info("12-414", 414, true));
  list.clear_making();
  EXPECT_EQ(*save_outcome(asked(), list), "12-414");
}

TEST(SaveOutcomeTest, TakesALaterOneWhereItsOwnIsGone) {
  v1::ListCheckpointsResponse list = running();
  *list.add_committed() = info("12-420", 420, true);
  *list.mutable_making() = info("12-430", 430, false);
  EXPECT_EQ(*save_outcome(asked(), list), "12-420") << "checkpoint.keep has removed its own";
}

TEST(SaveOutcomeTest, FailsWithTheReason) {
  v1::ListCheckpointsResponse list = running();
  *list.mutable_failed() = info("12-300", 300, false);
  EXPECT_EQ(*save_outcome(asked(), list), std::nullopt) << "an earlier one";
  *list.mutable_failed() = own(info("12-412", 412, false));
  const absl::Status failed = save_outcome(asked(), list).status();
  EXPECT_TRUE(absl::IsAborted(failed));
  EXPECT_THAT(failed.message(), HasSubstr("12-412 failed: no space left"));
}

TEST(SaveOutcomeTest, TheJobMayEndOrRecoverMeanwhile) {
  v1::ListCheckpointsResponse list = running();
  list.set_epoch(13);
  EXPECT_THAT(save_outcome(asked(), list).status().message(), HasSubstr("a node was lost"));
  list = running();
  list.set_ended(true);
  EXPECT_THAT(save_outcome(asked(), list).status().message(), HasSubstr("job digits-12 ended"));
  EXPECT_THAT(save_outcome(asked(), {}).status().message(), HasSubstr("there is no job"));
}

}  // namespace
}  // namespace poseidon::checkpoint_format_test
