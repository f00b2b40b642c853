#pragma once

// The coordinator's side of checkpoints: who has to store what of one, when it is committed, which
// ones are kept. Pure: events in, actions out.
//
// Two phases. Nodes write their parts by themselves when training reaches a version that is due (or
// that SaveCheckpoint names) and report; when every server has sealed its part, the manifest is
// written. The checkpoint exists from the moment that the manifest is on disk, and not before:
// until then, and after it has been taken away, parts in the stores are rubbish that nobody reads.
//
// Called by: coordinator/job/saving.h, with reports of nodes and answers of the disk; it carries
// out the actions. epoch_source.h chooses among the committed ones. Calls: nothing.
//
// Invariants
//  1. A manifest is written only when all servers of its epoch have sealed that version.
//  2. A manifest is removed before any part is forgotten. Neither the newest committed one is
//     removed for room nor the newest of this course that the metrics reach on disk: a recovery,
//     by whichever process, begins there.
//  3. A checkpoint that fails or is not whole in time stops no training: its parts are forgotten,
//     an alarm says why, and the next one is tried.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/checkpoint/checkpoint.h"

namespace poseidon {

/// Send SaveCheckpoint to all nodes of the job.
struct AskForCheckpoint {
  Iteration iteration = 0;
};
/// Send ForgetCheckpoint to the servers with these stores that are here.
struct ForgetParts {
  SnapshotId snapshot;
  std::vector<std::string> stores;
};
/// Put the manifest on disk, then call on_manifest_written.
struct WriteManifest {
  CheckpointManifest manifest;
};
/// Take it away, then call on_manifest_removed.
struct RemoveManifest {
  CheckpointManifest manifest;
};
struct CheckpointLog {
  bool alarm = false;
  std::string text;
};
using CheckpointAction =
    std::variant<AskForCheckpoint, ForgetParts, WriteManifest, RemoveManifest, CheckpointLog>;
using CheckpointActions = std::vector<CheckpointAction>;

/// How the last attempt ended, for status.
struct CheckpointOutcome {
  SnapshotId snapshot;
  bool committed = false;
  std::string reason;  ///< why not
};

/// In this life of the coordinator.
struct CheckpointTotals {
  std::uint64_t commits = 0, failures = 0;
  std::optional<double> slowest_seconds;  ///< of the slowest server, for the newest committed one
};

struct CheckpointCommitOptions {
  /// From the first report of a version until all servers have sealed it.
  Nanoseconds timeout = std::chrono::minutes(10);
  /// How far ahead of the furthest report an asked-for version is; doubles when that was too late.
  Iteration lead = 2;
  /// One that is asked for while earlier ones take up all room is asked for again after so long,
  /// and given up after `timeout`.
  Nanoseconds busy_pause = std::chrono::seconds(1);
};

/// One job's checkpoints. One thread only (the cluster holds its mutex).
class CheckpointCommit {
 public:
  /// `committed`: those of this job that are on disk already, and perhaps one of another job from
  /// which it goes on: that one is not this job's to remove. `keep` >= 1. No version after
  /// `last_iteration` is asked for.
  CheckpointCommit(CheckpointCommitOptions options, std::int64_t keep, Iteration last_iteration,
                   std::vector<CheckpointManifest> committed);

  /// What the epoch trains on, known when its workers are ready: for its checkpoints to say.
  void set_data(const std::optional<DataIdentity>& data) { epoch_.frame.data = data; }

  /// A new epoch begins at `first_iteration`; what was in the making is given up. `frame` is a
  /// manifest but for snapshot, loss, time and bytes; its stores are the epoch's servers, and its
  /// samples those before the first iteration. Each iteration takes so many more.
  CheckpointActions begin_epoch(Epoch epoch, Iteration first_iteration, CheckpointManifest frame,
                                std::uint64_t iteration_samples);

  /// Of a server (its index) or of a worker, which speaks only of failure.
  struct Report {
    std::optional<ServerIndex> server;
    std::string who;  ///< for people
    Iteration iteration = 0;
    bool stored = false;
    MissingPart missing = MissingPart::kFailed;  ///< unless it is stored
    std::string reason;
    std::int64_t bytes = 0;
    double seconds = 0.0;  ///< from its first piece until it was sealed
  };
  CheckpointActions on_report(const Report& report, std::int64_t now_unix_s, Nanoseconds now);

  /// Somebody wants one now. FAILED_PRECONDITION while another is asked for.
  absl::StatusOr<CheckpointActions> ask(Iteration completed, Nanoseconds now);

  /// After ask(): an operator waits for the version that is asked for, or was there already. Where
  /// a later one is asked for in its place, for that one.
  void mark_asked();
  /// Whether an operator waits or has waited for this one, in this life of the coordinator.
  bool is_asked(SnapshotId snapshot) const { return for_operators_.contains(snapshot); }

  /// Training is halted, and this version is in memory: it is saved from there. Joins one that is
  /// in the making.
  CheckpointActions ask_held(Iteration version, Nanoseconds now);

  /// Mean loss of an iteration, when all workers have reported it; nothing: it is not known.
  void on_loss(Iteration iteration, std::optional<double> loss);
  /// metrics.jsonl has, on disk, all that comes before this version. Another epoch's is ignored.
  CheckpointActions on_told(SnapshotId version);

  /// Until the next epoch begins or another one is needed, this one stays, whatever `keep` says.
  void need(SnapshotId snapshot) { needed_ = snapshot; }

