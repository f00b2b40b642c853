#include "coordinator/job/job_states.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

using enum JobState;
using enum JobEvent;
using Verdict = JobTransition::Verdict;

constexpr const char* kStopGuard = "an operator or the end of the coordinator wanted it";
constexpr const char* kStopAction = "SendStop to each node; names the checkpoint to go on from";
constexpr const char* kFailAction = "SendStop to each node; says why";
constexpr const char* kOverAction = "SendStop to each node; fills places, takes a new epoch";
constexpr const char* kOnce = "a job ends once";

constexpr JobTransition goes(JobState from, JobEvent event, JobState to, const char* guard,
                             const char* action) {
  return {from, event, Verdict::kGoes, to, guard, action};
}
constexpr JobTransition stays(JobState from, JobEvent event, const char* guard, const char* why) {
  return {from, event, Verdict::kIgnored, from, guard, why};
}

// One row a pair. Whoever adds a row runs job_states_test, which prints the new drawing.
constexpr JobTransition kTable[] = {
    goes(kWaiting, kMeasure, kCalibrating, "enough nodes are here, and speed matters",
         "SendCalibrate"),
    goes(kWaiting, kPlanned, kPreparingServers, "enough nodes are here, nothing is measured",
         "SendAssignment to servers"),
    goes(kWaiting, kResumed, kRunning, "an earlier coordinator ran this job",
         "waits for its nodes to come back"),
    goes(kWaiting, kStop, kStopped, kStopGuard, kStopAction),
    goes(kWaiting, kFail, kFailed, "too few nodes came in time, or no plan can be made",
         kFailAction),

    goes(kCalibrating, kPlanned, kPreparingServers, "all is measured, or given up",
         "SendAssignment to servers"),
    goes(kCalibrating, kEpochOver, kReplacing, "a node is lost", kOverAction),
    goes(kCalibrating, kStop, kStopped, kStopGuard, kStopAction),
    goes(kCalibrating, kFail, kFailed, "no plan can be made, or a node failed", kFailAction),

    goes(kPreparingServers, kServersReady, kPreparingWorkers, "each server said Ready",
         "SendAssignment to workers"),
    goes(kPreparingServers, kEpochOver, kReplacing, "a node is lost or left out", kOverAction),
    goes(kPreparingServers, kStop, kStopped, kStopGuard, kStopAction),
    goes(kPreparingServers, kFail, kFailed, "a server failed or is too slow", kFailAction),

    goes(kPreparingWorkers, kWorkersReady, kRunning, "each worker said Ready",
         "SendStart to workers"),
    goes(kPreparingWorkers, kEpochOver, kReplacing, "a node is lost or left out", kOverAction),
    goes(kPreparingWorkers, kStop, kStopped, kStopGuard, kStopAction),
    goes(kPreparingWorkers, kFail, kFailed, "a worker failed or is too slow", kFailAction),

    goes(kRunning, kHalt, kHalting, "what is lost is a worker", "SendHalt to the others"),
    goes(kRunning, kEpochOver, kReplacing, "a server is lost, or a change has its checkpoint",
         kOverAction),
    goes(kRunning, kSucceed, kDone, "the model is stored, the last checkpoint is settled",
         "SendStop to each node"),
    goes(kRunning, kStop, kStopped, kStopGuard, kStopAction),
    goes(kRunning, kFail, kFailed, "a node failed, or nobody reports", kFailAction),

    goes(kHalting, kSave, kSaving, "all have halted and hold one version together",
         "SendSave of that version"),
    goes(kHalting, kEpochOver, kReplacing, "a checkpoint has it already, or nothing can be saved",
         kOverAction),
    goes(kHalting, kStop, kStopped, kStopGuard, kStopAction),
    goes(kHalting, kFail, kFailed, "the coordinator's disk is full", kFailAction),

    goes(kSaving, kEpochOver, kReplacing, "the checkpoint is committed, or given up", kOverAction),
    goes(kSaving, kStop, kStopped, kStopGuard, kStopAction),
    goes(kSaving, kFail, kFailed, "the coordinator's disk is full", kFailAction),

    goes(kReplacing, kMeasure, kCalibrating, "the new epoch has other numbers of nodes",
         "SendCalibrate"),
    goes(kReplacing, kPlanned, kPreparingServers, "the new epoch repeats its plan",
         "SendAssignment to servers"),
    stays(kReplacing, kEpochOver, "one more node is lost", "the epoch is over already"),
    goes(kReplacing, kStop, kStopped, kStopGuard, kStopAction),
    goes(kReplacing, kFail, kFailed, "nobody came, or the job recovers too often", kFailAction),

    stays(kDone, kEpochOver, "a node leaves", kOnce),
    stays(kDone, kStop, kStopGuard, kOnce),
    stays(kDone, kFail, "the coordinator's disk is full", kOnce),

    stays(kStopped, kEpochOver, "a node leaves", kOnce),
    stays(kStopped, kStop, kStopGuard, kOnce),
    stays(kStopped, kFail, "the coordinator's disk is full", kOnce),

    stays(kFailed, kEpochOver, "a node leaves", kOnce),
    stays(kFailed, kStop, kStopGuard, kOnce),
    stays(kFailed, kFail, "the coordinator's disk is full", kOnce),
};

}  // namespace

