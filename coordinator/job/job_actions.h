#pragma once

// What a job wants to have done: sends, metrics lines, files, log. Pure values.
//
// Called by: all parts of job_run.h; coordinator/cluster/job_host.cc carries the actions out in
// their order.
// Calls: nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/job/checkpoints/checkpoint_commit.h"
#include "coordinator/job/reports/calibration_run.h"
#include "coordinator/job/reports/reports.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// Send Assignment with the job's plan(), restore() and text, and this index.
struct SendAssignment {
  NodeId node;
  std::uint32_t index = 0;  ///< WorkerRank or ServerIndex
};
struct SendCalibrate {
  CalibrationTask task;
};
struct SendStart {
  NodeId node;
};
struct SendStop {
  NodeId node;
  bool succeeded = false;
  std::string reason;
};
/// Send Halt: stop training, and say what you hold.
struct SendHalt {
  NodeId node;
};
/// Send SaveCheckpoint.
struct SendSave {
  NodeId node;
  Iteration iteration = 0;
  bool held = false;             ///< training is halted: from memory, now
  std::vector<WorkerRank> lost;  ///< held: whose pieces others give
};
/// Take a new epoch (StateDirectory::next_epoch), then call on_epoch.
struct TakeEpoch {};
/// Take the lines of iterations and tests from this iteration on out of metrics.jsonl.
struct RollBackMetrics {
  Iteration iteration = 0;
};
/// One line of metrics.jsonl, without the line end.
struct AppendMetrics {
  std::string line;
  /// With this line all is told that comes before this version: call on_metrics_written once it is
  /// on disk. Nothing: call nobody.
  std::optional<SnapshotId> reaches;
};
/// Keep this, of PlanMemory, in the state directory under the job's key. May fail: then the
/// next run of the job is planned without it.
struct KeepPlans {
  std::string contents;
};
/// A small file of the run directory, whole.
struct WriteFile {
  std::string name;
  std::string contents;
};
struct CountRefusal {
  Refusal refusal = Refusal::kMalformed;
  std::string text;  ///< who, what and why
};
struct LogLine {
  enum class Kind : std::uint8_t {
    kJob,
    kRecovery,
    kAlarm,
    kRoutine,  ///< for the log alone
  };
  std::string text;
  Kind kind = Kind::kJob;
};
using JobAction =
    std::variant<SendAssignment, SendCalibrate, SendStart, SendStop, SendHalt, SendSave, TakeEpoch,
                 RollBackMetrics, AppendMetrics, KeepPlans, WriteFile, CountRefusal, LogLine,
                 ForgetParts, WriteManifest, RemoveManifest, CheckpointLog>;
using JobActions = std::vector<JobAction>;

/// A message that does not fit, which changes nothing.
inline void refuse(JobActions& actions, Refusal refusal, std::string text) {
  actions.emplace_back(CountRefusal{.refusal = refusal, .text = std::move(text)});
}

}  // namespace poseidon
