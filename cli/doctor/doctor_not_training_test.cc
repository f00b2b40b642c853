#include "cli/doctor/doctor_not_training.h"

#include <string>

#include "cli/doctor/doctor_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::doctor_not_training_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::GetStatusResponse status_in(const std::string& state, const std::string& message) {
  v1::GetStatusResponse status;
  status.set_job_id("digits-3");
  status.set_state(state);
  status.set_message(message);
  for (int rank = 0; rank < 2; ++rank) {
    v1::NodeStatus& worker = *status.add_workers();
    worker.set_rank(rank);
    worker.set_address("10.0.0." + std::to_string(rank) + ":4711");
    worker.set_state("waiting");
  }
  v1::NodeStatus& idle = *status.add_workers();
  idle.set_rank(-1);
  idle.set_address("10.0.0.9:4711");
  idle.set_state("away");
  return status;
}

TEST(DoctorNotTraining, OnlyAJobOnItsWayToTrain) {
  for (const char* state : {"waiting", "preparing", "recovering"}) {
    EXPECT_TRUE(is_before_training(status_in(state, ""))) << state;
  }
  for (const char* state : {"", "idle", "running", "done", "stopped", "failed"}) {
    EXPECT_FALSE(is_before_training(status_in(state, ""))) << state;
  }
}

TEST(DoctorNotTraining, TellsWhatTheStatusKnowsOfARecovery) {
  v1::GetStatusResponse status =
      status_in("recovering", "recovers: worker 1 was lost; waits for worker 1 (10.0.0.1:4711)");
  status.mutable_workers(1)->set_state("lost");
  const Finding finding = not_training(status);
  EXPECT_STREQ(finding_name(finding.kind), "not_training");
  EXPECT_EQ(finding.what,
            "job digits-3 is recovering and does not train: recovers: worker 1 was lost; waits for "
            "worker 1 (10.0.0.1:4711); worker 1 (10.0.0.1:4711) is lost");
  EXPECT_THAT(finding.remedy, HasSubstr("start it or another one"));
}

TEST(DoctorNotTraining, NamesNodesThatPrepare) {
  v1::GetStatusResponse status = status_in("preparing", "prepares 2 workers");
  status.mutable_workers(0)->set_state("preparing");
  status.mutable_workers(0)->set_note("reads its data");
  const Finding finding = not_training(status);
  EXPECT_THAT(finding.what, HasSubstr("worker 0 (10.0.0.0:4711) is preparing: reads its data"));
  EXPECT_THAT(finding.what, Not(HasSubstr("10.0.0.9"))) << "it has no part in the job";
  EXPECT_THAT(finding.remedy, HasSubstr("the node that prepares"));
}

TEST(DoctorNotTraining, ItsTextHasNoTables) {
  const std::string text =
      doctor_to_text(DoctorFacts(), {not_training(status_in("waiting", "waits for nodes"))});
  EXPECT_THAT(text, StartsWith("nothing was traced\n\n1. not_training: job digits-3 is waiting"));
  EXPECT_THAT(text, Not(HasSubstr("best stream")));
}

}  // namespace
}  // namespace poseidon::doctor_not_training_test
