#include "coordinator/records/stopped_run.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"
#include "common/job/job.h"
#include "coordinator/records/earlier_run.h"
#include "models/weights/checkpoint_model.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

/// Less than a service manager waits for a coordinator that it stops.
constexpr std::chrono::seconds kStoreTimeout{10};

absl::Status write_model(const StoppedRun& run, const std::filesystem::path& path,
                         const std::shared_ptr<Security>& security) {
  POSEIDON_RETURN_IF_ERROR(run.source.status());
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(run.job_json));
  POSEIDON_RETURN_IF_ERROR(check_servers_have_parameters(job));
  POSEIDON_ASSIGN_OR_RETURN(ModelLayout layout, resolve_layout(job.model, "/"));
  POSEIDON_ASSIGN_OR_RETURN(const RestoreSource source, restore_from_message(*run.source));
  CheckpointModel model(std::move(layout));
  POSEIDON_ASSIGN_OR_RETURN(std::vector<StoreRequest> requests, model.requests(source));
  POSEIDON_RETURN_IF_ERROR(
      fetch_pieces(std::move(requests), {.security = security, .give_up_after = kStoreTimeout}));
  POSEIDON_ASSIGN_OR_RETURN(const EncodedModel encoded, model.encode());
  return write_file_atomically(path, encoded.pieces(), AtomicFile::Link::kReplace);
}

}  // namespace

std::string stopped_run_to_json(const StoppedRun& run) {
  const nlohmann::ordered_json json = {{"job", run.job_id},
                                       {"checkpoint", snapshot_name(run.snapshot)},
                                       {"iteration", snapshot_iteration(run.snapshot)},
                                       {"iterations", run.iterations}};
  return json.dump(2) + "\n";
}

absl::Status leave_stopped_run(const StoppedRun& run, const std::filesystem::path& run_directory,
                               const std::shared_ptr<Security>& security) {
  // First the file that tells whose model the next one is.
  POSEIDON_RETURN_IF_ERROR(write_file_atomically(
      run_directory / kStoppedFile, stopped_run_to_json(run), AtomicFile::Link::kReplace));
  const absl::Status written = write_model(run, run_directory / kModelFile, security);
  if (written.ok()) return written;
  return absl::Status(
      written.code(),
      absl::StrCat(kModelFile, " is not written: ", written.message(),
                   "; `poseidon checkpoint export --checkpoint ", snapshot_name(run.snapshot),
                   "` makes it when the servers are there"));
}

}  // namespace poseidon
