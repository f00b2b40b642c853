#pragma once

// Holds the cluster's one job, and carries out what it decides: messages to nodes, lines and files
// of the run, manifests. Tells it which nodes join and depart. Called by: cluster.cc,
// submissions.cc, returns.cc, leaving.cc, checkpoint_calls.cc. Calls: JobRun, and the parts of
// Cluster below it: NodeStreams, RunOutput, CheckpointBook, Watch, Traces.
//
// Invariants
//  1. The actions that JobRun returns are carried out at once and in order, before the mutex is
//     released.
//  2. A node that does not take a message departs after all actions, never in the middle of them.
//  3. No deadline of the job counts time in which the coordinator could receive no messages. Used
//     with Cluster's mutex held (cluster_context.h), except install, which takes it. wait_until
//     releases it while it waits.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/entropy.h"
#include "common/threads/mutex.h"
#include "coordinator/cluster/checkpoint_book.h"
#include "coordinator/cluster/cluster_context.h"
#include "coordinator/cluster/run/job_record.h"
#include "coordinator/cluster/run/run_output.h"
#include "coordinator/cluster/traces.h"
#include "coordinator/cluster/watch.h"
#include "coordinator/members/lost_time.h"
#include "coordinator/members/node_streams.h"
#include "coordinator/members/stream_proofs.h"
#include "coordinator/watch/scrape_targets.h"
#include "coordinator/watch/status_clients.h"

namespace poseidon {

/// The parts of one Cluster that JobHost acts on. All outlive it.
struct JobSurroundings {
  Membership& membership;
  NodeStreams& streams;
  Watch& watch;
  ScrapeTargets& targets;
  StatusClients& clients;
  Traces& traces;
  CheckpointBook& checkpoints;
  RunOutput& output;
};

class JobHost {
 public:
  JobHost(ClusterContext& context, const JobSurroundings& parts);

  // ---- the job ----
  /// Null before the first job.
  JobRun* job() const { return job_.get(); }
  bool is_job(const std::string& id) const { return job_ && job_->description().id == id; }
  /// There is a job that has not ended, or whose files are not closed yet.
  bool is_active() const { return job_ && (!job_->ended() || !output_.is_closed()); }
  /// There is a job. A job whose last lines are lost has failed.
  JobState state() const;
  /// There is a job. "job ID is STATE (N of M iterations)".
  std::string text() const;
  /// Of a job that has not ended.
  std::optional<Epoch> active_epoch() const;
  /// Its nodes that are not lost, while it has not ended.
  std::vector<NodeId> nodes() const;
  /// The checkpoint that it began from.
  std::optional<SnapshotId> source() const { return record_.source(); }

  /// A new job begins. Takes the mutex. `earlier`: the part of the run that the run directory
  /// already has.
  void install(std::unique_ptr<JobRun> job, const v1::SubmitRequest& request,
               std::shared_ptr<RunFiles> directory, std::optional<MetricsProgress> earlier);
  /// Continues an earlier coordinator's job. Follow with apply and members_changed.
  void resume(std::unique_ptr<JobRun> job, const v1::SubmitRequest& request,
              const DurableJob& record, std::shared_ptr<RunFiles> directory, LossCurve curve,
              Iteration completed);

  // ---- events ----
  void apply(const JobActions& actions);
  /// The node is no member any more.
  void depart(const Departure& departure, const absl::Status& status,
              DepartureKind kind = DepartureKind::kLost);
  void members_changed();
  /// Extends the job's deadlines by the time in which no messages could be received. Call before
  /// anything is judged by how long it took. False: no node sends messages now.
  bool extend_deadlines(Nanoseconds now);
  void on_manifest_written(const CheckpointManifest& manifest, const absl::Status& status);
  void on_manifest_removed(const CheckpointManifest& manifest, const absl::Status& status);
  /// All files of the run are written: its nodes may stop.
  void on_run_closed();
  /// `holds` is looked at after each event of the job. `mutex` is Cluster's.
  bool wait_until(Mutex& mutex, Nanoseconds timeout, const std::function<bool()>& holds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// The same, for what only the job's nodes can bring about: also returns when none of them has
  /// had a stream for `lease`.
  void wait_for_nodes(Mutex& mutex, Nanoseconds timeout, Nanoseconds lease,
                      const std::function<bool()>& holds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// A node's stream has ended or begun.
  void streams_changed() { changed_.notify_all(); }

 private:
  bool has_streams() const;
  std::vector<NodeInfo> candidates() const;
  void apply_one(const JobAction& action);
  void after_actions();
  v1::CoordinatorMessage calibrate_message(const CalibrationTask& task) const;
  void send_assignment(const SendAssignment& assignment);
  void send_save(const SendSave& save);
  void send_stop(const SendStop& stop);
  void take_epoch();
  void keep_plans(const std::string& contents);
  void leave_stopped_run();

  ClusterContext& context_;
  Membership& membership_;
  NodeStreams& streams_;
  Watch& watch_;
  ScrapeTargets& targets_;
  StatusClients& clients_;
  Traces& traces_;
  CheckpointBook& checkpoints_;
  RunOutput& output_;
  std::unique_ptr<JobRun> job_;
  JobRecord record_;
  StreamProofBook proofs_{system_random};
  LostTime lost_time_;
  CondVar changed_;  ///< after each event of the job
};

}  // namespace poseidon
