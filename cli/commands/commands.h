#pragma once

// The subcommands. Each returns a status, which main() prints and turns into an exit code:
// INVALID_ARGUMENT and NOT_FOUND mean a wrong call, other errors a failed run.
//
// Called by: cli/main.cc. Calls: cli/local/local.cc, job_file.h, models_command.h, plan_command.h,
// cli/remote/coordinator_client.h.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"
#include "cli/terminal/outcome.h"

namespace poseidon {

struct LocalOptions {
  std::string job_path;
  std::int64_t workers = 0;
  std::int64_t servers = 0;
  std::string run_dir;          ///< "": ./runs/<job name>-<time>
  std::string device = "auto";  ///< of every worker
  bool metrics = false;         ///< every process serves them
  bool fresh = false;           ///< begins anew where run_dir holds an unfinished run
};
/// A whole cluster of real processes on this machine, for one job (local.cc).
absl::Status run_local(const LocalOptions& options);

struct SubmitOptions : CoordinatorAccess {
  std::string job_path;
  std::string run_dir;                  ///< on the coordinator's machine; "": it chooses
  std::optional<std::int64_t> workers;  ///< nullopt: what the job allows
  std::optional<std::int64_t> servers;  ///< nullopt: all there are
  FollowOptions follow;
};
absl::Status run_submit(const SubmitOptions& options);

struct StatusOptions : CoordinatorAccess {
  bool json = false;
};
absl::Status run_status(const StatusOptions& options);

/// Texts are as on the command line; "" where the flag was not given.
struct PlanOptions {
  std::string job_path;
  std::int64_t workers = 0;
  std::int64_t servers = 0;
  std::string bandwidth;
  std::string latency;
  std::string device_flops;
  std::optional<double> images_per_s;
  std::int64_t workers_per_machine = 1;
  bool separate_servers = false;
  bool json = false;
};
/// Needs no cluster, and of the job only network, batch and sync: the data need not be here.
absl::Status run_plan(const PlanOptions& options);

struct ModelsOptions {
  std::optional<std::string> name;  ///< none: a list of all
  bool json = false;
};
absl::Status run_models(const ModelsOptions& options);

}  // namespace poseidon
