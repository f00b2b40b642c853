#pragma once

// What a worker computes with: the seam between a worker's part in a cluster and what trains there,
// our own engine or another framework.
//
// Called by: sync/node/worker_node.h, which begins a job for each assignment and measures before
// one; sync/node/worker_job.h, which prepares it, gives it the synchronisation client, and saves
// and restores what it alone has. Calls: an implementation; worker/native_framework.h is our
// engine's.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/checkpoint/restore_source.h"
#include "common/job/data_identity.h"
#include "common/job/job.h"
#include "common/plan/plan.h"
#include "common/probes/data_probe.h"
#include "common/probes/traffic.h"
#include "poseidon/v1/control.pb.h"
#include "sync/client/factor_engine.h"
#include "sync/client/sync_client.h"
#include "sync/routes/layer_memory.h"
#include "sync/states/factor_state.h"

namespace poseidon {

/// Over this worker's share of the test samples.
struct TestTotals {
  double loss_sum = 0.0;
  std::int64_t correct = 0, samples = 0;
};

/// What training tells while it runs, on its own thread.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  /// Forward is done; the iteration's gradients are sent after this call. An error ends training.
  virtual absl::Status before_backward(Iteration /*iteration*/) { return absl::OkStatus(); }
  /// Parameters that have seen `steps` steps are about to be tested. Likewise.
  virtual absl::Status before_test(Iteration /*steps*/) { return absl::OkStatus(); }
  /// Mean loss over this worker's samples of the iteration.
  virtual void iteration_done(Iteration iteration, double loss) = 0;
  /// With parameters that have seen `steps` steps.
  virtual void tested(Iteration steps, const TestTotals& totals) = 0;
};

/// One assignment. All pointers outlive the job, except `plan`, which is for prepare() alone.
struct FrameworkTask {
  const JobSpec* job = nullptr;
  const Plan* plan = nullptr;
  WorkerRank rank;
  /// Where training goes on; null at the job's beginning.
  const RestoreSource* restore = nullptr;
  const std::atomic<bool>* cancelled = nullptr;  ///< set by another thread: end soon, as CANCELLED

  Iteration first_iteration() const { return restore == nullptr ? 0 : restore->iteration(); }
};

/// For train().
struct TrainingServices {
  SyncClient* sync = nullptr;
  TrafficProbe* traffic = nullptr;  ///< counts how long each layer computes
  TrainerEvents* events = nullptr;
};

/// Trains one assignment. Used on the job's thread, except data_probe, which any thread may call.
class FrameworkJob {
 public:
  virtual ~FrameworkJob() = default;

  /// Makes everything ready but what a checkpoint holds. At the job's beginning worker 0's
  /// parameters have their initial values afterwards; the others' may have any, and get them from
  /// the servers. INTERNAL: the plan does not fit the network.
  virtual absl::Status prepare(const FrameworkTask& task) = 0;

  // After prepare().

  /// The memory of a layer of the plan.
  virtual LayerMemory memory(LayerIndex layer) = 0;
  /// Null when no layer goes by SFB.
  virtual FactorEngine* factor_engine() = 0;
  virtual FactorState* factor_state() = 0;
  /// What the job's data are; unset where there is nothing to compare with other workers.
  virtual std::optional<DataIdentity> data() const = 0;
  virtual std::shared_ptr<const DataProbe> data_probe() const = 0;

  /// State that belongs to the model, is no parameter, and is moved by each worker for itself, such
  /// as running statistics: worker 0's counts. Elements, and the values end to end.
  virtual std::int64_t own_state_elements() const = 0;
  virtual absl::Status read_own_state(std::span<float> values) = 0;
  virtual absl::Status write_own_state(std::span<const float> values) = 0;

  /// To the last iteration; afterwards the parameters are the final ones, exact also where a 16-bit
  /// wire type rounded them. How many iterations the parameters have seen: job.iterations, or when
  /// a program ends, what it has done by then. CANCELLED; otherwise the error, in words for people.
  virtual absl::StatusOr<Iteration> train(const TrainingServices& services) = 0;
  /// After train(): gives the whole model, as a safetensors file in pieces, to `take`.
  virtual absl::Status give_model(
      const std::function<absl::Status(std::span<const std::string_view> pieces)>& take) = 0;
};

/// Of a worker process, for all its jobs. Any thread.
class Framework {
 public:
  virtual ~Framework() = default;

  virtual std::unique_ptr<FrameworkJob> begin_job() = 0;
  /// How fast it computes a job's network, for planning; fills in what it measured. On the calling
  /// thread. CANCELLED; INVALID_ARGUMENT; or what the device says.
  virtual absl::Status measure(const v1::CalibrateCompute& task, const std::atomic<bool>& cancelled,
                               v1::CalibrationReport& report) = 0;
  /// After `failure` of a job or measurement: why the process should end, because no other job can
  /// succeed here and a replacement lets this job continue. OK when the framework is not at fault.
  virtual absl::Status broken_by(const absl::Status& failure) = 0;
  /// The coordinator has ended the job, or this worker's part in it (`reason`, for people); no
  /// other epoch follows. On the control client's thread, once the job's thread is gone.
  virtual void job_ended(bool /*succeeded*/, const std::string& /*reason*/) {}
};

}  // namespace poseidon
