#include "cli/commands/stop_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::stop_command_test {
namespace {

using ::testing::HasSubstr;

class StopOutcome : public ::testing::Test {
 protected:
  StopOutcome() {
    asked_.set_job_id("digits-7");
    asked_.set_run_directory("/runs/digits-7");
    end_.set_job_id("digits-7");
    end_.set_state("stopped");
    end_.set_iteration(45);
    end_.set_iterations(100);
    end_.set_message("an operator stopped it");
  }

  v1::EndJobResponse asked_;
  v1::GetStatusResponse end_;
};

TEST_F(StopOutcome, SaysHowFarItCameAndWhereItsFilesAre) {
  const auto said = stop_outcome(asked_, /*is_to_be_saved=*/true, end_);
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(*said,
            "job digits-7 has ended after 45 of 100 iterations: an operator stopped it; its files "
            "are in /runs/digits-7");
}

TEST_F(StopOutcome, WhatIsNotSavedIsAnErrorWhereItShouldHaveBeen) {
  end_.set_unsaved(true);
  const auto said = stop_outcome(asked_, /*is_to_be_saved=*/true, end_);
  EXPECT_TRUE(absl::IsAborted(said.status()));
  EXPECT_THAT(std::string(said.status().message()), HasSubstr("an operator stopped it"));
  EXPECT_THAT(std::string(said.status().message()), HasSubstr("is not saved"));
  EXPECT_TRUE(stop_outcome(asked_, /*is_to_be_saved=*/false, end_).ok());
}

TEST_F(StopOutcome, AJobThatHadAllBehindItIsDone) {
  end_.set_state("done");
  EXPECT_THAT(*stop_outcome(asked_, true, end_), HasSubstr("job digits-7 is done"));
}

TEST_F(StopOutcome, AnotherJobMayHaveComeSince) {
  end_.set_job_id("digits-8");
  end_.set_unsaved(true);
  EXPECT_THAT(*stop_outcome(asked_, true, end_),
              HasSubstr("job digits-7 has ended, and another job was submitted since"));
}

}  // namespace
}  // namespace poseidon::stop_command_test
