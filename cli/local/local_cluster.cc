#include "cli/local/local_cluster.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/terminal/outcome.h"
#include "cli/terminal/watch.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/daemon/daemon.h"
#include "common/threads/thread_team.h"
#include "common/wire/snapshot.h"
#include "coordinator/records/run_directory.h"
#include "worker/data/feed/batches.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

constexpr Milliseconds kStartTimeout{30000};  // of the coordinator, until it listens
constexpr Milliseconds kStopTimeout{5000};    // between SIGTERM and SIGKILL
constexpr Milliseconds kAddressPoll{20};
constexpr const char* kAnyPort = "127.0.0.1:0";
constexpr std::size_t kLogLines = 15;
/// A child that dies more often than this in the window is not started again.
constexpr std::size_t kMaxRestarts = 5;
constexpr std::chrono::seconds kRestartWindow{60};

}  // namespace

Signals::Signals() {
  sigemptyset(&set_);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, number);
  // Our parent may have ignored SIGCHLD, and then the end of a child is not reported.
  ::signal(SIGCHLD, SIG_DFL);
  ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

std::optional<int> Signals::wait(Milliseconds time) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = Nanoseconds(time - seconds).count()};
  const int number = ::sigtimedwait(&set_, nullptr, &timeout);
  return number > 0 ? std::optional(number) : std::nullopt;
}

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

absl::StatusOr<std::unique_ptr<StateDirectory>> LocalCluster::open_state() {
  const Nanoseconds end = clock_.now() + kStopTimeout;
  while (true) {
    auto state = StateDirectory::open(folders_.cluster / kCoordinatorState);
    if (!absl::IsAlreadyExists(state.status())) return state;
    // The coordinator of a run that was killed may still be about to stop.
    if (clock_.now() >= end) return run_in_progress(folders_.run);
    POSEIDON_RETURN_IF_ERROR(pause(kAddressPoll));
  }
}

absl::StatusOr<RunStart> LocalCluster::settle_earlier_run(const WantedRun& wanted) {
  POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<StateDirectory> state, open_state());
  const RunThere there = look_for_run(folders_.run, *state);
  POSEIDON_ASSIGN_OR_RETURN(const RunStart start, choose_start(there, wanted));
  if (start.sets_aside && RunDirectory::moves_as_run_begins(folders_.run, wanted.weights)) {
    return absl::InvalidArgumentError(
        absl::StrCat("init.weights: ", wanted.weights, " would move when the run in ",
                     folders_.run.string(), " begins; choose another --run-dir"));
  }
  if (start.from) {
    write_stdout(absl::StrCat("goes on from checkpoint ", snapshot_name(start.from->snapshot),
                              " of the unfinished run there, after ", start.from->iteration(),
                              " of ", wanted.iterations, " iterations (--fresh begins anew)\n"));
  }
  if (!start.sets_aside) {
    // The coordinator would continue the job of a run that was killed, and refuse ours.
    state->drop_outcome();
    POSEIDON_RETURN_IF_ERROR(state->drop_job());
    return start;
  }
  state.reset();
  POSEIDON_ASSIGN_OR_RETURN(const fs::path aside, set_run_aside(folders_.run));
  const char* what = there.kind == RunThere::Kind::kFinished ? "a finished run"
                     : there.checkpoints.empty() ? "an unfinished run without a checkpoint"
                                                 : "an unfinished run";
  write_stdout(
      absl::StrCat("begins anew; the files of ", what, " there are in ", aside.string(), " now\n"));
  return start;
}

absl::Status LocalCluster::set_earlier_run_aside() {
  POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<StateDirectory> state, open_state());
  const RunThere there = look_for_run(folders_.run, *state);
  state.reset();
  if (there.kind == RunThere::Kind::kNone) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(const fs::path aside, set_run_aside(folders_.run));
  write_stdout(absl::StrCat("begins anew; the files of an earlier run there are in ",
                            aside.string(), " now\n"));
  return absl::OkStatus();
}

std::int64_t LocalCluster::earlier_servers() const {
  std::int64_t count = 0;
  std::error_code ignored;
  while (count < kMaxProcesses &&
         fs::exists(folders_.cluster / absl::StrCat("server-", count), ignored)) {
    ++count;
  }
  return count;
}

absl::StatusOr<std::string> LocalCluster::start_coordinator() {
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
    // They end with the whole cluster, or are started again at once: no goodbye.
    POSEIDON_RETURN_IF_ERROR(
        start(absl::StrCat("worker-", i), "poseidon-worker",
              {"--coordinator", coordinator, "--device", device_, "--threads", threads,
               "--data-threads", data_threads, "--leave-timeout-s", "0"}));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::start_program(ChildOptions program) {
  program_names_.insert(program.name);
  POSEIDON_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::start(std::move(program)));
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

bool LocalCluster::is_program(const ChildProcess& child) const {
  return program_names_.contains(child.name());
}

bool LocalCluster::all_programs_done() {
  return std::ranges::all_of(
      children_, [this](ChildProcess& child) { return !is_program(child) || child.poll() == 0; });
}

absl::Status LocalCluster::pause(Milliseconds time) {
  const std::optional<int> number = signals_.wait(time);
  POSEIDON_RETURN_IF_ERROR(check_children());
  if (number && *number != SIGCHLD) {
    stop_signal_ = *number;
    return absl::CancelledError(
        absl::StrCat("stopped by signal ", *number, " (", ::strsignal(*number), ")"));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::check_children() {
  for (ChildProcess& child : children_) {
    const std::optional<int> status = child.poll();
    if (!status) continue;
    POSEIDON_RETURN_IF_ERROR(is_program(child) ? end_of_program(child, *status)
                                               : revive(child, *status));
  }
  return absl::OkStatus();
}

/// An error of the program itself would come again.
absl::Status LocalCluster::end_of_program(ChildProcess& child, int wait_status) {
  if (wait_status == 0) return absl::OkStatus();
  if (WIFSIGNALED(wait_status)) return revive(child, wait_status);
  return absl::AbortedError(absl::StrCat(
      child.name(), " (process ", child.pid(), ") failed with ", describe_wait_status(wait_status),
      "; the last lines of ", child.log().string(), ":\n", last_lines(child.log(), kLogLines)));
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

absl::Status LocalCluster::end(absl::Status status) {
  stop();
  if (!status.ok() && stop_signal_ != 0) {
    return with_exit_code(128 + stop_signal_, std::string(status.message()));
  }
  if (status.ok() || status.message().empty() || absl::IsInvalidArgument(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "\nthe logs are in ", folders_.logs.string()));
}

void LocalCluster::stop() {
  for (const std::string& name : stop_all(children_, kStopTimeout)) {
    write_stdout(absl::StrCat(name, " did not stop within ", kStopTimeout.count() / 1000,
                              " s of SIGTERM and was killed; see ", folders_.logs.string(), "\n"));
  }
  children_.clear();
}

}  // namespace poseidon
