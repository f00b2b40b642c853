#pragma once

// The life of one job as a pure state machine: events in, actions out.
//
// job_states.h has the states, and the one table of what may follow what; docs/recovery.md draws
// it, and walks through the loss of a node, which ends no job, but an epoch.
//
// Called by: coordinator/cluster/job_host.h, which has checked the sender and knows `now`; it
// carries out the actions in their order: sends, metrics lines, files, log.
// Calls: its parts, each of which calls only parts above it in this list:
//   saving.h          asks nodes for checkpoints, has manifests written
//   ending.h          the end of the job, by itself or because somebody wants it
//   preparation.h     from the choice of an epoch's nodes until it trains
//   waiting.h         for the first nodes
//   recovery.h        from a loss to the next epoch
//   exclusion.h       what becomes of a node that fails or is silent
//   planned_change.h  more workers, a better plan
//   training.h        what workers report of iterations and tests
// All parts work with one JobContext: states, nodes (staffing/), the epoch (epoch_run.h) and
// checkpoints (checkpoints/).
//
// Invariants
//  1. Every state but done and failed has a deadline; what happens then names the nodes that did
//     not answer.
//  2. done and failed are final and are entered once (Ending::end). An epoch ends with one SendStop
//     to each of its nodes that is still there.
//  3. A message that does not fit (sender, epoch, state, iteration) changes nothing and yields one
//     CountRefusal.
//  4. Metrics lines come in the order of iterations, each exactly once; RollBackMetrics removes
//     those that the next epoch will write again.
//  5. An epoch begins at an iteration whose metrics are complete, from one consistent state.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/job/data_identity.h"
#include "common/plan/calibration.h"
#include "common/plan/plan.h"
#include "coordinator/job/ending.h"
#include "coordinator/job/exclusion.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/job/job_counts.h"
#include "coordinator/job/job_description.h"
#include "coordinator/job/planned_change.h"
#include "coordinator/job/preparation.h"
#include "coordinator/job/recovery.h"
#include "coordinator/job/saving.h"
#include "coordinator/job/training.h"
#include "coordinator/job/waiting.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// What GetStatus says of a job's progress.
struct JobProgress {
  std::string message;
  Iteration completed = 0;
  std::optional<double> loss;
  std::optional<TestResult> test;
  double images_per_s = 0.0;
  double training_seconds = 0.0;
  double iterated_seconds = 0.0;    ///< of them, until the last finished iteration
  Iteration training_from = 0;      ///< that was next when training_seconds began
  double standstill_seconds = 0.0;  ///< for how long nothing has moved, once that is an alarm
};

/// A node on a new stream, and what it says it is in the middle of.
struct ReturningNode {
  NodeId node;
  Epoch epoch;
  std::uint32_t index = 0;  ///< WorkerRank or ServerIndex
  Iteration oldest = 0;     ///< workers: first report that it still has ...
  Iteration next = 0;       ///< ... and the one after the last
};
/// What a worker that came back shall report again.
struct LackingReports {
  Iteration iteration = 0;
  Iteration test = 0;
  Iteration checkpoint = 0;
};

/// A job that was running when an earlier coordinator died.
struct RunningJob {
  Plan plan;
  std::string plan_basis;
  std::vector<Participant> workers;  ///< by rank
  std::vector<Participant> servers;  ///< by index
  Iteration first_iteration = 0;     ///< of the epoch
  std::uint32_t begun_with = 0;      ///< workers of the run's first epoch
  std::uint64_t samples = 0;         ///< taken before the epoch
  Iteration completed = 0;           ///< metrics.jsonl has all before it
  std::optional<double> loss;
  std::optional<TestResult> test;  ///< the last one of metrics.jsonl
  bool model_stored = false;
  Nanoseconds age{0};  ///< since Start
  /// From what it recovered; "": it trained. Its participants that were lost say so.
  std::string recovering_from;
  bool stopped = false;               ///< the epoch was over
  std::vector<SnapshotId> abandoned;  ///< checkpoints of courses that the run has left
  std::optional<DataIdentity> data;   ///< what it trains on
};

/// What others may read of a job. Valid as long as the job, but `run` only until the next event.
struct JobView {
  const EpochRun& run;
  const Roster& roster;
  const Staffing& staffing;
  const EpochSource& source;  ///< what the epoch goes on from
  const CheckpointCommit& checkpoints;
  const TrainingData& data;
  const TrainingPace& pace;
  const Saving& saving;
  const Ending& ending;
  const Recovery& recovery;
  const Training& training;
  const PlannedChange& change;
};

/// One thread only (the cluster holds its mutex). `now` never goes backwards.
class JobRun {
 public:
  JobRun(const JobRunOptions& options, JobDescription description, Nanoseconds now);
  /// Goes on with what an earlier coordinator began; its nodes are members that are yet to come
  /// back. Precondition: plan and participants fit each other, unless the epoch was over.
  static std::unique_ptr<JobRun> resume(const JobRunOptions& options, JobDescription description,
                                        RunningJob running, Nanoseconds now, JobActions& actions);

