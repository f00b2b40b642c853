#include "cli/local/program_run.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/local/local_cluster.h"
#include "cli/local/run_folders.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/daemon/parent.h"
#include "common/threads/thread_limit.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

constexpr Milliseconds kLook{200};  // between two looks at the programs and their output
/// From the end of the programs to that of their job.
constexpr std::chrono::seconds kEndPatience{20};

/// Copies what a program writes to its log to stdout.
class Output {
 public:
  explicit Output(fs::path log) : log_(std::move(log)) {}

  void copy() {
    std::ifstream file(log_, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(copied_));
    std::string text(64 << 10, '\0');
    while (file &&
           (file.read(text.data(), static_cast<std::streamsize>(text.size())), file.gcount() > 0)) {
      const auto size = static_cast<std::size_t>(file.gcount());
      write_stdout(text.substr(0, size));
      copied_ += size;
    }
  }

 private:
  const fs::path log_;
  std::size_t copied_ = 0;
};

absl::Status check_options(const RunOptions& options) {
  for (const auto& [flag, count] :
       {std::pair("--workers", options.workers), std::pair("--servers", options.servers)}) {
    if (count >= 1 && count <= kMaxProcesses) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", count, " must be between 1 and ", kMaxProcesses));
  }
  const auto processes = static_cast<std::size_t>(options.workers + options.servers);
  return check_threads((2 + processes) * most_daemon_threads(), "poseidon run");
}

/// Where this program is that of a build tree: its Python package, before what PYTHONPATH has.
void add_build_tree(const fs::path& programs, std::vector<std::string>& environment) {
  std::error_code ignored;
  const fs::path package = programs / "../../../python";
  if (!fs::exists(package / "poseidon/__init__.py", ignored)) return;
  std::string path = fs::weakly_canonical(package, ignored).string();
  if (const char* more = std::getenv("PYTHONPATH"); more != nullptr && *more != '\0') {
    absl::StrAppend(&path, ":", more);
  }
  environment.push_back(absl::StrCat("PYTHONPATH=", path));
  const fs::path library = programs / "libposeidon_client.so";
  if (std::getenv("POSEIDON_CLIENT_LIBRARY") == nullptr && fs::exists(library, ignored)) {
    environment.push_back(absl::StrCat("POSEIDON_CLIENT_LIBRARY=", library.string()));
  }
}

std::vector<std::string> environment_of(std::int64_t rank, const RunOptions& options,
                                        const std::string& coordinator, const fs::path& run,
                                        const fs::path& programs) {
  std::vector<std::string> environment = {absl::StrCat("RANK=", rank),
                                          absl::StrCat("LOCAL_RANK=", rank),
                                          absl::StrCat("WORLD_SIZE=", options.workers),
                                          absl::StrCat("LOCAL_WORLD_SIZE=", options.workers),
                                          absl::StrCat("POSEIDON_COORDINATOR=", coordinator),
                                          absl::StrCat("POSEIDON_SERVERS=", options.servers),
                                          absl::StrCat("POSEIDON_RUN_DIR=", run.string()),
                                          "PYTHONUNBUFFERED=1"};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const std::int64_t threads = std::max<std::int64_t>(1, usable_cores() / options.workers);
    environment.push_back(absl::StrCat("OMP_NUM_THREADS=", threads));
  }
  add_build_tree(programs, environment);
  return environment;
}

absl::Status start_programs(LocalCluster& cluster, const RunOptions& options,
                            const std::string& coordinator, const fs::path& run,
                            const fs::path& programs) {
  // It executes the program, which then ends with this process.
  std::vector<std::string> arguments = {"run", "--exit-with-parent", absl::StrCat(::getpid()),
                                        "--"};
  arguments.insert(arguments.end(), options.command.begin(), options.command.end());
  for (std::int64_t rank = 0; rank < options.workers; ++rank) {
    const std::string name = absl::StrCat("rank-", rank);
    POSEIDON_RETURN_IF_ERROR(cluster.start_program(
        {.name = name,
         .program = programs / "poseidon",
         .arguments = arguments,
         .log = run / "logs" / (name + ".log"),
         .environment = environment_of(rank, options, coordinator, run, programs)}));
  }
  return absl::OkStatus();
}

