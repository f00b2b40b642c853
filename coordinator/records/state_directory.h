#pragma once

// The coordinator's own directory (--state-dir): epochs, the current job, the last job's outcome,
// plans of earlier jobs, its identity. Thin: decides nothing.
//
// Called by: coordinator/cluster/cluster.h, which decides what to store; a restarted coordinator
// reads its state here. Calls: the disk.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/threads/mutex.h"

namespace poseidon {

/// What the coordinator keeps across restarts. One coordinator at a time (a lock file says so).
class StateDirectory {
 public:
  /// Creates `path` where missing. ALREADY_EXISTS when another coordinator uses it.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> open(const std::filesystem::path& path);

  /// Whether no epoch was ever given. Call it before the first next_epoch.
  bool is_new() const;
  /// Greater than every epoch given before, also by earlier processes; on disk before it is given.
  /// Any thread.
  absl::StatusOr<std::uint64_t> next_epoch();
  /// Makes later epochs greater than this one, of which a server has checkpoints from a coordinator
  /// with another state directory. Returns false and does nothing when that would use up more than
  /// half of all epochs, which no server may cause. Any thread.
  bool skip_epochs(std::uint64_t up_to);

  /// The last epoch given; 0: none or unknown. Any thread.
  std::uint64_t last_given() const;

  /// The identity of this directory, wherever it is: 32 hexadecimal digits.
  const std::string& identity() const { return identity_; }
  /// Removes the identity; the next process creates another one. Idempotent.
  absl::Status forget_identity() const;

  /// The job in progress (coordinator/records/durable_job.h), so that another process can continue
  /// it.
  std::filesystem::path job_file() const { return path_ / "job.json"; }
  absl::Status store_job(std::string_view text) const;
  /// Idempotent.
  absl::Status drop_job() const;
  /// nullopt when there is none.
  absl::StatusOr<std::optional<std::string>> load_job() const;
  /// Renames an unusable record to job.json.broken, for the operator.
  void set_job_aside() const;

  /// The outcome of the last job, for clients of the next process (last_job.json).
  std::filesystem::path outcome_file() const { return path_ / "last_job.json"; }
  /// Removes an older outcome even if writing fails.
  absl::Status store_outcome(std::string_view text) const;
  /// Removes the outcome, because there is a newer job.
  void drop_outcome() const;
  /// NOT_FOUND when there is none.
  absl::StatusOr<std::string> load_outcome() const;

  /// What is kept of the plans of earlier jobs (coordinator/job/plan_memory.h), a file for each
  /// key, which is of hexadecimal digits. NOT_FOUND where there is none. Any thread.
  absl::StatusOr<std::string> load_plans(const std::string& key) const;
  /// Beyond kMostPlanFiles those go that were not written for the longest time. One thread at a
  /// time.
  absl::Status store_plans(const std::string& key, std::string_view text) const;
  static constexpr std::size_t kMostPlanFiles = 200;
  std::filesystem::path plans_file(const std::string& key) const {
    return path_ / "plans" / (key + ".json");
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  StateDirectory(std::filesystem::path path, std::string identity, Descriptor lock_fd)
      : path_(std::move(path)), identity_(std::move(identity)), lock_fd_(std::move(lock_fd)) {}
  std::filesystem::path epoch_file() const { return path_ / "epoch"; }
  absl::StatusOr<std::uint64_t> last_epoch() const;
  static absl::Status write(const std::filesystem::path& file, std::string_view text);

  const std::filesystem::path path_;
  const std::string identity_;
  const Descriptor lock_fd_;
  Mutex giving_;  ///< held while an epoch is given, which takes the disk's time
  mutable Mutex mutex_;
  std::uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0, skipped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace poseidon
