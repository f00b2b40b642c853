#pragma once

// The folders of a run whose processes this machine starts, and the programs for them.
//
// Called by: local.cc, program_run.cc, local_cluster.h. Calls: the file system.

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace poseidon {

struct RunFolders {
  std::filesystem::path run;
  std::filesystem::path logs;
  std::filesystem::path cluster;  ///< the processes' own files; private
  Descriptor lock;                ///< of the run directory
};

/// Makes them and takes the lock. `run_dir`: --run-dir; "" for a new folder in ./runs with `name`
/// in its name. INVALID_ARGUMENT: the folder cannot be used, or another process has its lock.
absl::StatusOr<RunFolders> make_folders(const std::string& run_dir, const std::string& name);

/// Another process holds the lock of this run directory.
absl::Status run_in_progress(const std::filesystem::path& run);

/// The folder of this very program. The daemons lie beside it, and so does `worker`: a file that
/// must be there and be executable.
absl::StatusOr<std::filesystem::path> programs_folder(const char* worker);

}  // namespace poseidon
