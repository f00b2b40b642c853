// `poseidon local`: a whole cluster of real processes on this machine, for one job.
//
// Order: check everything that can be checked; start coordinator, servers, workers; submit; watch;
// stop all. A child that dies is started again (local_cluster.h), and the job recovers. A signal
// stops the job as `poseidon stop` does.

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_file.h"
#include "cli/local/local_cluster.h"
#include "cli/local/run_folders.h"
#include "cli/local/run_there.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/files/file_io.h"
#include "common/threads/thread_limit.h"
#include "common/wire/snapshot.h"
#include "coordinator/planning/node_counts.h"
#include "coordinator/records/run_directory.h"
#include "worker/engine/plugin/device_name.h"
#include "worker/engine/plugin/nvidia_driver.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

/// Between two questions to a coordinator that does not answer yet.
constexpr Milliseconds kAnswerPause{100};

absl::Status check_options(const LocalOptions& options) {
  const std::pair<const char*, std::int64_t> counts[] = {{"--workers", options.workers},
                                                         {"--servers", options.servers}};
  for (const auto& [flag, count] : counts) {
    if (count < 1 || count > kMaxProcesses) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " ", count, " must be between 1 and ",
                                                     kMaxProcesses,
                                                     ": a cluster needs at least one of each"));
    }
  }
  return absl::OkStatus();
}

/// What workers would say when the cluster is up.
absl::Status check_device(const std::string& name, const std::string& precision) {
  POSEIDON_ASSIGN_OR_RETURN(const DeviceName device, parse_device_name(name));
  if (precision != "bf16" && precision != "fp16") return absl::OkStatus();
  std::string why;
  switch (device.kind) {
    case DeviceName::Kind::kCpu:
      why = "--device is cpu";
      break;
    case DeviceName::Kind::kAuto: {
      const absl::Status driver = find_nvidia_driver();
      if (driver.ok()) return driver;
      why = std::string(driver.message());
      break;
    }
    case DeviceName::Kind::kCuda:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("precision: \"", precision, "\" needs a GPU, but ",
                                                 why, "; set precision to \"fp32\""));
}

/// The call that goes on with this run.
std::string this_call(const LocalOptions& options, const fs::path& run_dir) {
  std::string call =
      absl::StrCat("poseidon local ", shell_word(options.job_path), " --workers ", options.workers,
                   " --servers ", options.servers, " --run-dir ", shell_word(run_dir.string()));
  if (options.device != LocalOptions().device) {
    absl::StrAppend(&call, " --device ", shell_word(options.device));
  }
  if (options.metrics) absl::StrAppend(&call, " --metrics");
  return call;
}

/// The first signal: the job ends as of a last checkpoint. Another one ends the wait.
absl::StatusOr<v1::GetStatusResponse> stop_job(CoordinatorClient& client, const std::string& job_id,
                                               const WatchOptions& watch) {
  write_stdout(
      "stopping: the job takes a last checkpoint and leaves its model; the same signal again ends "
      "it at once\n");
  v1::EndJobRequest request;
  request.set_job_id(job_id);
  request.set_checkpoint_within_s(kStopCheckpointS);
  const absl::Status asked = client.end_job(request, kCallTimeout).status();
  // A job that has just ended by itself is not active any more.
  if (!asked.ok() && !absl::IsFailedPrecondition(asked)) return asked;
  return watch_job(client, job_id, progress_options_of_stdout(), watch);
}

/// Waits until it answers. Meanwhile signals and dying children are noticed; a submission checks
/// neither.
absl::Status await_answer(LocalCluster& cluster, CoordinatorClient& client) {
  const SystemClock clock;
  const Nanoseconds begin = clock.now();
  for (auto status = client.get_status(kStatusTimeout); !status.ok();
       status = client.get_status(kStatusTimeout)) {
    if (clock.now() - begin > kSubmitTimeout) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator at ", client.address(), " has not answered for ",
                       kSubmitTimeout.count() / 1000, " s: ", status.status().message(),
                       "; look into its log in the run directory"));
    }
    POSEIDON_RETURN_IF_ERROR(cluster.pause(kAnswerPause));
  }
  return absl::OkStatus();
}

/// Submits the job, or restores it from the checkpoint that it goes on from.
absl::StatusOr<v1::SubmitResponse> begin_job(CoordinatorClient& client, const LocalOptions& options,
                                             const PreparedJob& job, const fs::path& run_dir,
                                             const RunStart& start) {
  const auto workers = static_cast<std::uint32_t>(options.workers);
  const auto servers = static_cast<std::uint32_t>(options.servers);
  if (start.from) {
    v1::RestoreCheckpointRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_id(snapshot_name(start.from->snapshot));
    request.set_run_directory(run_dir.string());
    request.set_workers(workers);
    request.set_servers(servers);
    if (start.has_other_job) request.set_job_json(job.json);
    absl::StatusOr<v1::SubmitResponse> response =
        client.restore_checkpoint(request, kSubmitTimeout);
    if (response.ok()) print_warnings({response->warnings().begin(), response->warnings().end()});
    return response;
  }
  v1::SubmitRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_job_json(job.json);
  request.set_run_directory(run_dir.string());
  request.set_workers(workers);
  request.set_servers(servers);
  return client.submit(request, kSubmitTimeout);
}

