#pragma once

// Converts a job file on the operator's machine to the text that the cluster needs.
//
// Called by: cli/commands/commands.cc and cli/local/local.cc. Calls: common/job/job.h,
// models/net/net.h, coordinator/planning/jobs/job_resolver.h.

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job.h"
#include "models/net/model_layout.h"
#include "models/net/net.h"

namespace poseidon {

/// A job ready to be submitted.
struct PreparedJob {
  JobSpec spec;  ///< paths absolute, network inline
  ModelLayout layout;
  NetSpec net;       ///< resolved; empty for a declared model (common/job/declared_model.h)
  std::string json;  ///< `spec` as text: no other machine needs the job file or the network file
};

/// Reads, checks and completes a job file. Relative paths in it are relative to its own folder.
/// Every error starts with the file's path and names the key.
absl::StatusOr<PreparedJob> prepare_job(const std::filesystem::path& path);
/// The same of a job that workers train by themselves: INVALID_ARGUMENT for a declared model.
absl::StatusOr<PreparedJob> prepare_job_of_workers(const std::filesystem::path& path);

/// Reads the data as a worker will (so only where they are on this machine): INVALID_ARGUMENT, with
/// the job's key, for data that are corrupt, out of the network's range, or of a shape that the
/// network does not take.
absl::Status check_data(const JobSpec& job, const NetSpec& net, std::uint32_t workers);

/// Checks init.weights, if given, as a worker will. Returns a text with the tensors that it has and
/// lacks ("" without weights). INVALID_ARGUMENT, with the key, for a file that is no safetensors
/// file or does not fit the network.
absl::StatusOr<std::string> check_weights(const JobSpec& job, const NetSpec& net);

/// Checks that every file the job reads is there. Only `poseidon local` can ask this: elsewhere the
/// files are on the workers' machines. NOT_FOUND names the key and the path.
absl::Status check_files(const JobSpec& job);

}  // namespace poseidon
