#pragma once

// The life of one job as a pure state machine: events in, actions out.
//
// job_states.h has the states, and the one table of what may follow what; docs/recovery.md draws
// it. A node that is lost ends no job, but an epoch: the job recovers (job_run_recovery.cc).
//
// When a worker is lost, everything of the iteration in flight is still in memory elsewhere: the
// others halt, the state after the last iteration that all finished is saved, and the next epoch
// goes on from there. When a server is lost, or what is in memory does not fit together, it goes
// on from the newest committed checkpoint, and where there is none, from the beginning.
//
// Before: coordinator/cluster/cluster.h checked who sent a message and knows `now`; membership
// knows who is here. After: the cluster carries out the actions in their order: sends, metrics
// lines, files, log.
//
// Invariants
//  1. Every state but done and failed has a deadline; what happens then names who did not answer.
//  2. done and failed are final and are entered once. An epoch ends with one SendStop to each of
//     its nodes that is still there.
//  3. A message that does not fit (sender, epoch, state, iteration) changes nothing and yields one
//     CountRefusal.
//  4. Metrics lines come in the order of iterations, each exactly once; RollBackMetrics takes those
//     back that the next epoch will write again.
//  5. An epoch begins at an iteration whose metrics are complete, from one consistent state.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/job/data_identity.h"
#include "common/plan/calibration.h"
#include "common/plan/plan.h"
#include "coordinator/job/calibration_run.h"
#include "coordinator/job/checkpoint_commit.h"
#include "coordinator/job/epoch_run.h"
#include "coordinator/job/idle_recoveries.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_counts.h"
#include "coordinator/job/job_description.h"
#include "coordinator/job/job_states.h"
#include "coordinator/job/participant.h"
#include "coordinator/job/recovery.h"
#include "coordinator/job/reports.h"
#include "coordinator/job/training_data.h"
#include "coordinator/job/training_pace.h"
#include "coordinator/members/membership.h"
#include "coordinator/members/mishaps.h"
#include "coordinator/members/unreachable_pairs.h"
#include "coordinator/planning/elastic_job.h"
#include "coordinator/records/disk_request.h"

namespace poseidon {

/// As in Failed.failure.
enum class FailureKind { kJob, kCheckpoint, kPeer };

/// What GetStatus says of a job's progress.
struct JobProgress {
  std::string message;
  Iteration completed = 0;
  std::optional<double> loss;
  std::optional<TestResult> test;
  double images_per_s = 0.0;
  double training_seconds = 0.0;
  double iterated_seconds = 0.0;  ///< of them, until the last finished iteration
  Iteration training_from = 0;    ///< that was next when training_seconds began
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

/// One thread only (the cluster holds its mutex). `now` never goes backwards.
class JobRun {
 public:
  JobRun(JobRunOptions options, JobDescription description, Nanoseconds now);
  /// Goes on with what an earlier coordinator began; its nodes are members that are yet to come
  /// back. Precondition: plan and participants fit each other, unless the epoch was over.
  static std::unique_ptr<JobRun> resume(JobRunOptions options, JobDescription description,
                                        RunningJob running, Nanoseconds now, JobActions& actions);

  /// The cluster's members, in order of joining; after every change and once at the beginning.
  /// Takes the first that fit as soon as there are enough.
  JobActions on_members(const std::vector<NodeInfo>& members, Nanoseconds now);
  /// A node is gone. Of one with a part in the job, unless it is a worker whose part is done, the
  /// job has to recover.
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
  /// How many iterations were reported that nobody had reported in their epoch ...
  std::uint64_t advances() const { return advances_; }
  /// ... and who had to take part in the one before such an iteration, that it could begin: all
  /// workers, and the servers that have layers.
  std::vector<NodeId> needed_to_advance() const;
  /// All workers but these, if there are any others, have told of all they had to do.
  bool others_have_finished(const std::vector<NodeId>& nodes) const;

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
  /// How many batches have gone through the worker's network in this epoch, in tests too. Progress
  /// while nothing is reported: a test may take hours.
  void on_batches(NodeId from, std::uint64_t batches, Nanoseconds now);
  /// `unreachable`: of kPeer, the address of who does not answer; "" where that is not known.
  JobActions on_failed(NodeId from, Epoch epoch, const std::string& reason, FailureKind kind,
                       Nanoseconds now, const std::string& unreachable = "");
  JobActions on_halted(NodeId from, Epoch epoch, const HeldVersions& held, Nanoseconds now);

