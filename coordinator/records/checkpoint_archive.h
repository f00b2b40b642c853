#pragma once

// The manifests of committed checkpoints, one small file each under the coordinator's state
// directory: checkpoints/JOB_ID/EPOCH-ITERATION.json. A checkpoint is committed once its file
// exists.
//
// Called by: coordinator/cluster/cluster.h, when coordinator/job/checkpoints/checkpoint_commit.h
// decides. Calls: the disk.
//
// Threads: write and remove may be called on any; they run, and call back, as tasks of `disk`.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/transport/background.h"

namespace poseidon {

class CheckpointArchive {
 public:
  using Done = std::function<void(const absl::Status&)>;

  explicit CheckpointArchive(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// Creates the folder in a new state directory, or in one whose folder `load` could read.
  /// Otherwise a missing folder or marker is an error of `load` and `write`.
  absl::Status create() const;

  /// All readable manifests, oldest first. Other and unreadable files are left in place and
  /// described in `unreadable` for the operator. So is an empty folder, which may mean that a disk
  /// is not mounted. Blocks on the disk.
  std::vector<CheckpointManifest> load(std::vector<std::string>& unreadable) const;

  /// The file appears whole or not at all.
  void write(Background& disk, CheckpointManifest manifest, Done done) const;
  void remove(Background& disk, const CheckpointManifest& manifest, Done done) const;

 private:
  std::filesystem::path path_of(const CheckpointManifest& manifest) const;

  const std::filesystem::path directory_;
};

}  // namespace poseidon
