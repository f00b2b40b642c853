#include "coordinator/cluster/checkpoint_calls.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/checkpoint/restore_source.h"
#include "common/job/job_change.h"
#include "common/threads/mutex.h"
#include "coordinator/members/admission.h"

namespace poseidon {
namespace {

void fill(const CheckpointManifest& manifest, v1::CheckpointInfo& out) {
  out.set_id(snapshot_name(manifest.snapshot));
  out.set_job(manifest.job_name);
  out.set_job_id(manifest.job_id);
  out.set_iteration(static_cast<std::uint64_t>(manifest.iteration()));
  out.set_committed(true);
  out.set_bytes(static_cast<std::uint64_t>(manifest.bytes));
  out.set_time_unix_s(manifest.time_unix_s);
  if (manifest.loss) out.set_loss(*manifest.loss);
  out.set_workers(manifest.workers);
  out.set_run_directory(manifest.run_directory);
}

/// Of a job's checkpoint that is not committed.
void fill(const JobRun& job, SnapshotId snapshot, const std::string& reason,
          v1::CheckpointInfo& out) {
  const JobDescription& description = job.description();
  out.set_id(snapshot_name(snapshot));
  out.set_job(description.name);
  out.set_job_id(description.id);
  out.set_iteration(static_cast<std::uint64_t>(snapshot_iteration(snapshot)));
  out.set_workers(static_cast<std::uint32_t>(job.view().roster.workers.size()));
  out.set_run_directory(description.run_directory);
  out.set_reason(reason);
}

}  // namespace

absl::StatusOr<v1::ListCheckpointsResponse> CheckpointCalls::list(
    const v1::ListCheckpointsRequest& /*request*/) {
  v1::ListCheckpointsResponse out;
  MutexLock lock(context_.mutex);
  const auto is_asked = [this](SnapshotId snapshot) {
    return host_.job() != nullptr && host_.job()->view().checkpoints.is_asked(snapshot);
  };
  for (const auto& [snapshot, manifest] : checkpoints_.catalog().all()) {
    fill(manifest, *out.add_committed());
    out.mutable_committed()->rbegin()->set_asked(is_asked(snapshot));
  }
  for (const std::string& file : checkpoints_.catalog().unread()) out.add_unread(one_line(file));
  if (!host_.job()) return out;
  const CheckpointCommit& checkpoints = host_.job()->view().checkpoints;
  if (const auto& last = checkpoints.last(); last && !last->committed) {
    fill(*host_.job(), last->snapshot, last->reason, *out.mutable_failed());
    out.mutable_failed()->set_asked(is_asked(last->snapshot));
  }
  // Who asked for one wants to see that one.
  const Epoch epoch = host_.job()->epoch();
  std::optional<Iteration> making = checkpoints.asked_for();
  if (!making || !is_asked(snapshot_id(epoch, *making))) making = checkpoints.in_the_making();
  if (making && !host_.job()->ended()) {
    const SnapshotId snapshot = snapshot_id(epoch, *making);
    fill(*host_.job(), snapshot, "in the making", *out.mutable_making());
    out.mutable_making()->set_asked(is_asked(snapshot));
  }
  out.set_job_id(host_.job()->description().id);
  out.set_epoch(host_.job()->epoch().value());
  out.set_ended(host_.job()->ended());
  out.set_state(host_.text());
  return out;
}

absl::StatusOr<v1::RequestCheckpointResponse> CheckpointCalls::request(
    const v1::RequestCheckpointRequest& /*request*/) {
  MutexLock lock(context_.mutex);
  if (!host_.job()) {
    return absl::FailedPreconditionError(
        "no job was submitted since the coordinator started: there is nothing to save");
  }
  POSEIDON_ASSIGN_OR_RETURN(const JobActions actions, host_.job()->save_checkpoint(context_.now()));
  host_.apply(actions);
  const std::optional<Iteration> asked = host_.job()->view().saving.asked_for();
  if (!asked) {
    return absl::UnavailableError(
        absl::StrCat(host_.text(), ": the checkpoint could not be requested; try again"));
  }
  v1::RequestCheckpointResponse out;
  out.set_job_id(host_.job()->description().id);
  out.set_epoch(host_.job()->epoch().value());
  out.set_iteration(static_cast<std::uint64_t>(*asked));
  return out;
}

absl::StatusOr<v1::LocateCheckpointResponse> CheckpointCalls::locate(
    const v1::LocateCheckpointRequest& request) {
  MutexLock lock(context_.mutex);
  POSEIDON_ASSIGN_OR_RETURN(const CheckpointManifest* manifest,
                            checkpoints_.catalog().find(request.id()));
  v1::LocateCheckpointResponse out;
  out.set_id(snapshot_name(manifest->snapshot));
  if (const std::string doubt = checkpoints_.doubt_about(request.id()); !doubt.empty())
    out.add_warnings(doubt);
  out.set_hold_ms(static_cast<std::uint32_t>(
      std::chrono::duration_cast<Milliseconds>(kCheckpointHold).count()));
  if (!request.hold_only()) {
    const std::vector<NodeInfo> nodes = membership_.nodes();
    const std::string missing = missing_stores(*manifest, [&nodes](const std::string& identity) {
      return !store_address(nodes, identity).empty();
    });
    if (!missing.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(missing, ", is not connected: start it again"));
    }
    std::vector<std::string> addresses;
    for (const std::string& store : manifest->stores) {
      addresses.push_back(store_address(nodes, store));
    }
    *out.mutable_source() = restore_to_message(*manifest, addresses);
    out.set_job_json(manifest->job_json);
  }
  checkpoints_.hold(manifest->snapshot);
  return out;
}

