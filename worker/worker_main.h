#pragma once

// A worker's process without its engine: reads the options, wires the parts, waits for a signal.
//
// Called by: worker/main.cc, with the engines of poseidon-worker; benchmarks, with others. Calls:
// sync/node/worker_node.h, which runs the jobs.

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "worker/engine/engine.h"

namespace poseidon {

/// Called once, after the options were read and logging began.
using OpenEngine = std::function<absl::StatusOr<Engine>()>;

/// `app` may have further options. Returns the process's exit status.
int worker_main(int argc, char** argv, CLI::App& app, const OpenEngine& open_engine);

}  // namespace poseidon
