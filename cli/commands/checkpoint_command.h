#pragma once

// The subcommands of `poseidon checkpoint`. Errors as in commands.h.
//
// Called by: cli/main.cc. Calls: cli/remote/coordinator_client.h,
// models/weights/checkpoint_model.h, cli/terminal/checkpoint_format.h.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/outcome.h"

namespace poseidon {

struct CheckpointListOptions : CoordinatorAccess {
  bool json = false;
};
absl::Status run_checkpoint_list(const CheckpointListOptions& options);

struct CheckpointSaveOptions : CoordinatorAccess {
  std::int64_t timeout_s = 600;
};
/// Prints the id of the checkpoint once it is committed.
absl::Status run_checkpoint_save(const CheckpointSaveOptions& options);

struct CheckpointRemoveOptions : CoordinatorAccess {
  std::vector<std::string> checkpoints;  ///< ids, or
  std::string job;                       ///< of this job: keep only the newest `keep`
  std::int64_t keep = 0;
};
/// Removes checkpoints of ended jobs. Prints the ids.
absl::Status run_checkpoint_remove(const CheckpointRemoveOptions& options);

struct CheckpointExportOptions : CoordinatorAccess {
  std::string to;
  std::string checkpoint;  ///< "": the newest
};
absl::Status run_checkpoint_export(const CheckpointExportOptions& options);

struct CheckpointRestoreOptions : CoordinatorAccess {
  std::string checkpoint;    ///< "": the newest
  std::string job;           ///< job file that the checkpoint's job becomes; "": as it was
  std::string run_dir;       ///< on the coordinator's machine; "": the run's own
  std::int64_t workers = 0;  ///< 0: as many as trained the checkpoint
  std::int64_t servers = 0;  ///< 0: all there are
  FollowOptions follow;
};
absl::Status run_checkpoint_restore(const CheckpointRestoreOptions& options);

}  // namespace poseidon