absl::StatusOr<v1::RemoveCheckpointsResponse> CheckpointCalls::remove(
    const v1::RemoveCheckpointsRequest& request) {
  if (request.ids().empty() == request.job_id().empty()) {
    return absl::InvalidArgumentError("give either ids of checkpoints or the id of a job");
  }
  MutexLock lock(context_.mutex);
  if (context_.shutting_down) return absl::UnavailableError("the coordinator is stopping");
  std::map<SnapshotId, CheckpointManifest> chosen;
  for (const std::string& id : request.ids()) {
    if (id.empty()) return absl::InvalidArgumentError("an id of a checkpoint is empty");
    POSEIDON_ASSIGN_OR_RETURN(const CheckpointManifest* manifest, checkpoints_.catalog().find(id));
    chosen.emplace(manifest->snapshot, *manifest);
  }
  if (!request.job_id().empty()) {
    std::vector<CheckpointManifest> of_job = checkpoints_.catalog().of_job(request.job_id());
    if (of_job.empty()) {
      return absl::NotFoundError(
          absl::StrCat("there is no checkpoint of a job ", printable(request.job_id()),
                       " (`poseidon checkpoint list` shows all, with the ids of their jobs)"));
    }
    of_job.resize(of_job.size() - std::min<std::size_t>(of_job.size(), request.keep_newest()));
    for (CheckpointManifest& manifest : of_job) {
      chosen.emplace(manifest.snapshot, std::move(manifest));
    }
  }
  if (submissions_.is_under_way()) {
    return absl::FailedPreconditionError(
        "a job is being submitted at this moment, and may begin at a checkpoint: try again");
  }
  for (const auto& [snapshot, manifest] : chosen) {
    if (!host_.is_active() || (!host_.is_job(manifest.job_id) && host_.source() != snapshot))
      continue;
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", snapshot_name(snapshot), " is needed: ", host_.text(),
                     ", and removes its own as checkpoint.keep says; nothing is removed"));
  }
  v1::RemoveCheckpointsResponse out;
  for (const auto& [snapshot, manifest] : chosen) {
    const std::string name = snapshot_name(snapshot);
    checkpoints_.remove(manifest);
    const bool is_held = checkpoints_.catalog().all().contains(snapshot);
    (is_held ? out.add_held() : out.add_removed())->assign(name);
    watch_.note(EventKind::kCheckpoint,
                absl::StrCat("an operator removes checkpoint ", name, " of job ", manifest.job_id));
  }
  return out;
}

absl::StatusOr<v1::SubmitResponse> CheckpointCalls::restore(
    const v1::RestoreCheckpointRequest& request) {
  v1::SubmitRequest submission;
  SnapshotId source;
  std::string doubt;
  {
    MutexLock lock(context_.mutex);
    POSEIDON_ASSIGN_OR_RETURN(const CheckpointManifest* manifest,
                              checkpoints_.catalog().find(request.id()));
    source = manifest->snapshot;
    doubt = checkpoints_.doubt_about(request.id());
    submission.set_job_json(manifest->job_json);
    if (!request.job_json().empty()) {
      const absl::Status may = check_job_change(manifest->job_json, request.job_json());
      if (!may.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--job: ", may.message(), "; checkpoint ",
                                                       snapshot_name(source), " is of job ",
                                                       manifest->job_id));
      }
      submission.set_job_json(request.job_json());
    }
    submission.set_run_directory(request.run_directory().empty() ? manifest->run_directory
                                                                 : request.run_directory());
    submission.set_workers(request.workers() > 0 ? request.workers() : manifest->workers);
    submission.set_servers(request.servers());
  }
  absl::StatusOr<v1::SubmitResponse> response = submissions_.submit(submission, source);
  if (response.ok() && !doubt.empty()) response->add_warnings(doubt);
  return response;
}

}  // namespace poseidon
