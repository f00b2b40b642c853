#pragma once

// The life of one job as a pure state machine: events in, actions out.
//
//   waiting -> (calibrating) -> preparing servers -> preparing workers -> running -> done
//      \_____________\__________________\____________________\_______________\______-> failed
//
// Before: the service checked who sent a message and knows `now`; membership knows who is here.
// After: the service carries out the actions in their order: sends, metrics lines, files, log.
//
// Invariants
//  1. Every state but done and failed has a deadline; what happens then names who did not answer.
//  2. done and failed are final and are entered once, with one SendStop to each node of the job
//     that is still there.
//  3. A message that does not fit (sender, epoch, state, iteration) changes nothing and yields one
//     CountRefusal.
//  4. Metrics lines come in the order of iterations, each exactly once.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/calibration.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/plan.h"
#include "coordinator/calibrate.h"
#include "coordinator/calibration_run.h"
#include "coordinator/membership.h"
#include "coordinator/reports.h"

namespace poseidon {

// ---- actions ----

/// Send Assignment with the job's plan() and text, and this index.
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
/// One line of metrics.jsonl, without the line end.
struct AppendMetrics {
  std::string line;
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
  std::string text;
};
using JobAction = std::variant<SendAssignment, SendCalibrate, SendStart, SendStop, AppendMetrics,
                               WriteFile, CountRefusal, LogLine>;
using JobActions = std::vector<JobAction>;

// ---- the job ----

struct JobRunOptions {
  Nanoseconds waiting_timeout = std::chrono::seconds(120);   ///< until enough nodes are there
  Nanoseconds preparing_timeout = std::chrono::minutes(10);  ///< each of the two preparing states
  Nanoseconds progress_timeout = std::chrono::minutes(30);   ///< without any accepted report
  Nanoseconds upload_timeout = std::chrono::minutes(10);     ///< all finished, but no model yet
  CalibrationOptions calibration;
};

struct JobDescription {
  std::string id;
  std::string name;
  Epoch epoch;
  std::uint32_t workers = 0;  ///< exactly so many; 0: min_workers up to max_workers
  std::uint32_t servers = 0;  ///< exactly so many; 0: all there are, at least one
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 64;
  std::int64_t batch_size = 0;  ///< per worker
  Iteration iterations = 0;
  /// Pure; of the step that ends an iteration.
  std::function<double(Iteration)> learning_rate;
  using Addresses = std::vector<std::string>;
  /// Pure; (worker addresses by rank, server addresses by index): why nothing is measured before
  /// this job; "" when it should be.
  std::function<std::string(const Addresses&, const Addresses&)> why_no_calibration;
  /// Pure; the same addresses and what was measured -> plan of this epoch.
  std::function<absl::StatusOr<Plan>(Addresses, Addresses, std::optional<Calibration>)> make_plan;
  /// Pure; a plan with a calibration, the layers' times now, what to remember. May be null: nobody
  /// looks.
  std::function<absl::StatusOr<ReplanDecision>(const Plan&, const std::vector<LayerTimes>&,
                                               ReplanState)>
      consider_replan;
  std::vector<std::string> layers;  ///< names of the parameter layers, forward order
};

enum class JobState {
  kWaiting,
  kCalibrating,
  kPreparingServers,
  kPreparingWorkers,
  kRunning,
  kDone,
  kFailed
};
const char* job_state_name(JobState state);  ///< as in GetStatusResponse.state

enum class ParticipantState { kPreparing, kReady, kRunning, kFinished, kLost };
const char* participant_state_name(ParticipantState state);

/// A node with a part in the job.
struct Participant {
  NodeInfo node;
  std::uint32_t index = 0;  ///< WorkerRank or ServerIndex
  ParticipantState state = ParticipantState::kPreparing;
};

/// What GetStatus says of a job's progress.
struct JobProgress {
  std::string message;
  Iteration completed = 0;
  std::optional<double> loss;
  std::optional<TestResult> test;
  double images_per_s = 0.0;
  double training_seconds = 0.0;
};

/// A node on a new stream, and what it says it is in the middle of.
struct ReturningNode {
  NodeId node;
  Epoch epoch;
  std::uint32_t index = 0;  ///< WorkerRank or ServerIndex
  Iteration oldest = 0;     ///< workers: first report that it still has
};
/// What a worker that came back shall report again.
struct LackingReports {
  Iteration iteration = 0;
  Iteration test = 0;
};

/// A job that was running when an earlier coordinator died.
struct RunningJob {
  Plan plan;
  std::string plan_basis;
  std::vector<Participant> workers;  ///< by rank
  std::vector<Participant> servers;  ///< by index
  Iteration completed = 0;           ///< metrics.jsonl has all before it
  std::optional<double> loss;
  std::optional<TestResult> test;  ///< the last one of metrics.jsonl
  bool model_stored = false;
  Nanoseconds age{0};  ///< since Start
};

/// One thread only (the service holds its mutex). `now` never goes backwards.
class JobRun {
 public:
  JobRun(JobRunOptions options, JobDescription description, Nanoseconds now);
  /// Goes on with what an earlier coordinator began; its nodes are members that are yet to come
  /// back. Precondition: plan and participants fit each other.
  static std::unique_ptr<JobRun> resume(JobRunOptions options, JobDescription description,
                                        RunningJob running, Nanoseconds now);