  /// What TakeEpoch asked for.
  JobActions on_epoch(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now);

  // ---- checkpoints ----
  JobActions on_checkpoint_report(NodeId from, Epoch epoch, CheckpointCommit::Report report,
                                  std::int64_t now_unix_s, Nanoseconds now);
  JobActions on_manifest_written(SnapshotId snapshot, const absl::Status& status, Nanoseconds now);
  JobActions on_manifest_removed(SnapshotId snapshot, const absl::Status& status);
  /// The metrics up to `version` are on the disk, as AppendMetrics asked. Ignored for another epoch
  /// than the present one.
  JobActions on_metrics_written(SnapshotId version);
  /// An operator wants one, or joins the one that is asked for. FAILED_PRECONDITION when the job
  /// does not train just now.
  absl::StatusOr<JobActions> save_checkpoint(Nanoseconds now);
  /// After that, and after its actions: which, be it in the making or committed already, as
  /// training is ahead of its reports. Nothing where a node could not be asked, and the job
  /// recovers.
  std::optional<Iteration> checkpoint_that_was_asked_for() const;
  const CheckpointCommit& checkpoints() const { return checkpoints_; }
  /// What this epoch goes on from; null when it begins at iteration 0. Its stores' addresses are in
  /// their order.
  const CheckpointManifest* restore() const { return source_ ? &*source_ : nullptr; }
  const std::vector<std::string>& restore_addresses() const { return source_addresses_; }
  Epoch epoch() const { return epoch_; }
  /// As it is with this epoch's number of workers.
  const std::string& job_json() const { return elastic_.job_json; }
  std::int64_t batch_size() const { return elastic_.batch_size; }
  Iteration first_iteration() const { return first_iteration_; }  ///< of this epoch
  int recoveries() const { return recoveries_; }
  const std::string& recovering_from() const { return recovering_from_; }  ///< the last time
  bool has_trained() const { return pace_.has_begun(); }    ///< in this epoch or before
  JobCounts counts() const;                                 ///< for metrics
  std::uint32_t begun_with() const { return begun_with_; }  ///< workers of the first epoch
  /// What it trains on; nothing before a worker of it was ready.
  std::optional<DataIdentity> data() const { return data_.identity(); }
  std::uint64_t samples() const { return samples_; }  ///< that all had taken before this epoch

  /// How long the slowest worker's layers take now. A plan that would be better is written down for
  /// the next start and shown; with sync.replan the job goes over to it, from a checkpoint.
  JobActions on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now);

  /// Worker 0 begins to send model.safetensors, perhaps not for the first time: it is at work. How
  /// often it comes again is its own affair (--coordinator-away-s).
  void on_model_offered(Nanoseconds now) { states_.note_progress(now); }
  /// It is on disk.
  JobActions on_model_stored(Epoch epoch, Nanoseconds now);
  /// Ends the job from outside: the disk is full.
  JobActions fail(const std::string& reason, Nanoseconds now);
  /// Somebody wants it to end. What has been trained is saved first, for at most `patience`, and a
  /// job that has all its iterations behind it may become done. May be repeated: the last patience
  /// counts.
  JobActions stop(const std::string& why, Nanoseconds patience, Nanoseconds now);
  /// Somebody wants it to end.
  bool is_stopping() const { return stopping_.has_value(); }
  /// It has ended because somebody wanted that ...
  bool was_stopped() const { return was_stopped_; }
  /// ... and no checkpoint has what it had trained when it was told to.
  bool ended_unsaved() const { return ended_unsaved_; }
  /// No more workers and no better plan before the next one is wanted.
  void drop_change() { change_.reset(); }
  /// Looks at the deadlines; call several times a second.
  JobActions tick(Nanoseconds now);
  /// Extends all deadlines by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now);

  const JobDescription& description() const { return description_; }
  JobState state() const { return states_.state(); }
  bool ended() const { return is_final(state()); }
  std::optional<Nanoseconds> ended_at() const { return ended_at_; }
  /// OK when a model of this epoch may be stored now, else ABORTED: the epoch is over or about to
  /// be, which is no fault of the sender.
  absl::Status accepts_model(Epoch epoch) const;
  /// Null until it is made.
  const std::shared_ptr<const Plan>& plan() const {
    static const std::shared_ptr<const Plan> kNone;
    return run_ ? run_->plan : kNone;
  }
  /// What the plan rests on, for people.
  const std::string& plan_basis() const { return plan_basis_; }
  /// What another plan would change and gain, for people; "" while none would.
  const std::string& recommendation() const {
    static const std::string kNone;
    return run_ ? run_->recommendation : kNone;
  }
  const std::vector<Participant>& workers() const { return workers_; }  ///< by rank
  const std::vector<Participant>& servers() const { return servers_; }  ///< by index
  JobProgress progress(Nanoseconds now) const;

