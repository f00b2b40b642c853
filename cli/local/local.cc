// `poseidon local`: a whole cluster of real processes on this machine, for one job.
//
// Order: check everything that can be checked; start coordinator, servers, workers; submit; watch;
// stop all. A child that dies is started again, and the job recovers. No child is ever left behind:
// every exit path stops them, ChildProcess's destructor sends SIGKILL as a last resort, and
// --exit-with-parent ends them if this process is killed.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_file.h"
#include "cli/local/child_process.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/ids.h"
#include "common/base/process_load.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/files/file_io.h"
#include "common/threads/thread_limit.h"
#include "common/threads/thread_team.h"
#include "coordinator/planning/node_counts.h"
#include "coordinator/records/run_directory.h"
#include "coordinator/records/state_directory.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/plugin/device_name.h"
#include "worker/engine/plugin/nvidia_driver.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

constexpr Milliseconds kStartTimeout{30000};  // of the coordinator, until it listens
constexpr Milliseconds kStopTimeout{5000};    // between SIGTERM and SIGKILL
constexpr Milliseconds kAddressPoll{20};
constexpr const char* kAnyPort = "127.0.0.1:0";
constexpr const char* kCoordinatorState = "coordinator";  // among the cluster's folders
constexpr std::size_t kLogLines = 15;
/// Between two questions to a coordinator that does not answer yet.
constexpr Milliseconds kAnswerPause{100};
/// A child that dies more often than this in the window is not started again.
constexpr std::size_t kMaxRestarts = 5;
constexpr std::chrono::seconds kRestartWindow{60};
constexpr std::int64_t kMaxProcesses = 256;  // of one kind; more is a typing error

/// SIGINT, SIGTERM and SIGHUP, blocked in every thread and waited for, and SIGCHLD so that a
/// child's end is noticed at once. Create before any thread.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, number);
    // Our parent may have ignored SIGCHLD, and then the end of a child is not reported.
    ::signal(SIGCHLD, SIG_DFL);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }

  /// Waits at most `time`; returns the signal's number, or nullopt.
  std::optional<int> wait(Milliseconds time) const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    const timespec timeout{.tv_sec = seconds.count(),
                           .tv_nsec = Nanoseconds(time - seconds).count()};
    const int number = ::sigtimedwait(&set_, nullptr, &timeout);
    return number > 0 ? std::optional(number) : std::nullopt;
  }

 private:
  sigset_t set_{};
};

struct RunFolders {
  fs::path run;
  fs::path logs;
  fs::path cluster;  ///< the processes' own files; private
  Descriptor lock;   ///< of the run directory
};

absl::Status run_in_progress(const fs::path& run) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--run-dir ", run.string(), ": another run is in progress there; choose another folder"));
}

class LocalCluster {
 public:
  LocalCluster(RunFolders folders, fs::path programs, const Signals& signals,
               const LocalOptions& options)
      : folders_(std::move(folders)),
        programs_(std::move(programs)),
        signals_(signals),
        device_(options.device),
        metrics_(options.metrics) {}
  ~LocalCluster() { stop(); }
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  /// Starts the coordinator and returns the address it listens on.
  absl::StatusOr<std::string> start_coordinator();
  absl::Status start_servers(const std::string& coordinator, std::int64_t count);
  absl::Status start_workers(const std::string& coordinator, std::int64_t count);

  /// Waits so long, and starts children that have died again; an error when one dies too often, or
  /// we were asked to stop.
  absl::Status pause(Milliseconds time);

  /// Idempotent.
  void stop();

 private:
  absl::Status start(const std::string& name, const char* program,
                     std::vector<std::string> arguments);
  absl::Status forget_earlier_job();
  absl::Status check_children();
  absl::Status revive(ChildProcess& child, int wait_status);

