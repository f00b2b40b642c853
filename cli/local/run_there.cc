#include "cli/local/run_there.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"
#include "common/job/job_change.h"
#include "common/wire/snapshot.h"
#include "coordinator/records/checkpoint_archive.h"
#include "coordinator/records/durable_job.h"
#include "coordinator/records/earlier_run.h"
#include "coordinator/records/run_directory.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCluster = "cluster";
constexpr const char* kLock = "lock";  // of the run directory, which the caller holds

bool has_lines(const fs::path& metrics) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(metrics, error);
  return !error && size > 0;
}

RunThere::Kind kind_of(const fs::path& folder, bool is_recorded,
                       const absl::StatusOr<std::string>& outcome) {
  using Kind = RunThere::Kind;
  std::error_code ignored;
  const bool has_model = fs::exists(folder / kModelFile, ignored);
  const bool was_stopped = fs::exists(folder / kStoppedFile, ignored);
  if (!has_model && !has_lines(folder / kMetricsFile)) return Kind::kNone;
  if (is_recorded || was_stopped) return Kind::kUnfinished;
  if (outcome.ok()) {
    const auto status = outcome_from_json(*outcome);
    if (status.ok()) return status->state() == "done" ? Kind::kFinished : Kind::kUnfinished;
  }
  return has_model ? Kind::kFinished : Kind::kUnfinished;
}

absl::Status move_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(from, error))) return absl::OkStatus();
  fs::rename(from, to, error);
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot move ", from.string(), " to ", to.string(),
                                                 ": ", error.message(),
                                                 "; choose another folder with --run-dir"));
}

}  // namespace

RunThere look_for_run(const fs::path& folder, const StateDirectory& state) {
  // A record that cannot be read is a job that had not ended either.
  const absl::StatusOr<std::optional<std::string>> record = state.load_job();
  const bool is_recorded = !record.ok() || record->has_value();
  RunThere there{.kind = kind_of(folder, is_recorded, state.load_outcome()),
                 .folder = folder,
                 .checkpoints = {}};
  std::vector<std::string> unreadable;
  for (CheckpointManifest& manifest :
       CheckpointArchive(state.path() / "checkpoints").load(unreadable)) {
    if (is_same_folder(manifest.run_directory, folder)) {
      there.checkpoints.push_back(std::move(manifest));
    }
  }
  return there;
}

absl::StatusOr<RunStart> choose_start(const RunThere& there, const WantedRun& wanted) {
  RunStart start;
  const bool is_unfinished = there.kind == RunThere::Kind::kUnfinished;
  if (wanted.fresh || !is_unfinished || there.checkpoints.empty()) {
    start.sets_aside = there.kind != RunThere::Kind::kNone;
    return start;
  }
  const std::string remedy = absl::StrCat("; --fresh begins anew and moves the files there to ",
                                          (there.folder / kEarlierFolder).string());
  for (const CheckpointManifest& manifest : there.checkpoints) {
    if (manifest.iteration() < wanted.iterations) start.from = manifest;
  }
  if (!start.from) {
    return absl::InvalidArgumentError(absl::StrCat(
        "iterations is ", wanted.iterations, ", but the run in ", there.folder.string(),
        " has done ", there.checkpoints.front().iteration(), " by its oldest checkpoint", remedy));
  }
  const absl::Status may = check_job_change(start.from->job_json, wanted.job_json);
  if (!may.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        there.folder.string(), " holds an unfinished run of another job: ", may.message(), remedy));
  }
  start.has_other_job = start.from->job_json != wanted.job_json;
  return start;
}

absl::StatusOr<fs::path> set_run_aside(const fs::path& folder) {
  std::error_code error;
  fs::path to = folder / kEarlierFolder;
  for (int i = 2; fs::exists(to, error) && !fs::is_empty(to, error); ++i) {
    to = folder / absl::StrCat(kEarlierFolder, "-", i);
  }
  POSEIDON_RETURN_IF_ERROR(create_folder(to / kCluster));
  fs::permissions(to / kCluster, fs::perms::owner_all, error);
  std::vector<fs::path> names(std::begin(kCompanions), std::end(kCompanions));
  names.insert(names.end(), {kCutMetricsFile, kModelFile, "logs"});
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / kCluster, error)) {
    if (entry.path().filename() != kLock) names.push_back(kCluster / entry.path().filename());
  }
  names.emplace_back(kMetricsFile);  // last: without it the others would pass for files of the user
  for (const fs::path& name : names) POSEIDON_RETURN_IF_ERROR(move_file(folder / name, to / name));
  POSEIDON_RETURN_IF_ERROR(create_folder(folder / "logs"));
  return to;
}

}  // namespace poseidon
