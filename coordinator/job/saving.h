#pragma once

// What a job saves, and when. It asks nodes for checkpoints, takes their reports, and has manifests
// written; a manifest that a full disk refused is written again.
//
// Called by: job_run.h, with reports and answers of the disk; recovery.h and ending.h, which wait
// for what is saved; planned_change.h asks for a checkpoint.
// Calls: checkpoint_commit.h, which decides when a checkpoint is whole, checkpoint_copies.h, which
// tells whether there are as many copies as the job asks for, and job_context.h.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/job/checkpoints/checkpoint_copies.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/job/job_context.h"
#include "coordinator/records/disk_request.h"

namespace poseidon {

/// One job's. One thread only.
class Saving {
 public:
  explicit Saving(JobContext& job)
      : job_(job), copies_(job.description.checkpoints.replicas, job.options.change_pause) {}

  /// The epoch has its plan: what was in the making for the one before is given up.
  void begin_epoch(JobActions& actions);
  /// What CheckpointCommit wants; its questions go to every node of the epoch that is there.
  void carry_out(CheckpointActions wanted, JobActions& actions);
  /// A node says that it has stored its part of a checkpoint, or cannot. False: it is refused.
  bool on_report(const Participant& from, CheckpointCommit::Report report, std::int64_t now_unix_s,
                 Nanoseconds now, JobActions& actions);
  /// An operator or a change wants a checkpoint. FAILED_PRECONDITION when the job does not train
  /// just now or has done all. Nothing new is asked for while one is.
  absl::Status ask(Nanoseconds now, JobActions& actions);
  /// After ask() and its actions: which version, be it in the making or committed already, as
  /// training is ahead of its reports. Nothing where a node could not be asked, and the job
  /// recovers.
  std::optional<Iteration> asked_for() const;
  /// Training is halted, and nodes hold this version in memory: it is saved from there.
  void save_held(Iteration version, Nanoseconds now, JobActions& actions);
  /// Servers may still be storing checkpoints: one that was due, or one that was asked for.
  bool is_open() const;
  /// The job has no iteration after this one: gives up what was asked for later ones.
  void end_at(Iteration last, JobActions& actions) {
    carry_out(job_.checkpoints.end_at(last), actions);
  }
  /// While the job trains: tells when there are fewer copies than checkpoint.replicas asks for, and
  /// asks for a checkpoint as soon as that gives enough of them.
  void watch_copies(Nanoseconds now, JobActions& actions);
  const CheckpointCopies& copies() const { return copies_; }

  // ---- manifests ----
  /// The manifest is on disk, or will not get there.
  void on_written(SnapshotId snapshot, const absl::Status& status, JobActions& actions);
  /// All parts are stored, and the disk has no room for the manifest: it is written again after a
  /// pause. Returns the text for people.
  std::string on_disk_full(SnapshotId snapshot, const std::string& why, Nanoseconds now,
                           JobActions& actions);
  void write_again(Nanoseconds now, JobActions& actions);
  /// A manifest that is on its way to the disk may get there; all others will not.
  void give_up_unwritten(JobActions& actions);
  /// Of the newest manifest that the disk has refused; null: there is none.
  const std::pair<const SnapshotId, DiskRequest>* unwritten() const {
    return unwritten_.empty() ? nullptr : &*unwritten_.rbegin();
  }
  bool is_unwritten(SnapshotId snapshot) const { return unwritten_.contains(snapshot); }

 private:
  CheckpointManifest manifest_frame() const;

  JobContext& job_;
  CheckpointCopies copies_;
  /// Manifests that the disk has refused, and that somebody waits for.
  std::map<SnapshotId, DiskRequest> unwritten_;
};

}  // namespace poseidon
