#pragma once

// `poseidon run`: a cluster of this machine's processes for a program that trains by itself.
//
// Called by: cli/main.cc. Calls: local_cluster.h, cli/remote/coordinator_client.h.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace poseidon {

struct RunOptions {
  /// The program and its arguments; or one job file, which runs as with `poseidon local`.
  std::vector<std::string> command;
  std::int64_t workers = 1;
  std::int64_t servers = 1;
  std::string run_dir;  ///< "": ./runs/<program>-<time>
  bool metrics = false;
  /// Of the call that executes one program, which ends with this process; 0: the call of a person.
  std::int64_t parent_pid = 0;
};

/// Starts a coordinator, servers, and the program once per worker, each with a RANK; returns when
/// all have ended. A program that a signal ends is started again. ABORTED, with the last lines of
/// its output: a program has failed. Does not return where parent_pid is given and the program is
/// executed.
absl::Status run_program(const RunOptions& options);

/// The file name of the script or program of this command, for the run's folder. Pure.
std::string program_name(const std::vector<std::string>& command);

}  // namespace poseidon
