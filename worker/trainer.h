#pragma once

// The training loop of one worker. Knows no network and no coordinator: it drives the engine, asks
// the synchronisation client, and reports progress.
//
// Called by: worker/native_framework.h, which prepares all parts. Calls: worker/engine/executor.h;
// sync/client/sync_client.h, which takes each gradient.

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/job/job.h"
#include "common/probes/traffic.h"
#include "sync/client/sync_client.h"
#include "sync/node/framework.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/executor.h"

namespace poseidon {

struct TrainerSetup {
  const JobSpec* job = nullptr;
  Iteration first_iteration = 0;  ///< above 0: going on from a checkpoint
  WorkerRank rank;
  Executor* executor = nullptr;
  SyncClient* sync = nullptr;
  TrainBatches* train = nullptr;
  TestBatches* test = nullptr;                   ///< null: never tests
  TrafficProbe* traffic = nullptr;               ///< counts how long each layer computes
  const std::atomic<bool>* cancelled = nullptr;  ///< set by another thread, with SyncClient::cancel
  TrainerEvents* events = nullptr;
};

/// Trains from `first_iteration` to the job's last on the calling thread; afterwards the executor
/// holds the final parameters, exact also where a 16-bit wire type rounded them during the run.
/// Errors: CANCELLED; FAILED_PRECONDITION for a loss or parameters that are not finite (naming
/// iteration and layer); otherwise the error of data (possibly marked as in
/// worker/data/formats/storage_failure.h), engine or synchronisation.
absl::Status train(const TrainerSetup& setup);

}  // namespace poseidon