const char* job_state_name(JobState state) {
  switch (state) {
    case kWaiting:
      return "waiting";
    case kCalibrating:
    case kPreparingServers:
    case kPreparingWorkers:
      return "preparing";
    case kRunning:
      return "running";
    case kHalting:
    case kSaving:
    case kReplacing:
      return "recovering";
    case kDone:
      return "done";
    case kStopped:
      return "stopped";
    case kFailed:
      return "failed";
  }
  return "unknown";
}

const char* job_state_word(JobState state) {
  switch (state) {
    case kWaiting:
      return "Waiting";
    case kCalibrating:
      return "Calibrating";
    case kPreparingServers:
      return "PreparingServers";
    case kPreparingWorkers:
      return "PreparingWorkers";
    case kRunning:
      return "Running";
    case kHalting:
      return "Halting";
    case kSaving:
      return "Saving";
    case kReplacing:
      return "Replacing";
    case kDone:
      return "Done";
    case kStopped:
      return "Stopped";
    case kFailed:
      return "Failed";
  }
  return "unknown";
}

const char* job_event_text(JobEvent event) {
  switch (event) {
    case kMeasure:
      return "nodes are measured";
    case kPlanned:
      return "the plan is made";
    case kServersReady:
      return "all servers are ready";
    case kWorkersReady:
      return "all workers are ready";
    case kResumed:
      return "a new coordinator goes on";
    case kHalt:
      return "a worker is lost";
    case kSave:
      return "all have halted";
    case kEpochOver:
      return "the epoch is over";
    case kSucceed:
      return "all is done";
    case kStop:
      return "it is stopped";
    case kFail:
      return "it cannot go on";
  }
  return "unknown";
}

std::span<const JobTransition> job_transitions() { return kTable; }

const JobTransition* job_transition(JobState state, JobEvent event) {
  const auto* const row = std::ranges::find_if(
      kTable, [&](const JobTransition& t) { return t.from == state && t.event == event; });
  return row == std::end(kTable) ? nullptr : row;
}

bool job_goes(JobState state, JobEvent event) {
  const JobTransition* const row = job_transition(state, event);
  return row != nullptr && row->verdict == Verdict::kGoes;
}

std::string job_states_drawing() {
  std::string drawing = "stateDiagram-v2\n  [*] --> Waiting\n";
  // An event that leads where another one does shares its arrow.
  std::map<std::pair<JobState, JobState>, std::string> arrows;
  for (const JobTransition& row : kTable) {
    if (row.verdict == Verdict::kIgnored) continue;
    std::string& label = arrows[{row.from, row.to}];
    absl::StrAppend(&label, label.empty() ? "" : ", or ", job_event_text(row.event));
  }
  for (const auto& [ends, label] : arrows) {
    absl::StrAppend(&drawing, "  ", job_state_word(ends.first), " --> ",
                    job_state_word(ends.second), ": ", label, "\n");
  }
  for (const JobState state : kAllJobStates) {
    if (is_final(state)) absl::StrAppend(&drawing, "  ", job_state_word(state), " --> [*]\n");
  }
  return drawing;
}

bool is_preparing(JobState state) {
  return state == kCalibrating || state == kPreparingServers || state == kPreparingWorkers;
}

bool is_final(JobState state) { return state == kDone || state == kStopped || state == kFailed; }

bool JobStateMachine::transition(JobEvent event, Nanoseconds now) {
  const JobTransition* const row = job_transition(state_, event);
  const std::string what =
      absl::StrCat("\"", job_event_text(event), "\" is not for state ", job_state_word(state_));
  POSEIDON_CHECK(row != nullptr, what.c_str());
  if (row->verdict == Verdict::kIgnored) return false;
  state_ = row->to;
  entered_ = last_progress_ = now;
  return true;
}

void JobStateMachine::extend_deadlines(Nanoseconds duration, Nanoseconds now) {
  entered_ = std::min(entered_ + duration, now);
  last_progress_ = std::min(last_progress_ + duration, now);
}

}  // namespace poseidon
