#pragma once

// The processes of `poseidon local` and `poseidon run`: coordinator, servers, and workers or
// programs. A child that dies is started again. No child is ever left behind: the destructor stops
// them, ChildProcess's sends SIGKILL as a last resort, and --exit-with-parent ends them if this
// process is killed.
//
// Called by: local.cc, program_run.cc. Calls: child_process.h, run_there.h. One thread only.

#include <signal.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands/commands.h"
#include "cli/local/child_process.h"
#include "cli/local/run_folders.h"
#include "cli/local/run_there.h"
#include "common/base/clock.h"
#include "coordinator/records/state_directory.h"

namespace poseidon {

inline constexpr const char* kCoordinatorState = "coordinator";  ///< among the cluster's folders
inline constexpr std::int64_t kMaxProcesses = 256;  ///< of one kind; more is a typing error

/// How long the last checkpoint of a job may take that a signal stops.
inline constexpr std::uint32_t kStopCheckpointS = 60;

/// SIGINT, SIGTERM and SIGHUP, blocked in every thread and waited for, and SIGCHLD so that a
/// child's end is noticed at once. Create before any thread.
class Signals {
 public:
  Signals();

  /// Waits at most `time`; returns the signal's number, or nullopt.
  std::optional<int> wait(Milliseconds time) const;

 private:
  sigset_t set_{};
};

class LocalCluster {
 public:
  LocalCluster(RunFolders folders, std::filesystem::path programs, const Signals& signals,
               const LocalOptions& options)
      : folders_(std::move(folders)),
        programs_(std::move(programs)),
        signals_(signals),
        device_(options.device),
        metrics_(options.metrics) {}
  ~LocalCluster() { stop(); }
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  /// Looks at the run that is in the run directory: goes on with it, or sets its files aside. Call
  /// it before any process is started.
  absl::StatusOr<RunStart> settle_earlier_run(const WantedRun& wanted);
  /// Sets aside the files of any run that is in the run directory. Likewise.
  absl::Status set_earlier_run_aside();
  /// Server processes that an earlier run had here: their data are parts of its checkpoints.
  std::int64_t earlier_servers() const;

  /// Starts the coordinator and returns the address it listens on.
  absl::StatusOr<std::string> start_coordinator();
  absl::Status start_servers(const std::string& coordinator, std::int64_t count);
  absl::Status start_workers(const std::string& coordinator, std::int64_t count);
  /// Starts a program that ends by itself. One that a signal ends is started again; one that ends
  /// with an exit status other than 0 ends the run (pause).
  absl::Status start_program(ChildOptions program);
  /// All programs have ended with exit status 0.
  bool all_programs_done();

  /// Waits so long, and starts children that have died again; an error when one dies too often, or
  /// we were asked to stop.
  absl::Status pause(Milliseconds time);

  /// The signal that asked us to stop; 0: none did.
  int stop_signal() const { return stop_signal_; }

  /// Idempotent.
  void stop();
  /// Stops it. Returns `status` for people: with the exit code of the signal that asked us to stop,
  /// or with the place of the logs.
  absl::Status end(absl::Status status);

 private:
  absl::Status start(const std::string& name, const char* program,
                     std::vector<std::string> arguments);
  absl::StatusOr<std::unique_ptr<StateDirectory>> open_state();
  absl::Status check_children();
  absl::Status revive(ChildProcess& child, int wait_status);
  absl::Status end_of_program(ChildProcess& child, int wait_status);
  bool is_program(const ChildProcess& child) const;

  const RunFolders folders_;
  const std::filesystem::path programs_;
  const Signals& signals_;
  const std::string device_;  ///< of every worker
  const bool metrics_;
  const SystemClock clock_;
  std::string coordinator_;  ///< where it listens
  std::vector<ChildProcess> children_;
  std::set<std::string> program_names_;                    ///< of children that end by themselves
  std::map<std::string, std::deque<Nanoseconds>> deaths_;  ///< by name; in the window
  int stop_signal_ = 0;
};

}  // namespace poseidon