 private:
  Participant* find(NodeId id);
  bool has_place(NodeId id) const;  ///< also one that is lost
  bool choose_nodes(const std::vector<NodeInfo>& members);
  JobActions on_epoch_instead(const absl::StatusOr<std::uint64_t>& epoch, Nanoseconds now);
  std::vector<std::string> addresses(const std::vector<Participant>& participants) const;
  std::vector<std::string> machines(const std::vector<Participant>& participants) const;
  void begin_calibration(Nanoseconds now, JobActions& actions);
  void go_on_calibrating(Nanoseconds now, JobActions& actions);
  void make_plan(std::optional<Calibration> calibration, Nanoseconds now, JobActions& actions);
  void end(bool succeeded, const std::string& reason, Nanoseconds now, JobActions& actions);
  double images_done() const;
  void begin_planning(Nanoseconds now, JobActions& actions);
  void tick_recovery(Nanoseconds now, JobActions& actions);
  void tick_change(Nanoseconds now, JobActions& actions);
  void change_now(Nanoseconds now, JobActions& actions);
  void consider_growth(Nanoseconds now, JobActions& actions);
  std::size_t most_workers() const;
  bool is_idle(const NodeInfo& node, bool needed, Nanoseconds now) const;
  const NodeInfo* next_idle(NodeRole role, const std::string* store, bool needed,
                            Nanoseconds now) const;
  const NodeInfo* idle_beside_group(const Participant& vacant, bool needed, Nanoseconds now) const;
  const NodeInfo* idle_beside(const std::string& address, bool needed, Nanoseconds now) const;
  bool may_try(const NodeInfo& node, bool needed, Nanoseconds now) const;
  bool would_slow_all(const NodeInfo& node) const;
  const NodeInfo* itself_again(const Participant& vacant, bool needed, Nanoseconds now) const;
  std::size_t idle_workers(Nanoseconds now) const;
  void count_mishap(const NodeInfo& newcomer, Nanoseconds now);
  void forget_mishaps();
  void leave_out(Participant& participant, const std::string& why, JobActions& actions);
  const NodeInfo* member_at(const std::string& address) const;
  void note_unreachable(NodeId from, Epoch epoch, const std::string& address);
  const Participant& cut_off(const Participant& failed, const Participant* other) const;
  bool can_do_without(const Participant& participant, Nanoseconds now) const;
  bool leave_out_unreachable(const Participant& failed, const std::string& address,
                             const std::string& reason, Nanoseconds now, JobActions& actions);
  bool leave_out_silent(Nanoseconds now, JobActions& actions);
  bool is_doubter(const NodeInfo& node) const;
  bool leave_out_doubter(const Participant& failed, const std::string& reason, Nanoseconds now,
                         JobActions& actions);
  bool leave_out_unfit(const Participant& failed, const std::string& reason, Nanoseconds now,
                       JobActions& actions);
  void fail_for(const Participant& participant, const std::string& reason, Nanoseconds now,
                JobActions& actions);
  std::string check_data(const Participant& worker, const DataIdentity& found, JobActions& actions);
  void forget_untrained_data();
  bool allows_workers(std::size_t count) const;
  void add_workers(Nanoseconds now);
  void end_epoch(bool succeeded, const std::string& reason, JobActions& actions);
  bool waits_to_stop(Nanoseconds now) const;
  bool waits_for_disk(Nanoseconds now) const;
  bool is_stored() const;
  void write_again(Nanoseconds now, JobActions& actions);
  void give_up_unwritten(JobActions& actions);
  const CheckpointManifest* newest_untold() const;
  std::string reports_awaited_text() const;
  void settle_stop(Nanoseconds now, JobActions& actions);
  void recover(EpochEnd what, const std::string& reason, bool in_memory, Nanoseconds now,
               JobActions& actions);
  void fall_back(const std::string& why, Nanoseconds now, JobActions& actions);
  void halted_all(Nanoseconds now, JobActions& actions);
  void resume_recovery(const RunningJob& running, Nanoseconds now);
  void replace(Nanoseconds now, JobActions& actions);
  void try_replacing(Nanoseconds now, JobActions& actions);
  bool fill_vacancies(bool in_time, bool needed, std::string& missing, Nanoseconds now);
  std::vector<const CheckpointManifest*> usable_checkpoints() const;
  bool choose_source(bool in_time, std::string& missing);
  void begin_at_source();
  bool repeats_source_plan() const;
  bool group_needs(const Participant& participant) const;
  std::string missing_stores_text() const;
  bool is_trained() const;
  bool checkpoints_are_open() const;
  std::optional<std::vector<std::string>> addresses_of_stores(
      const CheckpointManifest& manifest) const;
  void after_checkpoint_event(Nanoseconds now, JobActions& actions);
  void carry_out(CheckpointActions checkpoint_actions, JobActions& actions);
  CheckpointManifest manifest_frame() const;
  std::size_t fewest_workers() const;
  void finish_if_complete(Nanoseconds now, JobActions& actions);
  void complete_iteration(const IterationResult& result, JobActions& actions);
  std::optional<Iteration> test_under_way() const;
  Participant* expect_worker(NodeId from, Epoch epoch, const char* what, JobActions& actions);
  Participant* expect_participant(NodeId from, Epoch epoch, const char* what, JobActions& actions);
  std::string deadline_reason(Nanoseconds now) const;
  std::string missing_text() const;