/// Everything from the look at an earlier run on.
absl::Status train(LocalCluster& cluster, const LocalOptions& options, const PreparedJob& job,
                   const fs::path& run_dir) {
  POSEIDON_ASSIGN_OR_RETURN(const RunStart start,
                            cluster.settle_earlier_run({.job_json = job.json,
                                                        .iterations = job.spec.iterations,
                                                        .weights = job.spec.init.weights,
                                                        .fresh = options.fresh}));
  const std::int64_t servers =
      start.from ? std::max(options.servers, cluster.earlier_servers()) : options.servers;
  POSEIDON_ASSIGN_OR_RETURN(const std::string address, cluster.start_coordinator());
  POSEIDON_RETURN_IF_ERROR(cluster.start_servers(address, servers));
  POSEIDON_RETURN_IF_ERROR(cluster.start_workers(address, options.workers));

  auto client = std::make_unique<CoordinatorClient>(address);
  POSEIDON_RETURN_IF_ERROR(await_answer(cluster, *client));
  const absl::StatusOr<v1::SubmitResponse> response =
      begin_job(*client, options, job, run_dir, start);
  if (!response.ok()) {
    POSEIDON_RETURN_IF_ERROR(cluster.pause(Milliseconds(0)));  // a signal that came meanwhile
    return response.status();
  }

  WatchOptions watch;
  watch.pause = [&cluster](Milliseconds time) { return cluster.pause(time); };
  watch.write = write_stdout;
  absl::StatusOr<v1::GetStatusResponse> last =
      watch_job(*client, response->job_id(), progress_options_of_stdout(), watch);
  if (!last.ok() && cluster.stop_signal() != 0) {
    last = stop_job(*client, response->job_id(), watch);
  }
  POSEIDON_RETURN_IF_ERROR(last.status());
  client.reset();  // the coordinator's clean stop would wait for an idle connection
  cluster.stop();
  return report_outcome(*last, this_call(options, run_dir));
}

}  // namespace

absl::Status run_local(const LocalOptions& options) {
  POSEIDON_RETURN_IF_ERROR(check_options(options));
  // The coordinator, and this process.
  const std::size_t processes = 2 + static_cast<std::size_t>(options.workers + options.servers);
  POSEIDON_RETURN_IF_ERROR(check_threads(processes * most_daemon_threads(), "poseidon local"));
  auto job = prepare_job_of_workers(options.job_path);
  if (!job.ok()) return absl::InvalidArgumentError(job.status().message());
  absl::Status checked = check_node_counts({.min_workers = job->spec.membership.min_workers,
                                            .max_workers = job->spec.membership.max_workers,
                                            .replicas = job->spec.checkpoint.replicas},
                                           options.workers, options.servers);
  if (checked.ok()) checked = check_device(options.device, job->spec.precision);
  if (checked.ok()) checked = check_files(job->spec);
  std::string weights;
  if (checked.ok()) {
    auto report = check_weights(job->spec, job->net);
    checked = report.status();
    if (report.ok()) weights = *std::move(report);
  }
  if (checked.ok()) {
    checked = check_data(job->spec, job->net, static_cast<std::uint32_t>(options.workers));
  }
  if (!checked.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(options.job_path, ": ", checked.message()));
  }
  print_warnings(job_warnings(job->spec));
  POSEIDON_ASSIGN_OR_RETURN(fs::path programs, programs_folder("poseidon-worker"));
  POSEIDON_ASSIGN_OR_RETURN(RunFolders folders, make_folders(options.run_dir, job->spec.name));
  const fs::path run_dir = folders.run;
  write_stdout(absl::StrCat("training ", job->spec.name, " (", job->net.name, "), workers: ",
                            options.workers, ", servers: ", options.servers, "; run directory ",
                            run_dir.string(), "\n", weights.empty() ? "" : weights + "\n"));
  if (options.metrics) {
    const fs::path targets = folders.cluster / kCoordinatorState / "prometheus-targets.json";
    write_stdout(absl::StrCat("targets for Prometheus: ", targets.string(), "\n"));
  }

  const Signals signals;
  LocalCluster cluster(std::move(folders), std::move(programs), signals, options);
  return cluster.end(train(cluster, options, *job, run_dir));
}

}  // namespace poseidon
