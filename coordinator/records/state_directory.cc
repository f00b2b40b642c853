#include "coordinator/records/state_directory.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/checkpoint/directory_identity.h"
#include "common/files/file_io.h"
#include "common/wire/snapshot.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

/// Far above a job's text and a plan together.
constexpr std::uint64_t kMaxJobRecordBytes = 256 << 20;
constexpr std::uint64_t kMaxOutcomeBytes = 1 << 20;
constexpr std::uint64_t kMaxEpochBytes = 64;
constexpr std::uint64_t kMaxPlansBytes = 1 << 20;
constexpr char kIdentityFile[] = "STATE_IDENTITY";
/// A server may take us so far: the other half of all epochs stays ours.
constexpr std::uint64_t kMostSkipped = kEpochs / 2;

/// What cannot be removed only takes room.
void remove_oldest(const fs::path& folder, std::size_t most) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const fs::file_time_type written = entry->last_write_time(gone);
    if (!gone) files.emplace_back(written, entry->path());
  }
  if (files.size() <= most) return;
  std::ranges::sort(files);
  files.resize(files.size() - most);
  for (const auto& [written, file] : files) fs::remove(file, error);
}

}  // namespace

/// For example a missing folder: not an error of the user who submits a job.
absl::Status StateDirectory::write(const fs::path& file, std::string_view text) {
  const absl::Status status = write_file_atomically(file, text);
  if (status.ok()) return status;
  const bool is_misplaced = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return absl::Status(
      is_misplaced ? absl::StatusCode::kFailedPrecondition : status.code(),
      absl::StrCat("the coordinator cannot keep its own state (--state-dir): ", status.message()));
}

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::open(const fs::path& path) {
  POSEIDON_RETURN_IF_ERROR(create_folder(path));
  absl::StatusOr<Descriptor> fd = lock_file(path / "lock");
  if (absl::IsAlreadyExists(fd.status())) {
    return absl::AlreadyExistsError(
        absl::StrCat("the state directory ", path.string(),
                     " is in use by another coordinator; choose another --state-dir"));
  }
  if (!fd.ok()) return fd.status();
  POSEIDON_ASSIGN_OR_RETURN(
      std::string identity,
      directory_identity(
          path, kIdentityFile,
          "remove the file; servers then keep checkpoints that this coordinator does not know"));
  std::unique_ptr<StateDirectory> state(
      new StateDirectory(path, std::move(identity), *std::move(fd)));
  for (const fs::path& file : {state->job_file(), state->outcome_file(), state->epoch_file()}) {
    remove_leftovers(file);
  }
  // next_epoch reports a file that cannot be read.
  const std::uint64_t last = state->last_epoch().value_or(0);
  {
    const MutexLock lock(state->mutex_);
    state->given_ = last;
  }
  return state;
}

std::uint64_t StateDirectory::last_given() const {
  const MutexLock lock(mutex_);
  return given_;
}

absl::Status StateDirectory::forget_identity() const {
  return remove_durably(path_ / kIdentityFile);
}

absl::Status StateDirectory::store_job(std::string_view text) const {
  return write(job_file(), text);
}

absl::Status StateDirectory::drop_job() const { return remove_durably(job_file()); }

absl::StatusOr<std::optional<std::string>> StateDirectory::load_job() const {
  absl::StatusOr<std::string> text = read_file(job_file(), kMaxJobRecordBytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  return *std::move(text);
}

void StateDirectory::set_job_aside() const {
  std::error_code ignored;  // it is in the way of nothing: the next job replaces it
  fs::rename(job_file(), path_ / "job.json.broken", ignored);
}

absl::Status StateDirectory::store_outcome(std::string_view text) const {
  const absl::Status status = write_file_atomically(outcome_file(), text);
  if (!status.ok()) drop_outcome();
  return status;
}

void StateDirectory::drop_outcome() const {
  std::error_code ignored;  // it is an older job's at worst, and says so
  fs::remove(outcome_file(), ignored);
}

absl::StatusOr<std::string> StateDirectory::load_outcome() const {
  return read_file(outcome_file(), kMaxOutcomeBytes);
}

absl::StatusOr<std::string> StateDirectory::load_plans(const std::string& key) const {
  return read_file(plans_file(key), kMaxPlansBytes);
}

absl::Status StateDirectory::store_plans(const std::string& key, std::string_view text) const {
  const fs::path file = plans_file(key);
  POSEIDON_RETURN_IF_ERROR(create_folder(file.parent_path()));
  remove_leftovers(file);
  POSEIDON_RETURN_IF_ERROR(write(file, text));
  remove_oldest(file.parent_path(), kMostPlanFiles);
  return absl::OkStatus();
}

bool StateDirectory::skip_epochs(std::uint64_t up_to) {
  const MutexLock lock(mutex_);
  if (up_to > std::max(kMostSkipped, given_)) return false;
  skipped_ = std::max(skipped_, up_to);
  return true;
}

bool StateDirectory::is_new() const {
  const absl::StatusOr<std::uint64_t> last = last_epoch();
  return last.ok() && *last == 0;
}

absl::StatusOr<std::uint64_t> StateDirectory::last_epoch() const {
  const fs::path file = epoch_file();
  const absl::StatusOr<std::string> text = read_file(file, kMaxEpochBytes);
  if (absl::IsNotFound(text.status())) return 0;
  std::uint64_t last = 0;
  if (!text.ok()) return absl::DataLossError(text.status().message());
  if (!absl::SimpleAtoi(*text, &last)) {
    return absl::DataLossError(absl::StrCat(file.string(),
                                            " holds no number; write one greater than the epoch "
                                            "of every earlier run into it"));
  }
  return last;
}

absl::StatusOr<std::uint64_t> StateDirectory::next_epoch() {
  const MutexLock giving(giving_);
  const fs::path file = epoch_file();
  POSEIDON_ASSIGN_OR_RETURN(std::uint64_t last, last_epoch());
  {
    const MutexLock lock(mutex_);
    last = std::max(last, skipped_);
  }
  if (last + 1 >= kEpochs) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file.string(), ": epoch ", last, " was the last possible one"));
  }
  POSEIDON_RETURN_IF_ERROR(write(file, absl::StrCat(last + 1, "\n")));
  const MutexLock lock(mutex_);
  given_ = last + 1;
  return last + 1;
}

}  // namespace poseidon
