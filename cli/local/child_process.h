#pragma once

// A process that `poseidon local` or `poseidon run` starts and stops, with its log and exit status.
//
// Called by: local_cluster.h. Calls: the system.

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace poseidon {

struct ChildOptions {
  std::string name;                    ///< for people: "worker-2"
  std::filesystem::path program;       ///< absolute
  std::vector<std::string> arguments;  ///< without the program's own name
  std::filesystem::path log;           ///< gets stdout and stderr; truncated at the start
  /// "NAME=VALUE", in place of this process's variables of these names.
  std::vector<std::string> environment = {};
};

/// "exit status 3" or "signal 9 (Killed)". `wait_status` as waitpid gives it. Pure.
std::string describe_wait_status(int wait_status);

/// The last `lines` lines of a text file, without the end of the last one; reads at most 64 KiB.
/// Empty when there is no such file.
std::string last_lines(const std::filesystem::path& path, std::size_t lines);

/// One child. One thread only; move-only. The destructor kills (SIGKILL) and reaps a child that
/// still runs.
class ChildProcess {
 public:
  /// The child has its own process group (so that Ctrl-C reaches only us, and we stop it in order),
  /// no signal blocked, and /dev/null as stdin.
  static absl::StatusOr<ChildProcess> start(ChildOptions options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  const std::string& name() const { return options_.name; }
  const std::filesystem::path& log() const { return options_.log; }
  pid_t pid() const { return pid_; }

  const std::vector<std::string>& arguments() const { return options_.arguments; }
  /// Restarts it. Precondition: it has ended. It appends to its log.
  absl::Status start_again(std::vector<std::string> arguments);

  /// How it ended, as describe_wait_status wants it; nullopt while it runs. Never blocks.
  std::optional<int> poll();

  /// Asks it to end: SIGTERM, and SIGCONT for one that was stopped. Harmless once it has ended.
  void request_stop();
  /// SIGKILL. Harmless once it has ended.
  void kill();

 private:
  ChildProcess(ChildOptions options, pid_t pid);
  void signal(int number);

  ChildOptions options_;
  pid_t pid_ = -1;                  ///< -1: moved from
  std::optional<int> wait_status_;  ///< once reaped
};

/// Stops all: SIGTERM to each in reverse order of start, SIGKILL to those that still run after
/// `patience`. Returns the names of those that had to be killed.
std::vector<std::string> stop_all(std::vector<ChildProcess>& children, Milliseconds patience);

}  // namespace poseidon