  const JobRunOptions options_;
  const JobDescription description_;
  Epoch epoch_;
  JobStateMachine states_;
  std::string message_;
  std::vector<NodeInfo> members_;    ///< of the cluster, in order of joining
  std::size_t present_workers_ = 0;  ///< members that fit the job, with a part in it or not
  std::size_t present_servers_ = 0;
  std::optional<CalibrationRun> calibration_;  ///< while calibrating
  std::optional<EpochRun> run_;                ///< from the first plan on
  std::string plan_basis_;
  std::vector<Participant> workers_;
  std::vector<Participant> servers_;
  std::uint64_t advances_ = 0;
  TrainingPace pace_;
  std::optional<double> loss_;
  std::optional<TestResult> test_;
  bool model_stored_ = false;

  // Recovery.
  CheckpointCommit checkpoints_;
  std::optional<CheckpointManifest> source_;
  std::vector<std::string> source_addresses_;
  /// Machines of the newcomers that could not read them.
  std::map<SnapshotId, std::set<std::string>> distrusted_machines_;
  bool lines_are_lost_ = false;       ///< metrics.jsonl reaches no checkpoint of an earlier process
  Iteration first_iteration_ = 0;     ///< of this epoch
  std::string recovering_from_;       ///< why; for people
  std::optional<Recovery> recovery_;  ///< from a loss until the next epoch trains
  std::set<NodeId> unfit_;            ///< members that cannot take part in this job
  TrainingData data_;
  Mishaps mishaps_;
  UnreachablePairs unreachable_;
  std::size_t trained_workers_ = 0;  ///< of the last epoch that trained
  std::size_t most_that_fit_ = std::numeric_limits<std::size_t>::max();  ///< as far as is known
  /// While halting and saving, or about to end: of these all parts are stored, but the disk has
  /// refused the manifest.
  std::map<SnapshotId, DiskRequest> unwritten_;
  DiskRequest next_epoch_;
  int recoveries_ = 0;
  JobCounts counts_;  ///< but for checkpoints

  struct Stopping {
    std::string why;
    Iteration completed = 0;  ///< when it was told to
    Nanoseconds until{0};
  };
  std::optional<Stopping> stopping_;
  bool was_stopped_ = false;
  bool ended_unsaved_ = false;

  // Changes that are no recoveries: more workers, a better plan.
  struct Change {
    std::string why;
    std::optional<Plan> plan;
    std::optional<Iteration> at;  ///< the checkpoint that was asked for
  };
  std::optional<Change> change_;
  Nanoseconds change_after_{0};  ///< no sooner
  int plan_changes_ = 0;
  ElasticJob elastic_;
  std::uint32_t begun_with_ = 0;  ///< workers of the first epoch
  std::uint64_t samples_ = 0;     ///< that all have taken before first_iteration_
  IdleRecoveries idle_recoveries_;
  Iteration furthest_ = 0;  ///< how many iterations have ever been complete
  std::optional<Nanoseconds> ended_at_;
};

}  // namespace poseidon
