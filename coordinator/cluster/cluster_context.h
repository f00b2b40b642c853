#pragma once

// Shared by all parts of Cluster: its options, clock, disk, state directory, and its one mutex.
// Called by: every file of this folder. Calls: nothing.
//
// Lock contract of the folder: every part belongs to one Cluster and is used only with
// ClusterContext::mutex held, unless a method says otherwise. A part may queue work on
// ClusterContext::disk.background; such work runs without the mutex and takes it itself.

#include <filesystem>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/threads/mutex.h"
#include "common/transport/background.h"
#include "coordinator/job/job_run.h"
#include "coordinator/members/membership.h"
#include "coordinator/records/run_directory.h"
#include "coordinator/records/state_directory.h"
#include "coordinator/records/stopped_run.h"

namespace poseidon {

/// What shutdown does with the job: ends it, or leaves it to its nodes, which train on, and to the
/// next process with this state directory.
enum class OnShutdown { kEndJob, kKeepJob };

struct ClusterOptions {
  MembershipOptions membership;
  JobRunOptions job;
  /// Run directories lie in this folder; "": `runs` in the state directory. Whoever may submit a
  /// job may have files written here, with the coordinator's rights, and nowhere else.
  std::filesystem::path run_root;
  std::size_t max_job_bytes = 4 << 20;  ///< of a job's text, its network inline
  OnShutdown on_shutdown = OnShutdown::kEndJob;
  /// How long shutdown waits for a checkpoint of the job that trains; 0: takes none.
  Nanoseconds shutdown_checkpoint_timeout = std::chrono::seconds(10);
  /// The longest time that shutdown still answers status clients that do not know yet that their
  /// job has ended. Only clients that polled within this time count.
  Nanoseconds last_words{0};
};

/// How the disk is written to, besides the state directory; simulations have their own.
struct ClusterDisk {
  std::unique_ptr<Background> background = std::make_unique<BackgroundThread>();
  std::function<absl::StatusOr<std::unique_ptr<RunFiles>>(
      const std::filesystem::path& path, RunDirectory::Begin begin, RunDirectory::Events events)>
      open = RunDirectory::open;
  std::function<absl::StatusOr<std::unique_ptr<RunFiles>>(
      const std::filesystem::path& path, RunDirectory::Events events, MetricsProgress& progress)>
      reopen = RunDirectory::reopen;
  /// Leaves the model of a job that was stopped in its run directory; runs on `background`. Null:
  /// no model is left.
  std::function<absl::Status(const StoppedRun& run, const std::filesystem::path& run_directory)>
      leave_stopped_run;
};

/// Owned by Cluster; outlives all parts. The constants may be read without the mutex.
struct ClusterContext {
  const ClusterOptions options;
  const std::unique_ptr<StateDirectory> state;
  const Clock* const clock;
  ClusterDisk disk;  ///< its background thread runs work that must not block under the mutex
  Mutex mutex;
  // Guarded by mutex.
  bool shutting_down = false;  ///< Cluster::shutdown was called: no new streams and jobs
  bool ending = false;         ///< in Cluster's destructor: nothing new begins

  Nanoseconds now() const { return clock->now(); }
};

}  // namespace poseidon
