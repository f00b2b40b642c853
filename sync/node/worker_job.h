#pragma once

// One assignment of a worker, on a thread of its own: restore from a checkpoint, synchronisation,
// training, model, and reports to the coordinator. Knows no network: framework.h computes.
//
// Called by: worker_node.h, with the coordinator's Assignment. Calls: framework.h.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/restore_source.h"
#include "common/job/job.h"
#include "common/node/control_client.h"
#include "common/node/node_counters.h"
#include "common/pages/node_metrics.h"
#include "common/threads/mutex.h"
#include "common/threads/thread_roles.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/client/sync_client.h"
#include "sync/node/framework.h"
#include "sync/states/checkpoint_giver.h"
#include "sync/states/state_reader.h"
#include "sync/states/state_sender.h"

namespace poseidon {

/// The same for all jobs of a worker.
struct WorkerNodeOptions {
  Framework* framework = nullptr;  ///< outlives the node
  SyncClientOptions sync;          ///< except sync.syncer.sfb, which comes from the job
  Transport* stores = nullptr;     ///< speaks kStoreMethod, on the loop of the rest
  /// Sets the window of the synchronisation's transports to Plan::window_bytes. May be null.
  std::function<void(std::int64_t)> set_windows;
  /// How long the coordinator may be away: as in ControlClientOptions.
  Milliseconds away_timeout{3600000};
  PeerAccess peers;  ///< for SFB layers; its pointees outlive the node
  std::shared_ptr<NodeProbe> probe = std::make_shared<NodeProbe>();
  CounterSources counters;  ///< of the heartbeats
};

/// The services that a job uses. All outlive it.
struct WorkerServices {
  Transport* transport = nullptr;  ///< of synchronisation
  RefusalCounts* refusals = nullptr;
  NodeMetrics* metrics = nullptr;  ///< may be null
  ControlClient* client = nullptr;
  /// The framework is broken (Framework::broken_by): the process should end without freeing what
  /// belongs to it. The job calls it last, on its own thread.
  std::function<void(const absl::Status&)> node_failed;
};

/// Call launch, then the coordinator's commands in any order, finally cancel and join. Any thread
/// may call these; everything else runs on the job's own thread.
class WorkerJob final : public TrainerEvents {
 public:
  /// `options` outlives the job.
  WorkerJob(const WorkerServices& services, const WorkerNodeOptions& options,
            v1::Assignment assignment);

  Epoch epoch() const { return epoch_; }
  /// Null before the job synchronises.
  std::shared_ptr<TrafficProbe> traffic();
  std::shared_ptr<const DataProbe> data_probe() const { return data_probe_; }

  void launch();
  void join();
  /// All workers are ready.
  void start();
  /// Ends it as soon as it may; `reason` is for the log.
  void cancel(const absl::Status& reason);
  /// Another worker is lost: training ends, but its memory stays until cancel.
  void halt();
  void save_checkpoint(const v1::SaveCheckpoint& save);
  /// Before a heartbeat; see SyncClient::note_awaited.
  void note_awaited();

  absl::Status before_backward(Iteration iteration) override;
  absl::Status before_test(Iteration steps) override;
  void iteration_done(Iteration iteration, double loss) override;
  void tested(Iteration steps, const TestTotals& totals) override;

 private:
  void run();
  absl::StatusOr<Iteration> prepare_and_train() ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  absl::Status restore_own_state(const Plan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  absl::Status prepare_synchronisation(Plan plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  SyncClientOptions sync_options(const Plan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  std::shared_ptr<TrafficProbe> show_progress(const Plan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  absl::Status wait_for_start();
  void wait_for_stop();
  Nanoseconds stop_timeout() const;
  void log_no_word(const char* awaited, const char* then) const;

  void save_own_state(Iteration version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  void hold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  std::optional<v1::SaveCheckpoint> next_held_save();
  absl::Status give_held(Iteration version, const v1::SaveCheckpoint& save)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);

  void report_end(const absl::StatusOr<Iteration>& trained)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  void report_checkpoint_failure(Iteration version, const std::string& reason, MissingPart why);

  void wake(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void close_client() ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  void close_giver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_thread_);
  bool is_halting();

  const WorkerServices services_;
  const WorkerNodeOptions& options_;
  const v1::Assignment assignment_;
  const Epoch epoch_;
  const std::unique_ptr<FrameworkJob> framework_job_ ABSL_PT_GUARDED_BY(job_thread_);
  const std::shared_ptr<const DataProbe> data_probe_;
  StateReader state_reader_;
  std::thread thread_;

  ThreadRole job_thread_;  ///< of run(), and so of the trainer
  JobSpec job_ ABSL_GUARDED_BY(job_thread_);
  WorkerRank rank_ ABSL_GUARDED_BY(job_thread_);
  std::optional<RestoreSource> restore_ ABSL_GUARDED_BY(job_thread_);  ///< where the run continues
  Iteration first_iteration_ ABSL_GUARDED_BY(job_thread_) = 0;
  bool restoring_ ABSL_GUARDED_BY(job_thread_) = false;  ///< while a checkpoint is read
  std::string own_state_address_
      ABSL_GUARDED_BY(job_thread_);  ///< address of a server that holds worker 0's own state

  std::atomic<bool> cancelled_{false};
  /// No iteration is to come.
  const std::shared_ptr<std::atomic<bool>> trained_ = std::make_shared<std::atomic<bool>>(false);
  Mutex mutex_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool halting_ ABSL_GUARDED_BY(mutex_) = false;  ///< training has ended, its memory stays
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status sync_failure_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::SaveCheckpoint> held_save_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TrafficProbe> traffic_ ABSL_GUARDED_BY(mutex_);
  // Changed by the job's thread under mutex_; read by it without, by others under mutex_.
  std::unique_ptr<SyncClient> sync_;
  std::unique_ptr<CheckpointGiver> giver_;
  std::unique_ptr<StateSender> states_;  ///< of worker 0, where the network has such a state
};

}  // namespace poseidon
