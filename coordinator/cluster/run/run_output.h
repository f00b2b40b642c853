#pragma once

// The files of the job's run: the open run directory, errors of its disk, and its closing. Called
// by: cluster*.cc. Calls: RunFiles, whose writer thread reports through Cluster.
//
// Invariants
//  1. The directory is closed as "over" once, when the job has ended.
//  2. Nodes of a job that is done are told to stop only after its files are closed: if this process
//     dies before that, they can still send the missing lines.
//  3. A job whose last lines could not be written has failed, whatever its training says.
// Used with Cluster's mutex held (cluster_context.h); wait_until_closed releases it while it waits.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/threads/mutex.h"
#include "coordinator/job/job_actions.h"
#include "coordinator/records/run_directory.h"

namespace poseidon {

class RunOutput {
 public:
  /// A job begins or continues in this directory. Returns the earlier job's, to be destroyed
  /// without the mutex: its destructor waits for a thread that takes it.
  std::shared_ptr<RunFiles> begin(std::shared_ptr<RunFiles> directory);
  /// For the destructor of Cluster.
  std::shared_ptr<RunFiles> release() { return std::exchange(directory_, nullptr); }
  /// There is a job.
  RunFiles& files() const { return *directory_; }
  /// For uses that outlive the job.
  const std::shared_ptr<RunFiles>& shared() const { return directory_; }

  // ---- events of the disk ----
  void on_lines_written() { lines_refused_.clear(); }
  /// They are kept and tried again. Returns the text of an alarm.
  std::string on_lines_refused(const absl::Status& status);
  /// The job had ended, and they will not be tried again.
  void on_lines_lost(const absl::Status& status) { lines_lost_ = std::string(status.message()); }
  void on_record_written() { record_refused_.clear(); }
  /// The job's record in the state directory; tried again. Returns the text of an alarm.
  std::string on_record_refused(const absl::Status& status);
  /// The current error of the disk, for the status; "" for none.
  const std::string& refused_text() const {
    return lines_refused_.empty() ? record_refused_ : lines_refused_;
  }
  const std::string& lines_lost() const { return lines_lost_; }

  // ---- the model of a job that was stopped ----
  /// It is being made: nothing is closed before on_model_left.
  void await_model() { model_ = Model::kAwaited; }
  bool has_asked_for_model() const { return model_ != Model::kNone; }
  void on_model_left(const absl::Status& status);
  /// Why there is none; "" where it is there or not wanted.
  const std::string& model_missing() const { return model_missing_; }

  // ---- closing ----
  /// The job has ended; the first call closes, unless a model is being made.
  void close_when_over();
  void stop_after_closing(const SendStop& stop) { stops_.push_back(stop); }
  /// All is written. Send the stops, then call set_closed.
  std::vector<SendStop> take_stops() { return std::exchange(stops_, {}); }
  void set_closed();
  bool is_closed() const { return is_closed_; }
  void wait_until_closed(Mutex& mutex, Nanoseconds timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  enum class Model : std::uint8_t { kNone, kAwaited, kLeft };

  std::shared_ptr<RunFiles> directory_;
  std::string lines_refused_;   ///< why the run's disk does not take lines
  std::string record_refused_;  ///< why the state directory does not take the job's record
  std::string lines_lost_;      ///< why the last lines are not on the disk
  Model model_ = Model::kNone;  ///< of a job that was stopped
  std::string model_missing_;
  bool closing_ = false;
  bool is_closed_ = true;
  std::vector<SendStop> stops_;
  CondVar closed_changed_;
};

}  // namespace poseidon
