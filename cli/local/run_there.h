#pragma once

// The run that `poseidon local --run-dir` finds in its folder, and how the next one begins there:
// goes on with it, or begins anew and keeps its files.
//
// Called by: local.cc, before it starts any process. Calls: coordinator/records, whose files these
// are; job_change.h, which says whether the job is still the same.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint.h"
#include "coordinator/records/state_directory.h"

namespace poseidon {

struct RunThere {
  enum class Kind : std::uint8_t { kNone, kFinished, kUnfinished };
  Kind kind = Kind::kNone;
  std::filesystem::path folder;
  std::vector<CheckpointManifest> checkpoints;  ///< of this run, oldest first
};
/// What is in the run directory `folder`. `state`: of the coordinator that ran it.
RunThere look_for_run(const std::filesystem::path& folder, const StateDirectory& state);

struct WantedRun {
  std::string job_json;
  std::int64_t iterations = 0;
  std::string weights = {};  ///< path of init.weights; "": none
  bool fresh = false;        ///< --fresh
};
struct RunStart {
  /// Go on from it; nullopt: begin anew.
  std::optional<CheckpointManifest> from;
  bool has_other_job = false;  ///< the new job replaces the checkpoint's
  bool sets_aside = false;     ///< the files there go to `earlier` first
};
/// Pure. INVALID_ARGUMENT when the unfinished run cannot go on as the job that is wanted; it names
/// the field and --fresh.
absl::StatusOr<RunStart> choose_start(const RunThere& there, const WantedRun& wanted);

/// Moves all files of the run in `folder`, its checkpoints and logs with them, to `earlier` there,
/// or to `earlier-2` and so on. Returns that folder. A call that is interrupted loses nothing: the
/// next one moves what is left.
absl::StatusOr<std::filesystem::path> set_run_aside(const std::filesystem::path& folder);

}  // namespace poseidon
