#include "coordinator/job/reports/training_data.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::training_data_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const DataIdentity kDigits = {.train = {.samples = 60000, .digest = 7},
                              .test = DatasetIdentity{.samples = 10000, .digest = 9}};
const DataIdentity kUnread = {.train = {.samples = 60000, .digest = 0},
                              .test = DatasetIdentity{.samples = 10000, .digest = 9}};
const DataIdentity kFewer = {.train = {.samples = 59000, .digest = 8}, .test = kDigits.test};

using Worker = TrainingData::Worker;

TEST(TrainingData, TheFirstWorkersDataAreTheRuns) {
  TrainingData data;
  EXPECT_EQ(data.identity(), std::nullopt);
  EXPECT_THAT(data.on_found({.name = "worker 1"}, kUnread).refusal, IsEmpty());
  EXPECT_THAT(data.on_found({.name = "worker 0"}, kDigits).refusal, IsEmpty());
  EXPECT_EQ(data.identity(), kDigits) << "with the digest that the first could not make";
  const auto answer = data.on_found({.name = "worker 2"}, kFewer);
  EXPECT_THAT(answer.refusal, HasSubstr("its data are not those of worker 1: 59000 training"));
  EXPECT_THAT(answer.remark, IsEmpty());
  EXPECT_EQ(data.identity(), kDigits);
}

TEST(TrainingData, DataThatChangeWhileTheRunTrainsAreTold) {
  TrainingData data;
  data.set_trained(kDigits);
  EXPECT_THAT(data.on_found({.name = "worker 0", .run_started = true}, kFewer).refusal,
              HasSubstr("have changed since the run began"));
  EXPECT_THAT(
      data.on_found({.name = "worker 2", .is_new = true, .run_started = true}, kFewer).refusal,
      HasSubstr("not those of the workers until now"));
}

TEST(TrainingData, ACheckpointMayBeGoneOnFromWithOthers) {
  TrainingData data;
  data.set_checkpoint(kDigits, "checkpoint 1-100");
  const auto answer = data.on_found({.name = "worker 1"}, kFewer);
  EXPECT_THAT(answer.refusal, IsEmpty());
  EXPECT_THAT(answer.remark, HasSubstr("the data of worker 1 are not those that checkpoint 1-100 "
                                       "was trained on: 59000 training samples here"));
  EXPECT_EQ(data.identity(), kFewer) << "from now on the run's";
  EXPECT_THAT(data.on_found({.name = "worker 0"}, kDigits).refusal, HasSubstr("worker 1"));
}

TEST(TrainingData, ACheckpointsOwnDataGoOnWithoutARemark) {
  TrainingData data;
  data.set_checkpoint(kUnread, "checkpoint 1-100");
  EXPECT_THAT(data.on_found({.name = "worker 1"}, kDigits).remark, IsEmpty());
  EXPECT_EQ(data.identity(), kDigits);
}

TEST(TrainingData, ANewcomerDoesNotSayWhatARunTrainsOn) {
  TrainingData data;  // an earlier version's record has nothing of it
  const Worker newcomer = {.name = "worker 2", .is_new = true, .run_started = true};
  EXPECT_THAT(data.on_found(newcomer, kFewer).refusal, IsEmpty());
  EXPECT_EQ(data.identity(), std::nullopt);
  EXPECT_THAT(data.on_found({.name = "worker 0", .run_started = true}, kDigits).refusal, IsEmpty());
  EXPECT_EQ(data.identity(), kDigits);
}

TEST(TrainingData, IsForgottenWithTheWorkerThatSaidSo) {
  TrainingData data;
  data.on_found({.name = "worker 0"}, kDigits);
  data.forget();
  EXPECT_EQ(data.identity(), std::nullopt);
  EXPECT_THAT(data.on_found({.name = "worker 0"}, kFewer).refusal, IsEmpty());
}

}  // namespace
}  // namespace poseidon::training_data_test