  /// The cluster's members, in order of joining; after every change and once at the beginning.
  /// Takes the first that fit as soon as there are enough.
  JobActions on_members(const std::vector<NodeInfo>& members, Nanoseconds now);
  /// A node is gone. One of the job's ends it, unless it is a worker whose part is done.
  JobActions on_departure(const Departure& departure, Nanoseconds now);

  /// A node whose stream had broken is here again. Nothing: it has no such part in the job (any
  /// more), and no actions.
  std::optional<LackingReports> on_back(const ReturningNode& back, JobActions& actions);
  /// The node is one of the job's, which goes on, and was not given up.
  bool has_part(NodeId id) const;

  JobActions on_calibration(NodeId from, Epoch epoch, const CalibrationAnswer& answer,
                            Nanoseconds now);
  JobActions on_ready(NodeId from, Epoch epoch, Nanoseconds now);
  JobActions on_iteration(NodeId from, Epoch epoch, Iteration iteration, double loss,
                          Nanoseconds now);
  JobActions on_test(NodeId from, Epoch epoch, Iteration iteration, const TestPart& part,
                     Nanoseconds now);
  JobActions on_finished(NodeId from, Epoch epoch, Nanoseconds now);
  JobActions on_failed(NodeId from, Epoch epoch, const std::string& reason, Nanoseconds now);

  /// How long the slowest worker's layers take now. A plan that would be better is written down for
  /// the next start and shown; the one in force stays.
  JobActions on_measured_times(const std::vector<LayerTimes>& times, Nanoseconds now);

  /// model.safetensors is on disk.
  JobActions on_model_stored(Epoch epoch, Nanoseconds now);
  /// Ends the job from outside: the disk is full, the coordinator stops.
  JobActions fail(const std::string& reason, Nanoseconds now);
  /// Looks at the deadlines; call several times a second.
  JobActions tick(Nanoseconds now);

  const JobDescription& description() const { return description_; }
  JobState state() const { return state_; }
  bool ended() const { return state_ == JobState::kDone || state_ == JobState::kFailed; }
  /// OK when a model of this epoch may be stored now.
  absl::Status accepts_model(Epoch epoch) const;
  /// Null until it is made.
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  /// What the plan rests on, for people.
  const std::string& plan_basis() const { return plan_basis_; }
  /// What another plan would change and gain, for people; "" while none would.
  const std::string& recommendation() const { return recommendation_; }
  const std::vector<Participant>& workers() const { return workers_; }  ///< by rank
  const std::vector<Participant>& servers() const { return servers_; }  ///< by index
  JobProgress progress(Nanoseconds now) const;

 private:
  Participant* find(NodeId id);
  void enter(JobState state, Nanoseconds now);
  bool choose_nodes(const std::vector<NodeInfo>& members);
  std::vector<std::string> addresses(const std::vector<Participant>& participants) const;
  void begin_calibration(Nanoseconds now, JobActions& actions);
  void go_on_calibrating(Nanoseconds now, JobActions& actions);
  void make_plan(std::optional<Calibration> calibration, Nanoseconds now, JobActions& actions);
  void end(bool succeeded, const std::string& reason, Nanoseconds now, JobActions& actions);
  void finish_if_complete(Nanoseconds now, JobActions& actions);
  void complete_iteration(const IterationResult& result, Nanoseconds now, JobActions& actions);
  Participant* expect_worker(NodeId from, Epoch epoch, const char* what, JobActions& actions);
  Participant* expect_participant(NodeId from, Epoch epoch, const char* what, JobActions& actions);
  std::string deadline_reason(Nanoseconds now) const;
  std::string missing_text() const;

  const JobRunOptions options_;
  const JobDescription description_;
  JobState state_ = JobState::kWaiting;
  std::string message_;
  Nanoseconds entered_;        ///< when the state began
  Nanoseconds last_progress_;  ///< last accepted report, or beginning of the state
  std::size_t idle_workers_ = 0;
  std::size_t idle_servers_ = 0;
  std::optional<CalibrationRun> calibration_;  ///< while calibrating
  std::shared_ptr<const Plan> plan_;
  std::string plan_basis_;
  ReplanState replan_;
  std::string recommendation_;
  std::vector<Participant> workers_;
  std::vector<Participant> servers_;
  std::optional<IterationCombiner> iterations_;
  std::optional<TestCombiner> tests_;
  RateWindow images_;
  std::optional<double> loss_;
  std::optional<TestResult> test_;
  bool model_stored_ = false;
  std::optional<Nanoseconds> started_;  ///< when Start was sent
  std::optional<Nanoseconds> ended_at_;
};

}  // namespace poseidon
