#pragma once

// The manifests of committed checkpoints, one small file each under the coordinator's state
// directory: checkpoints/JOB_ID/EPOCH-ITERATION.json. A checkpoint is committed from the moment
// that its file is there.
//
// Before: coordinator/job/checkpoint_commit.h decides. After: the disk.
//
// Threads: write and remove from any; they work, and call back, as tasks of `disk`.

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

  /// Of a state directory that is new, or whose folder `load` could read. Otherwise a folder that
  /// is missing, or its marker, is an error, and `load` and `write` say so.
  absl::Status create() const;

  /// All manifests that can be read, oldest first. What is none, or cannot be read, is left where
  /// it is and described in `unreadable`: it is no checkpoint, but somebody may want to look. So is
  /// a folder with nothing in it, as where a disk is not mounted. Blocks on the disk.
  std::vector<CheckpointManifest> load(std::vector<std::string>& unreadable) const;

  /// The file appears whole or not at all.
  void write(Background& disk, CheckpointManifest manifest, Done done) const;
  void remove(Background& disk, const CheckpointManifest& manifest, Done done) const;

 private:
  std::filesystem::path path_of(const CheckpointManifest& manifest) const;

  const std::filesystem::path directory_;
};

}  // namespace poseidon