  // ---- nodes come and go ----
  /// The cluster's members, in order of joining; after every change and once at the beginning.
  /// Takes the first that fit as soon as there are enough.
  JobActions on_members(const std::vector<NodeInfo>& members, Nanoseconds now);
  /// A node is gone. If it had a part in the job, the job has to recover, unless the node is a
  /// worker whose part is done.
  JobActions on_departure(const Departure& departure, Nanoseconds now);
  /// A node whose stream had broken is here again. Returns which reports of its are missing here;
  /// nullopt, adding no actions, if the node no longer has this part in the job.
  std::optional<LackingReports> on_rejoin(const ReturningNode& back, JobActions& actions);
  /// The epoch with which this coordinator resumed the job had ended before the earlier coordinator
  /// died. No node is in it any more; all of them join again, as new nodes. `why`: how that is
  /// known, for people.
  JobActions on_outdated(const std::string& why, Nanoseconds now);
  /// The node is one of the job's, which goes on, and was not given up.
  bool has_part(NodeId id) const;

  // ---- what nodes say ----
  JobActions on_calibration(NodeId from, Epoch epoch, const CalibrationAnswer& answer,
                            Nanoseconds now);
  /// `found`: the data at the place that the job names, of a worker; it trains where they are the
  /// others'.
  JobActions on_ready(NodeId from, Epoch epoch, Nanoseconds now,
                      const std::optional<DataIdentity>& found = std::nullopt);
  /// `age`: for how long the worker had it when it told of it.
  JobActions on_iteration(NodeId from, Epoch epoch, Iteration iteration, double loss,
                          Nanoseconds now, Nanoseconds age = Nanoseconds(0));
  JobActions on_test(NodeId from, Epoch epoch, Iteration iteration, const TestPart& part,
                     Nanoseconds now);
  JobActions on_finished(NodeId from, Epoch epoch, Nanoseconds now);
  /// Worker 0 is about to send the model with this SHA-256.
  JobActions on_model_announced(NodeId from, Epoch epoch, const std::string& sha256,
                                Nanoseconds now);
  /// See Training::on_batches.
  void on_batches(NodeId from, std::uint64_t batches, Nanoseconds now);
  /// See Training::on_awaited.
  void on_awaited(NodeId from, std::vector<AwaitedData> awaited, Nanoseconds now) {
    training_.on_awaited(from, std::move(awaited), now);
  }
  /// `unreachable`: of kPeer, the address of the node that does not answer; "" where that is not
  /// known.
  JobActions on_failed(NodeId from, Epoch epoch, const std::string& reason, FailureKind kind,
                       Nanoseconds now, const std::string& unreachable = "");
  JobActions on_halted(NodeId from, Epoch epoch, const HeldVersions& held, Nanoseconds now);
  JobActions on_checkpoint_report(NodeId from, Epoch epoch, CheckpointCommit::Report report,
                                  std::int64_t now_unix_s, Nanoseconds now);
  /// See PlannedChange::on_measured_times.
  JobActions on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now);
  /// Worker 0 begins to send model.safetensors, perhaps not for the first time: it is at work. How
  /// often it comes again is its own affair (--coordinator-away-s).
  void on_model_offered(Nanoseconds now) { job_.states.note_progress(now); }

  // ---- what the coordinator's disk says ----
  /// What TakeEpoch asked for.
  JobActions on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now);
  JobActions on_manifest_written(SnapshotId snapshot, const absl::Status& status, Nanoseconds now);
  JobActions on_manifest_removed(SnapshotId snapshot, const absl::Status& status);
  /// The metrics up to `version` are on the disk, as AppendMetrics asked. Ignored for another epoch
  /// than the present one.
  JobActions on_metrics_written(SnapshotId version);
  /// model.safetensors is on the disk.
  JobActions on_model_stored(Epoch epoch, Nanoseconds now);

  // ---- what people want ----
  /// A checkpoint, or to join the one that is asked for. FAILED_PRECONDITION when the job does not
  /// train just now.
  absl::StatusOr<JobActions> save_checkpoint(Nanoseconds now);
  /// Ends the job from outside: the disk is full.
  JobActions fail(const std::string& reason, Nanoseconds now);
  /// Somebody wants it to end. What has been trained is saved first, for at most `patience`, and a
  /// job that has all its iterations behind it may become done. May be repeated: the last patience
  /// counts.
  JobActions stop(const std::string& why, Nanoseconds patience, Nanoseconds now);
  /// No more workers and no better plan before the next one is wanted.
  void drop_change() { change_.drop(); }

  // ---- time ----
  /// Looks at the deadlines; call several times a second.
  JobActions tick(Nanoseconds now);
  /// Extends all deadlines by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

  // ---- how it stands ----
  JobState state() const { return job_.state(); }
  bool ended() const { return job_.ended(); }
  Epoch epoch() const { return job_.run->epoch; }
  const JobDescription& description() const { return job_.description; }
  /// The job's number of iterations; nothing while only its programs know it.
  std::optional<Iteration> iterations() const { return job_.known_iterations(); }
  JobProgress progress(Nanoseconds now) const;
  JobCounts counts() const;  ///< for metrics
  JobView view() const;

 private:
  void after_checkpoint_event(Nanoseconds now, JobActions& actions);

  JobContext job_;
  Saving saving_;
  Ending ending_;
  Preparation preparation_;
  Waiting waiting_;
  Recovery recovery_;
  Exclusion exclusion_;
  PlannedChange change_;
  Training training_;
};

/// Without this member something would be lost: it has a part in the epoch that is not done, or is
/// to leave and has what the newest checkpoint needs.
bool needs_node(const JobRun& job, NodeId id);

}  // namespace poseidon