  const RunFolders folders_;
  const fs::path programs_;
  const Signals& signals_;
  const std::string device_;  ///< of every worker
  const bool metrics_;
  const SystemClock clock_;
  std::string coordinator_;  ///< where it listens
  std::vector<ChildProcess> children_;
  std::map<std::string, std::deque<Nanoseconds>> deaths_;  ///< by name; in the window
};

absl::Status LocalCluster::start(const std::string& name, const char* program,
                                 std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--exit-with-parent", absl::StrCat(::getpid())});
  if (metrics_) arguments.insert(arguments.end(), {"--metrics-listen", kAnyPort});
  POSEIDON_ASSIGN_OR_RETURN(ChildProcess child,
                            ChildProcess::start({.name = name,
                                                 .program = programs_ / program,
                                                 .arguments = std::move(arguments),
                                                 .log = folders_.logs / (name + ".log")}));
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

/// An earlier run in the same folder may have been killed: the coordinator would continue its job
/// and refuse ours.
absl::Status LocalCluster::forget_earlier_job() {
  const Nanoseconds end = clock_.now() + kStopTimeout;
  while (true) {
    const auto state = StateDirectory::open(folders_.cluster / kCoordinatorState);
    if (state.ok()) {
      (*state)->drop_outcome();
      return (*state)->drop_job();
    }
    if (!absl::IsAlreadyExists(state.status())) return state.status();
    // Its coordinator may still be about to stop.
    if (clock_.now() >= end) {
      return run_in_progress(folders_.run);
    }
    POSEIDON_RETURN_IF_ERROR(pause(kAddressPoll));
  }
}

absl::StatusOr<std::string> LocalCluster::start_coordinator() {
  POSEIDON_RETURN_IF_ERROR(forget_earlier_job());
  const fs::path address_file = folders_.cluster / "coordinator.address";
  std::error_code ignored;  // of an earlier run in the same folder
  fs::remove(address_file, ignored);
  POSEIDON_RETURN_IF_ERROR(
      start("coordinator", "poseidon-coordinator",
            {"--listen", kAnyPort, "--state-dir", (folders_.cluster / kCoordinatorState).string(),
             "--run-root", folders_.run.string(), "--address-file", address_file.string()}));
  const SystemClock clock;
  const Nanoseconds end = clock.now() + kStartTimeout;
  while (clock.now() < end) {
    // The file appears whole (it is renamed into place).
    std::ifstream file(address_file);
    if (std::getline(file, coordinator_) && !coordinator_.empty()) return coordinator_;
    POSEIDON_RETURN_IF_ERROR(pause(kAddressPoll));
  }
  return absl::DeadlineExceededError(absl::StrCat("the coordinator does not listen after ",
                                                  kStartTimeout.count() / 1000, " s; its log is ",
                                                  children_.front().log().string()));
}

absl::Status LocalCluster::start_servers(const std::string& coordinator, std::int64_t count) {
  const std::int64_t cores = usable_cores();
  const std::string threads = absl::StrCat(default_team_threads(static_cast<int>(cores / count)));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = absl::StrCat("server-", i);
    POSEIDON_RETURN_IF_ERROR(
        start(name, "poseidon-server",
              {"--coordinator", coordinator, "--listen", kAnyPort, "--data-dir",
               (folders_.cluster / name).string(), "--threads", threads}));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::start_workers(const std::string& coordinator, std::int64_t count) {
  const std::int64_t cores = usable_cores();
  const std::string threads = absl::StrCat(std::max<std::int64_t>(1, cores / count));
  const std::string data_threads =
      absl::StrCat(default_data_threads(static_cast<int>(cores / count)));
  for (std::int64_t i = 0; i < count; ++i) {
    POSEIDON_RETURN_IF_ERROR(start(absl::StrCat("worker-", i), "poseidon-worker",
                                   {"--coordinator", coordinator, "--device", device_, "--threads",
                                    threads, "--data-threads", data_threads}));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::pause(Milliseconds time) {
  const std::optional<int> number = signals_.wait(time);
  POSEIDON_RETURN_IF_ERROR(check_children());
  if (number && *number != SIGCHLD) {
    return absl::CancelledError(
        absl::StrCat("stopped by signal ", *number, " (", ::strsignal(*number), ")"));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::check_children() {
  for (ChildProcess& child : children_) {
    const std::optional<int> status = child.poll();
    if (status) POSEIDON_RETURN_IF_ERROR(revive(child, *status));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::revive(ChildProcess& child, int wait_status) {
  const std::string what =
      absl::StrCat(child.name(), " (process ", child.pid(), ") ended unexpectedly with ",
                   describe_wait_status(wait_status));
  std::deque<Nanoseconds>& deaths = deaths_[child.name()];
  deaths.push_back(clock_.now());
  while (deaths.front() < clock_.now() - kRestartWindow) deaths.pop_front();
  // Who refuses its own arguments would do so again.
  const bool wrong_call = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kExitWrongCall;
  // The port that all others will know it by is not known yet.
  const bool has_no_port = &child == &children_.front() && coordinator_.empty();
  if (wrong_call || has_no_port || deaths.size() > kMaxRestarts) {
    const std::string why = absl::StrCat(what, "; the last lines of ", child.log().string(), ":\n",
                                         last_lines(child.log(), kLogLines));
    // Later it is the machine that has changed.
    const bool first_start = deaths.size() == 1;
    return wrong_call && first_start ? absl::InvalidArgumentError(why) : absl::AbortedError(why);
  }
  write_stdout(absl::StrCat(what, "; starting it again\n"));
  std::vector<std::string> arguments = child.arguments();
  // All others know the coordinator by the port it had.
  if (&child == &children_.front()) {
    *std::next(std::find(arguments.begin(), arguments.end(), "--listen")) = coordinator_;
  }
  return child.start_again(std::move(arguments));
}

void LocalCluster::stop() {
  for (const std::string& name : stop_all(children_, kStopTimeout)) {
    write_stdout(absl::StrCat(name, " did not stop within ", kStopTimeout.count() / 1000,
                              " s of SIGTERM and was killed; see ", folders_.logs.string(), "\n"));
  }
  children_.clear();
}

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

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &local);
  return text.data();
}

/// A new folder for a run that names none, even when another run makes one in the same second.
absl::StatusOr<fs::path> create_default_folder(const std::string& job_name) {
  const fs::path runs = "runs";
  POSEIDON_RETURN_IF_ERROR(create_folder(runs));
  const std::string name = absl::StrCat(file_name(job_name), "-", timestamp());
  fs::path run = runs / name;
  std::error_code error;
  for (int i = 2; !fs::create_directory(run, error); ++i) {
    if (error) {
      return absl::InvalidArgumentError(absl::StrCat("cannot create the folder ", run.string(),
                                                     ": ", error.message(),
                                                     "; choose another with --run-dir"));
    }
    run = runs / absl::StrCat(name, "-", i);
  }
  return run;
}

absl::StatusOr<RunFolders> make_run_folders(const std::string& run_dir,
                                            const std::string& job_name) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  fs::path run = run_dir;
  POSEIDON_RETURN_IF_ERROR(check_run_dir(path_from(here, run).string()));
  if (run_dir.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(run, create_default_folder(job_name));
  }
  run = path_from(here, run);
  POSEIDON_RETURN_IF_ERROR(check_nothing_foreign(run));
  RunFolders folders{.run = run, .logs = run / "logs", .cluster = run / "cluster"};
  for (const fs::path& folder : {folders.run, folders.logs, folders.cluster}) {
    POSEIDON_RETURN_IF_ERROR(create_folder(folder));
  }
  fs::permissions(folders.cluster, fs::perms::owner_all, error);
  absl::StatusOr<Descriptor> lock = lock_file(folders.cluster / "lock");
  if (absl::IsAlreadyExists(lock.status())) return run_in_progress(run);
  if (!lock.ok()) return lock.status();
  folders.lock = *std::move(lock);
  return folders;
}

absl::StatusOr<RunFolders> make_folders(const std::string& run_dir, const std::string& job_name) {
  absl::StatusOr<RunFolders> folders = make_run_folders(run_dir, job_name);
  const absl::Status status = folders.status();
  const bool names_the_flag = absl::StrContains(status.message(), "--run-dir");
  if (absl::IsPermissionDenied(status) || (absl::IsInvalidArgument(status) && !names_the_flag)) {
    return absl::InvalidArgumentError(
        absl::StrCat(status.message(), "; choose another folder with --run-dir"));
  }
  return folders;
}

/// The folder of this very program: the daemons lie beside it.
absl::StatusOr<fs::path> programs_folder() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* program : {"poseidon-coordinator", "poseidon-server", "poseidon-worker"}) {
    if (error || ::access((folder / program).c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no program ", (folder / program).string(),
                       " beside this one; build all of them (cmake --build --preset release)"));
    }
  }
  return folder;
}

/// Everything from the first child on.
absl::Status train(LocalCluster& cluster, const LocalOptions& options, const PreparedJob& job,
                   const fs::path& run_dir) {
  POSEIDON_ASSIGN_OR_RETURN(const std::string address, cluster.start_coordinator());
  POSEIDON_RETURN_IF_ERROR(cluster.start_servers(address, options.servers));
  POSEIDON_RETURN_IF_ERROR(cluster.start_workers(address, options.workers));

  auto client = std::make_unique<CoordinatorClient>(address);
  // While it does not answer, signals and dying children are noticed; a submission checks neither.
  const SystemClock clock;
  const Nanoseconds begin = clock.now();
  for (auto status = client->get_status(kStatusTimeout); !status.ok();
       status = client->get_status(kStatusTimeout)) {
    if (clock.now() - begin > kSubmitTimeout) {
      return absl::UnavailableError(absl::StrCat(
          "the coordinator at ", address, " has not answered for ", kSubmitTimeout.count() / 1000,
          " s: ", status.status().message(), "; look into its log in the run directory"));
    }
    POSEIDON_RETURN_IF_ERROR(cluster.pause(kAnswerPause));
  }
  v1::SubmitRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_job_json(job.json);
  request.set_run_directory(run_dir.string());
  request.set_workers(static_cast<std::uint32_t>(options.workers));
  request.set_servers(static_cast<std::uint32_t>(options.servers));
  POSEIDON_ASSIGN_OR_RETURN(const v1::SubmitResponse response,
                            client->submit(request, kSubmitTimeout));

  WatchOptions watch;
  watch.pause = [&cluster](Milliseconds time) { return cluster.pause(time); };
  watch.write = write_stdout;
  POSEIDON_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse last,
      watch_job(*client, response.job_id(), progress_options_of_stdout(), watch));
  client.reset();  // the coordinator's clean stop would wait for an idle connection
  cluster.stop();
  return report_outcome(last);
}

}  // namespace

absl::Status run_local(const LocalOptions& options) {
  POSEIDON_RETURN_IF_ERROR(check_options(options));
  // The coordinator, and this process.
  const std::size_t processes = 2 + static_cast<std::size_t>(options.workers + options.servers);
  POSEIDON_RETURN_IF_ERROR(check_threads(processes * most_daemon_threads(), "poseidon local"));
  auto job = prepare_job(options.job_path);
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
  POSEIDON_ASSIGN_OR_RETURN(fs::path programs, programs_folder());
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
  absl::Status status = train(cluster, options, *job, run_dir);
  cluster.stop();
  if (!status.ok() && !absl::IsInvalidArgument(status)) {
    status = absl::Status(status.code(), absl::StrCat(status.message(), "\nthe logs are in ",
                                                      (run_dir / "logs").string()));
  }
  return status;
}

}  // namespace poseidon
