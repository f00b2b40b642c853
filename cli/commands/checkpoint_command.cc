#include "cli/commands/checkpoint_command.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands/job_file.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/at_signal.h"
#include "cli/terminal/checkpoint_format.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/job/job.h"
#include "models/weights/checkpoint_model.h"

namespace poseidon {
namespace {

constexpr Milliseconds kRestoreTimeout{30000};
constexpr Milliseconds kPollInterval{50};
/// How long the coordinator may be silent while a checkpoint is awaited.
constexpr Milliseconds kSilenceLimit{15000};

/// A client whose coordinator answers.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> reach(const CoordinatorAccess& access) {
  POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorClient> client,
                            CoordinatorClient::make(access));
  POSEIDON_RETURN_IF_ERROR(client->wait_for_coordinator(access.connect_timeout).status());
  return client;
}

}  // namespace

absl::Status run_checkpoint_list(const CheckpointListOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, reach(options));
  POSEIDON_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse list,
                            client->list_checkpoints(kCallTimeout));
  for (const std::string& file : list.unread()) {
    print_warnings({absl::StrCat("cannot be read as a checkpoint: ", file)});
  }
  if (options.json) {
    // Names come from other machines: invalid UTF-8 in them is replaced instead of throwing.
    write_stdout(
        checkpoints_to_json(list).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
        "\n");
  } else {
    write_stdout(checkpoints_to_text(list));
  }
  return absl::OkStatus();
}

absl::Status run_checkpoint_save(const CheckpointSaveOptions& options) {
  const SystemClock clock;
  const Nanoseconds end = clock.now() + std::chrono::seconds(options.timeout_s);
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, reach(options));
  POSEIDON_ASSIGN_OR_RETURN(const v1::RequestCheckpointResponse asked,
                            client->request_checkpoint(kCallTimeout));
  Nanoseconds heard = clock.now();
  while (true) {
    const absl::StatusOr<v1::ListCheckpointsResponse> list = client->list_checkpoints(kCallTimeout);
    const Nanoseconds now = clock.now();
    if (list.ok()) {
      heard = now;
      POSEIDON_ASSIGN_OR_RETURN(const std::optional<std::string> saved, save_outcome(asked, *list));
      if (saved) {
        write_stdout(*saved + "\n");
        return absl::OkStatus();
      }
    } else if (now - heard > kSilenceLimit) {
      return list.status();
    }
    if (now >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the checkpoint at iteration ", asked.iteration(), " of job ", asked.job_id(),
          " was not committed within ", options.timeout_s,
          " s; it may still be committed: see 'poseidon checkpoint list ", client->options(), "'"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

absl::Status run_checkpoint_remove(const CheckpointRemoveOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, reach(options));
  v1::RemoveCheckpointsRequest request;
  for (const std::string& id : options.checkpoints) request.add_ids(id);
  request.set_job_id(options.job);
  request.set_keep_newest(static_cast<std::uint32_t>(options.keep));
  POSEIDON_ASSIGN_OR_RETURN(const v1::RemoveCheckpointsResponse removed,
                            client->remove_checkpoints(request, kCallTimeout));
  for (const std::string& id : removed.removed()) write_stdout(id + "\n");
  for (const std::string& id : removed.held()) {
    print_warnings(
        {absl::StrCat("checkpoint ", id, " is being exported; it will be removed after that")});
  }
  return absl::OkStatus();
}

absl::Status run_checkpoint_export(const CheckpointExportOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, reach(options));
  v1::LocateCheckpointRequest request;
  request.set_id(options.checkpoint);
  POSEIDON_ASSIGN_OR_RETURN(const v1::LocateCheckpointResponse located,
                            client->locate_checkpoint(request, kCallTimeout));
  print_warnings({located.warnings().begin(), located.warnings().end()});
  const std::string what = absl::StrCat("checkpoint ", located.id());
  AtomicFile file(options.to);  // a folder that cannot be written to is found before the work
  if (const absl::Status opened = file.open(); !opened.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--to ", opened.message()));
  }
  const AtSignal at_signal({.words = "", .remove = file.temporary()});
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(located.job_json()));
  POSEIDON_RETURN_IF_ERROR(check_servers_have_parameters(job));
  POSEIDON_ASSIGN_OR_RETURN(ModelLayout layout, resolve_layout(job.model, "/"));
  POSEIDON_ASSIGN_OR_RETURN(const RestoreSource source, restore_from_message(located.source()));
  CheckpointModel model(std::move(layout));
  POSEIDON_ASSIGN_OR_RETURN(std::vector<StoreRequest> requests, model.requests(source));

  v1::LocateCheckpointRequest hold;
  hold.set_id(located.id());
  hold.set_hold_only(true);
  // Without an answer the checkpoint may be removed; then a store says so.
  const auto keep_held = [&client, &hold] { (void)client->locate_checkpoint(hold, kCallTimeout); };
  const absl::Status fetched =
      fetch_pieces(std::move(requests), {.security = client->security(),
                                         .keep_held = keep_held,
                                         .interval = Milliseconds(located.hold_ms() / 3)});
  if (!fetched.ok()) {
    return absl::AbortedError(absl::StrCat(what, ": ", fetched.message()));
  }
  POSEIDON_ASSIGN_OR_RETURN(const EncodedModel encoded, model.encode());
  std::uint64_t bytes = 0;
  for (const std::string_view piece : encoded.pieces()) {
    POSEIDON_RETURN_IF_ERROR(file.append(piece));
    bytes += piece.size();
  }
  POSEIDON_RETURN_IF_ERROR(file.commit());
  write_stdout(absl::StrCat(what, " (job ", printable(job.name), ", iteration ", source.iteration(),
                            ") is in ", options.to, ", ", bytes, " bytes\n"));
  return absl::OkStatus();
}

absl::Status run_checkpoint_restore(const CheckpointRestoreOptions& options) {
  if (!options.run_dir.empty()) POSEIDON_RETURN_IF_ERROR(check_run_dir(options.run_dir));
  v1::RestoreCheckpointRequest request;
  if (!options.job.empty()) {
    auto job = prepare_job(options.job);
    if (!job.ok()) return absl::InvalidArgumentError(job.status().message());
    print_warnings(job_warnings(job->spec));
    request.set_job_json(job->json);
  }
  POSEIDON_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, reach(options));
  request.set_protocol_version(kProtocolVersion);
  request.set_id(options.checkpoint);
  request.set_run_directory(options.run_dir);
  request.set_workers(static_cast<std::uint32_t>(options.workers));
  request.set_servers(static_cast<std::uint32_t>(options.servers));
  POSEIDON_ASSIGN_OR_RETURN(const v1::SubmitResponse response,
                            client->restore_checkpoint(request, kRestoreTimeout));
  print_warnings({response.warnings().begin(), response.warnings().end()});
  return follow_job(*client, response, options.follow);
}

}  // namespace poseidon