/// The first signal: the job, if there is one, ends as of a last checkpoint. Another one ends the
/// wait.
absl::Status stop_job(LocalCluster& cluster, CoordinatorClient& client, Output& output) {
  absl::StatusOr<v1::GetStatusResponse> status = client.get_status(kStatusTimeout);
  if (!status.ok() || status->job_id().empty() || has_ended(*status)) return absl::OkStatus();
  write_stdout(
      "stopping: the job takes a last checkpoint; the same signal again ends it at once\n");
  v1::EndJobRequest request;
  request.set_job_id(status->job_id());
  request.set_checkpoint_within_s(kStopCheckpointS);
  const absl::Status asked = client.end_job(request, kCallTimeout).status();
  if (!asked.ok() && !absl::IsFailedPrecondition(asked)) return asked;
  while (status.ok() && !has_ended(*status)) {
    // Programs that end because their job does are no failure here.
    const absl::Status paused = cluster.pause(kLook);
    if (absl::IsCancelled(paused)) return paused;
    output.copy();
    status = client.get_status(kStatusTimeout);
  }
  return status.status();
}

/// How the job of programs that have all ended has ended.
absl::Status tell_outcome(LocalCluster& cluster, CoordinatorClient& client) {
  const SystemClock clock;
  const Nanoseconds begin = clock.now();
  while (true) {
    POSEIDON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                              client.get_status(kStatusTimeout));
    if (status.job().empty()) {
      write_stdout(
          "no job was trained: the program has not joined one (PyTorch scripts do with "
          "poseidon.torch.distribute)\n");
      return absl::OkStatus();
    }
    if (has_ended(status)) return report_outcome(status, "");
    if (clock.now() - begin > kEndPatience) {
      return absl::AbortedError(
          absl::StrCat("all programs have ended, but their job ", status.job_id(), " is ",
                       status.state(), status.message().empty() ? "" : ": ", status.message()));
    }
    POSEIDON_RETURN_IF_ERROR(cluster.pause(kLook));
  }
}

absl::Status train(LocalCluster& cluster, const RunOptions& options, const fs::path& run,
                   const fs::path& programs) {
  POSEIDON_RETURN_IF_ERROR(cluster.set_earlier_run_aside());
  POSEIDON_ASSIGN_OR_RETURN(const std::string address, cluster.start_coordinator());
  POSEIDON_RETURN_IF_ERROR(cluster.start_servers(address, options.servers));
  POSEIDON_RETURN_IF_ERROR(start_programs(cluster, options, address, run, programs));
  CoordinatorClient client(address);
  Output output(run / "logs" / "rank-0.log");
  absl::Status status;
  while (status.ok() && !cluster.all_programs_done()) {
    status = cluster.pause(kLook);
    output.copy();
  }
  if (status.ok()) return tell_outcome(cluster, client);
  if (cluster.stop_signal() == 0) return status;
  const absl::Status stopped = stop_job(cluster, client, output);
  return stopped.ok() ? status : stopped;
}

/// Of the child: executes the program. Returns when that fails.
absl::Status execute(const RunOptions& options) {
  POSEIDON_RETURN_IF_ERROR(follow_parent(static_cast<pid_t>(options.parent_pid)));
  std::vector<std::string> words = options.command;
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv.front(), argv.data());
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot execute ", words.front()));
}

}  // namespace

std::string program_name(const std::vector<std::string>& command) {
  const auto script =
      std::ranges::find_if(command, [](const std::string& word) { return word.ends_with(".py"); });
  return fs::path(script == command.end() ? command.front() : *script).filename().string();
}

absl::Status run_program(const RunOptions& options) {
  if (options.parent_pid != 0) return execute(options);
  if (options.command.size() == 1 && options.command.front().ends_with(".json")) {
    return run_local({.job_path = options.command.front(),
                      .workers = options.workers,
                      .servers = options.servers,
                      .run_dir = options.run_dir,
                      .metrics = options.metrics});
  }
  POSEIDON_RETURN_IF_ERROR(check_options(options));
  POSEIDON_ASSIGN_OR_RETURN(const fs::path programs, programs_folder("poseidon"));
  const std::string name = program_name(options.command);
  POSEIDON_ASSIGN_OR_RETURN(RunFolders folders, make_folders(options.run_dir, name));
  const fs::path run = folders.run;
  write_stdout(absl::StrCat("running ", printable(name), ", workers: ", options.workers,
                            ", servers: ", options.servers, "; run directory ", run.string(),
                            "\n"));
  const Signals signals;
  LocalCluster cluster(std::move(folders), programs, signals, {.metrics = options.metrics});
  return cluster.end(train(cluster, options, run, programs));
}

}  // namespace poseidon
