#pragma once

// What a job that somebody stops leaves in its run directory: the model as of its newest
// checkpoint, and stopped.json, which names that checkpoint.
//
// Called by: job_host.cc, on the background thread, when a job was stopped; service.cc wires
// leave_stopped_run in. Calls: models/weights/checkpoint_model.h, which reads the servers' stores.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint.h"
#include "common/security/security.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct StoppedRun {
  SnapshotId snapshot;
  std::string job_id;
  std::string job_json;
  Iteration iterations = 0;  ///< that the job wants; 0: its programs know
  /// Where the servers hold the checkpoint; an error names those that are not connected.
  absl::StatusOr<v1::RestoreSource> source = v1::RestoreSource();
};

/// The contents of stopped.json. Pure.
std::string stopped_run_to_json(const StoppedRun& run);

/// Writes stopped.json and then model.safetensors, each whole or not at all. Blocks on the network
/// and the disk; a store that is silent for 10 s ends it. The error says which file is missing.
absl::Status leave_stopped_run(const StoppedRun& run, const std::filesystem::path& run_directory,
                               const std::shared_ptr<Security>& security);

}  // namespace poseidon
