#pragma once

// The CPU device: oneDNN for the heavy layers, our own loops for the rest.
//
// Called by: worker/engine/plugin/open_engine.h, which creates it;
// worker/engine/executor/network_executor.h uses it. Calls: oneDNN.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/device.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// An executor on this machine's CPU. For one number of threads, results are the same bits from run
/// to run. Several executors may live in one process, each on a thread of its own; each forward and
/// backward sets the OpenMP thread count of its calling thread to ExecutorOptions::threads.
/// RESOURCE_EXHAUSTED when the network and batch need more than the machine's memory (the message
/// has both numbers), INVALID_ARGUMENT for a bad batch size or thread count.
absl::StatusOr<std::unique_ptr<Executor>> make_cpu_executor(const NetSpec& net,
                                                            const ExecutorOptions& options);

/// The device alone, for tests. `threads` > 0.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace poseidon
