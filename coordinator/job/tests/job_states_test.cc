#include "coordinator/job/job_states.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/file_io.h"

namespace poseidon::job_states_test {
namespace {

using enum JobState;
using enum JobEvent;

constexpr Nanoseconds kNow = std::chrono::seconds(1);

/// A machine that has got there by the table's rows, the shortest way.
JobStateMachine machine_in(JobState wanted) {
  std::map<JobState, JobStateMachine> reached = {{kWaiting, JobStateMachine(Nanoseconds{0})}};
  for (std::size_t steps = 0; steps < kAllJobStates.size(); ++steps) {
    for (const JobTransition& row : job_transitions()) {
      if (!reached.contains(row.from) || reached.contains(row.to)) continue;
      JobStateMachine machine = reached.at(row.from);
      EXPECT_TRUE(machine.transition(row.event, Nanoseconds{0}));
      reached.emplace(row.to, machine);
    }
  }
  EXPECT_TRUE(reached.contains(wanted)) << job_state_word(wanted) << " is never reached";
  return reached.at(wanted);
}

/// Written down here a second time, by hand: state by state where each event leads. '-': ignored.
const std::map<JobState, std::map<JobEvent, std::string>> kExpected = {
    {kWaiting,
     {{kMeasure, "Calibrating"},
      {kPlanned, "PreparingServers"},
      {kResumed, "Running"},
      {kStop, "Stopped"},
      {kFail, "Failed"}}},
    {kCalibrating,
     {{kPlanned, "PreparingServers"},
      {kEpochOver, "Replacing"},
      {kStop, "Stopped"},
      {kFail, "Failed"}}},
    {kPreparingServers,
     {{kServersReady, "PreparingWorkers"},
      {kEpochOver, "Replacing"},
      {kStop, "Stopped"},
      {kFail, "Failed"}}},
    {kPreparingWorkers,
     {{kWorkersReady, "Running"},
      {kEpochOver, "Replacing"},
      {kStop, "Stopped"},
      {kFail, "Failed"}}},
    {kRunning,
     {{kHalt, "Halting"},
      {kEpochOver, "Replacing"},
      {kSucceed, "Done"},
      {kStop, "Stopped"},
      {kFail, "Failed"}}},
    {kHalting,
     {{kSave, "Saving"}, {kEpochOver, "Replacing"}, {kStop, "Stopped"}, {kFail, "Failed"}}},
    {kSaving, {{kEpochOver, "Replacing"}, {kStop, "Stopped"}, {kFail, "Failed"}}},
    {kReplacing,
     {{kMeasure, "Calibrating"},
      {kPlanned, "PreparingServers"},
      {kEpochOver, "-"},
      {kStop, "Stopped"},
      {kFail, "Failed"}}},
    {kDone, {{kEpochOver, "-"}, {kStop, "-"}, {kFail, "-"}}},
    {kStopped, {{kEpochOver, "-"}, {kStop, "-"}, {kFail, "-"}}},
    {kFailed, {{kEpochOver, "-"}, {kStop, "-"}, {kFail, "-"}}},
};

TEST(JobStatesDeathTest, EveryPairOfStateAndEventGoesIsIgnoredOrRefused) {
  for (const JobState state : kAllJobStates) {
    const JobStateMachine before = machine_in(state);
    for (const JobEvent event : kAllJobEvents) {
      SCOPED_TRACE(absl::StrCat(job_state_word(state), ", ", job_event_text(event)));
      JobStateMachine machine = before;
      const auto& row = kExpected.at(state);
      const auto expected = row.find(event);
      if (expected == row.end()) {
        EXPECT_EQ(job_transition(state, event), nullptr);
        EXPECT_DEATH(machine.transition(event, kNow), "is not for state");
        continue;
      }
      const bool goes = expected->second != "-";
      EXPECT_EQ(job_goes(state, event), goes);
      EXPECT_EQ(machine.transition(event, kNow), goes);
      EXPECT_STREQ(job_state_word(machine.state()),
                   goes ? expected->second.c_str() : job_state_word(state));
      EXPECT_EQ(machine.in_state(kNow), goes ? Nanoseconds{0} : kNow);
    }
  }
}

TEST(JobStates, EachPairHasOneRowWithItsWords) {
  std::set<std::pair<JobState, JobEvent>> pairs;
  for (const JobTransition& row : job_transitions()) {
    EXPECT_TRUE(pairs.emplace(row.from, row.event).second)
        << job_state_word(row.from) << ", " << job_event_text(row.event);
    EXPECT_STRNE(row.guard, "");
    EXPECT_STRNE(row.action, "");
    if (row.verdict == JobTransition::Verdict::kIgnored) {
      EXPECT_EQ(row.to, row.from);
    }
  }
}

TEST(JobStates, WhatIsFinalGoesNowhere) {
  for (const JobTransition& row : job_transitions()) {
    if (is_final(row.from)) {
      EXPECT_EQ(row.verdict, JobTransition::Verdict::kIgnored);
    }
  }
}

TEST(JobStates, NobodyIsBlamedForTimeInWhichNobodyCouldBeHeard) {
  JobStateMachine machine(Nanoseconds{0});
  machine.extend_deadlines(std::chrono::seconds(4), std::chrono::seconds(10));
  EXPECT_EQ(machine.in_state(std::chrono::seconds(10)), std::chrono::seconds(6));
  machine.note_progress(std::chrono::seconds(9));
  machine.extend_deadlines(std::chrono::seconds(4), std::chrono::seconds(10));
  EXPECT_EQ(machine.quiet(std::chrono::seconds(10)), Nanoseconds{0}) << "never in the future";
}

TEST(JobStates, TheDrawingInTheDocsIsTheTable) {
  const absl::StatusOr<std::string> page = read_file("docs/recovery.md", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status();
  const std::string drawing = absl::StrCat("<!-- job states: begin -->\n```mermaid\n",
                                           job_states_drawing(), "```\n<!-- job states: end -->");
  EXPECT_NE(page->find(drawing), std::string::npos)
      << "put this into docs/recovery.md, in place of what is between the markers:\n"
      << drawing;
}

}  // namespace
}  // namespace poseidon::job_states_test
