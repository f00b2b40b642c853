#include "cli/local/run_folders.h"

#include <unistd.h>

#include <array>
#include <ctime>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/remote/coordinator_client.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "coordinator/records/run_directory.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &local);
  return text.data();
}

/// A new folder for a run that names none, even when another run makes one in the same second.
absl::StatusOr<fs::path> create_default_folder(const std::string& job_name) {
  const fs::path runs = "runs";
  POSEIDON_RETURN_IF_ERROR(create_folder(runs));
  const std::string name = absl::StrCat(file_name(job_name), "-", timestamp());
  fs::path run = runs / name;
  std::error_code error;
  for (int i = 2; !fs::create_directory(run, error); ++i) {
    if (error) {
      return absl::InvalidArgumentError(absl::StrCat("cannot create the folder ", run.string(),
                                                     ": ", error.message(),
                                                     "; choose another with --run-dir"));
    }
    run = runs / absl::StrCat(name, "-", i);
  }
  return run;
}

absl::StatusOr<RunFolders> make_run_folders(const std::string& run_dir,
                                            const std::string& job_name) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  fs::path run = run_dir;
  POSEIDON_RETURN_IF_ERROR(check_run_dir(path_from(here, run).string()));
  if (run_dir.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(run, create_default_folder(job_name));
  }
  run = path_from(here, run);
  POSEIDON_RETURN_IF_ERROR(check_nothing_foreign(run));
  RunFolders folders{.run = run, .logs = run / "logs", .cluster = run / "cluster"};
  for (const fs::path& folder : {folders.run, folders.logs, folders.cluster}) {
    POSEIDON_RETURN_IF_ERROR(create_folder(folder));
  }
  fs::permissions(folders.cluster, fs::perms::owner_all, error);
  absl::StatusOr<Descriptor> lock = lock_file(folders.cluster / "lock");
  if (absl::IsAlreadyExists(lock.status())) return run_in_progress(run);
  if (!lock.ok()) return lock.status();
  folders.lock = *std::move(lock);
  return folders;
}

}  // namespace

absl::Status run_in_progress(const fs::path& run) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--run-dir ", run.string(), ": another run is in progress there; choose another folder"));
}

absl::StatusOr<RunFolders> make_folders(const std::string& run_dir, const std::string& job_name) {
  absl::StatusOr<RunFolders> folders = make_run_folders(run_dir, job_name);
  const absl::Status status = folders.status();
  const bool names_the_flag = absl::StrContains(status.message(), "--run-dir");
  if (absl::IsPermissionDenied(status) || (absl::IsInvalidArgument(status) && !names_the_flag)) {
    return absl::InvalidArgumentError(
        absl::StrCat(status.message(), "; choose another folder with --run-dir"));
  }
  return folders;
}

absl::StatusOr<fs::path> programs_folder(const char* worker) {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* program : {"poseidon-coordinator", "poseidon-server", worker}) {
    if (error || ::access((folder / program).c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no program ", (folder / program).string(),
                       " beside this one; build all of them (cmake --build --preset release)"));
    }
  }
  return folder;
}

}  // namespace poseidon
