#include "coordinator/records/checkpoint_archive.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

/// Marks that this is the folder itself and not the empty mount point of its disk.
constexpr const char* kMarker = "CHECKPOINTS";
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{512} << 20;

std::string lacks_marker(const fs::path& directory) {
  return absl::StrCat(directory.string(), ": there is no ", kMarker,
                      " in it: is its disk mounted? If it is, put an empty file of that name "
                      "there");
}

absl::Status write_manifest(const fs::path& directory, const fs::path& path,
                            const CheckpointManifest& manifest) {
  std::error_code error;
  if (!fs::exists(directory / kMarker, error)) {
    return absl::UnavailableError(lacks_marker(directory));
  }
  POSEIDON_RETURN_IF_ERROR(create_folder(path.parent_path()));
  POSEIDON_RETURN_IF_ERROR(sync_folder_of(path.parent_path()));
  absl::Status status = write_file_atomically(path, manifest_to_json(manifest));
  // The file may exist nevertheless, but servers drop the parts of failed checkpoints.
  if (!status.ok()) status.Update(remove_durably(path));
  return status;
}

absl::Status remove_manifest(const fs::path& path) {
  // A manifest that reappears would name parts that servers have dropped.
  const absl::Status status = remove_durably(path);
  std::error_code is_not_empty;
  fs::remove(path.parent_path(), is_not_empty);  // the job's folder, with its last one
  return status.ok() ? status : absl::UnavailableError(status.message());
}

absl::StatusOr<CheckpointManifest> read_manifest(const fs::path& path) {
  POSEIDON_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxManifestBytes));
  POSEIDON_ASSIGN_OR_RETURN(CheckpointManifest manifest, manifest_from_json(text, path.string()));
  if (snapshot_name(manifest.snapshot) != path.stem().string()) {
    return absl::DataLossError(absl::StrCat(path.string(), ": it describes checkpoint ",
                                            snapshot_name(manifest.snapshot)));
  }
  return manifest;
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder,
                                            std::vector<std::string>& unreadable) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(*at);
  }
  if (error) unreadable.push_back(absl::StrCat(folder.string(), ": ", error.message()));
  return entries;
}

constexpr const char* kTemporary = ".tmp-";  ///< AtomicFile's

/// What a process that was killed has left of files that it was about to write.
void remove_leftovers_in(const fs::path& folder) {
  std::vector<std::string> ignored;
  for (const fs::directory_entry& entry : entries_of(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::size_t end = name.find(kTemporary);
    if (end != std::string::npos) remove_leftovers(folder / name.substr(0, end));
  }
}

}  // namespace

absl::Status CheckpointArchive::create() const {
  POSEIDON_RETURN_IF_ERROR(create_folder(directory_));
  remove_leftovers_in(directory_);
  std::vector<std::string> ignored;
  for (const fs::directory_entry& job : entries_of(directory_, ignored)) {
    std::error_code error;
    if (!job.is_directory(error)) continue;
    remove_leftovers_in(job.path());
    fs::remove(job.path(), error);  // where it has no manifest
  }
  return write_file_atomically(directory_ / kMarker,
                               "The manifests of this coordinator's checkpoints.\n");
}

fs::path CheckpointArchive::path_of(const CheckpointManifest& manifest) const {
  return directory_ / manifest.job_id / absl::StrCat(snapshot_name(manifest.snapshot), ".json");
}

std::vector<CheckpointManifest> CheckpointArchive::load(
    std::vector<std::string>& unreadable) const {
  std::vector<CheckpointManifest> manifests;
  bool is_there = false;  // it reports its own errors
  const std::size_t errors = unreadable.size();
  const std::vector<fs::directory_entry> entries = entries_of(directory_, unreadable);
  for (const fs::directory_entry& job : entries) {
    const std::string name = job.path().filename().string();
    is_there = is_there || name == kMarker;
    if (name == kMarker || name == "lost+found" || name.starts_with('.')) continue;
    if (name.starts_with(absl::StrCat(kMarker, kTemporary))) continue;  // create() was killed
    is_there = true;
    std::error_code unknown;
    if (!job.is_directory(unknown)) {
      unreadable.push_back(absl::StrCat(job.path().string(), ": this is no job's folder"));
      continue;
    }
    for (const fs::directory_entry& file : entries_of(job.path(), unreadable)) {
      if (file.path().extension() != ".json") continue;
      absl::StatusOr<CheckpointManifest> manifest = read_manifest(file.path());
      if (manifest.ok()) {
        manifests.push_back(*std::move(manifest));
      } else {
        unreadable.emplace_back(manifest.status().message());
      }
    }
  }
  if (!is_there && unreadable.size() == errors) {
    unreadable.push_back(lacks_marker(directory_));
  }
  std::sort(manifests.begin(), manifests.end(),
            [](const CheckpointManifest& a, const CheckpointManifest& b) {
              return a.snapshot < b.snapshot;
            });
  return manifests;
}

void CheckpointArchive::write(Background& disk, CheckpointManifest manifest, Done done) const {
  const std::filesystem::path path = path_of(manifest);
  disk.enqueue([directory = directory_, path, manifest = std::move(manifest),
                done = std::move(done)] { done(write_manifest(directory, path, manifest)); });
}

void CheckpointArchive::remove(Background& disk, const CheckpointManifest& manifest,
                               Done done) const {
  disk.enqueue([path = path_of(manifest), done = std::move(done)] { done(remove_manifest(path)); });
}

}  // namespace poseidon