  /// The run has left the course of this one: it went on from an earlier iteration, and its metrics
  /// with it. No epoch begins there, but the operator may.
  void abandon(SnapshotId snapshot) { abandoned_.insert(snapshot); }
  bool is_abandoned(SnapshotId snapshot) const { return abandoned_.contains(snapshot); }
  /// Nodes could not read this one: no epoch begins there, and it counts for nothing to fall back
  /// on. It stays on disk as long as others of its age do, for a person's look.
  void set_unreadable(SnapshotId snapshot) { unreadable_.insert(snapshot); }
  bool is_usable(SnapshotId snapshot) const {
    return !is_abandoned(snapshot) && !unreadable_.contains(snapshot);
  }
  bool any_unreadable() const { return !unreadable_.empty(); }
  /// All those of other epochs than this, committed or about to be, beyond this iteration.
  void abandon_beyond(Iteration iteration, Epoch epoch);
  /// Those whose manifest may still be on disk, or get there.
  const std::set<SnapshotId>& abandoned() const { return abandoned_; }

  CheckpointActions on_manifest_written(SnapshotId snapshot, const absl::Status& status);
  /// Whose writing has been asked for, and not ended.
  const CheckpointManifest* being_written(SnapshotId snapshot) const {
    const auto found = writing_.find(snapshot);
    return found == writing_.end() ? nullptr : &found->second;
  }
  /// As RemoveManifest asked for, or an operator of a job that is over.
  CheckpointActions on_manifest_removed(SnapshotId snapshot, const absl::Status& status);
  CheckpointActions tick(Nanoseconds now);

  /// Oldest first.
  const std::map<SnapshotId, CheckpointManifest>& committed() const { return committed_; }
  /// Of those that the run may go on from: of its course, and read so far wherever it was tried.
  const CheckpointManifest* newest_usable() const;
  const CheckpointManifest* newest() const {
    return committed_.empty() ? nullptr : &committed_.rbegin()->second;
  }
  const std::optional<CheckpointOutcome>& last() const { return last_; }
  /// Training ends there, as is known only now.
  CheckpointActions end_at(Iteration last_iteration);
  /// The version that was asked for and is neither committed nor failed.
  std::optional<Iteration> asked_for() const { return asked_; }
  /// The same, while something of it may be awaited from this node: one of the stores, or nullopt
  /// for a worker.
  std::optional<Iteration> awaited_from(std::optional<ServerIndex> server) const;
  /// Extends the deadlines of parts by `duration`, during which the coordinator could not receive.
  void extend_deadlines(Nanoseconds duration, Nanoseconds now) {
    for (auto& [iteration, making] : epoch_.making)
      making.begun = std::min(making.begun + duration, now);
    asked_since_ = std::min(asked_since_ + duration, now);
  }
  /// The newest version of this epoch that is begun or asked for, and neither committed nor failed.
  std::optional<Iteration> in_the_making() const;
  const CheckpointTotals& totals() const { return totals_; }
  /// Whether this version of this epoch is committed or has failed. One of the last 1024.
  bool is_settled(Iteration iteration) const {
    return iteration <= epoch_.settled_until || epoch_.settled.contains(iteration) ||
           epoch_.given_up.contains(iteration);
  }
  /// Some server has its part of a version that is not settled, or nodes are asked for one.
  bool any_in_the_making() const { return !epoch_.making.empty(); }

 private:
  struct Making {
    std::set<ServerIndex> stored;
    std::int64_t bytes = 0;
    double seconds = 0.0;  ///< of the slowest
    Nanoseconds begun{0};
    bool writing = false;  ///< its manifest
  };
  /// What is known of the present epoch; begin_epoch puts another one in its place.
  struct OfEpoch {
    Epoch id;
    CheckpointManifest frame;
    std::uint64_t iteration_samples = 0;
    Iteration first_iteration = 0;
    Iteration furthest = 0;       ///< all before it have been told of by all workers
    Iteration settled_until = 0;  ///< where the epoch began, or this process took it over
    Iteration lead = 0;        ///< how far ahead of the furthest report the next one is asked for
    std::vector<bool> in_use;  ///< by ServerIndex: has pieces to store
    std::size_t stores_needed = 0;
    std::map<Iteration, Making> making;
    std::set<Iteration> given_up;        ///< the last few
    std::set<Iteration> settled;         ///< committed; the last few
    std::map<Iteration, double> losses;  ///< the last few
  };

  void give_up(Iteration iteration, const std::string& reason, CheckpointActions& actions,
               bool has_failed = true);
  void ask_further(Nanoseconds now, CheckpointActions& actions);
  std::optional<SnapshotId> newest_until(Iteration limit) const;
  std::set<SnapshotId> fallbacks() const;
  void drop_oldest(CheckpointActions& actions);

  const CheckpointCommitOptions options_;
  const std::int64_t keep_;
  Iteration last_iteration_;
  OfEpoch epoch_;
  Iteration told_ = 0;  ///< all before it are in metrics.jsonl
  std::optional<Iteration> asked_;
  std::set<SnapshotId> for_operators_;  ///< whatever has become of them; the last few
  Nanoseconds asked_since_{0};
  bool asked_is_held_ = false;             ///< training stands still: no later one will do
  std::optional<Nanoseconds> asks_again_;  ///< when: its nodes were busy
  std::map<SnapshotId, CheckpointManifest> committed_;
  std::set<SnapshotId> abandoned_;
  std::set<SnapshotId> unreadable_;
  std::optional<SnapshotId> needed_;
  std::map<SnapshotId, CheckpointManifest> writing_, removing_;
  std::optional<CheckpointOutcome> last_;
  CheckpointTotals totals_;
};

}  // namespace poseidon
