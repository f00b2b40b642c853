#pragma once

// One assignment of a worker, on a thread of its own: network, data, restore from a checkpoint,
// synchronisation, training, tests, model, and reports to the coordinator.
//
// Called by: worker/worker_node.h, with the coordinator's Assignment. Calls: worker/trainer.h.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/restore_source.h"
#include "common/job/job.h"
#include "common/node/control_client.h"
#include "common/node/node_counters.h"
#include "common/pages/node_metrics.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"
#include "sync/client/sync_client.h"
#include "sync/states/checkpoint_giver.h"
#include "sync/states/state_reader.h"
#include "sync/states/state_sender.h"
#include "worker/data/feed/batches.h"
#include "worker/engine/engine.h"
#include "worker/executor_factors.h"
#include "worker/trainer.h"

namespace poseidon {

/// The same for all jobs of a worker.
struct WorkerNodeOptions {
  Engine engine;
  int threads = 0;              ///< of the engine; 0: all cores
  int data_threads = 1;         ///< that read and decode; 1 to kMaxDataThreads
  SyncClientOptions sync;       ///< but for sync.syncer.sfb, which the job decides
  Transport* stores = nullptr;  ///< speaks kStoreMethod, on the loop of the rest
  /// Of the transports of synchronisation, to the plan's Plan::window_bytes. May be null.
  std::function<void(std::int64_t)> set_windows;
  /// How long the coordinator may be away: as in ControlClientOptions.
  Milliseconds away_timeout{3600000};
  PeerAccess peers;  ///< for layers that go by SFB; what it points to outlives the node
  std::shared_ptr<NodeProbe> probe = std::make_shared<NodeProbe>();
  CounterSources counters;  ///< of the heartbeats
};

/// The services that a job uses. All outlive it.
struct WorkerServices {
  Transport* transport = nullptr;  ///< of synchronisation
  RefusalCounts* refusals = nullptr;
  NodeMetrics* metrics = nullptr;  ///< may be null
  ControlClient* client = nullptr;
  /// The process can no longer use the device or the samples, and should end without freeing them.
  /// The job calls it last, on its own thread.
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

  absl::Status before_backward(Iteration iteration) override;
  absl::Status before_test(Iteration steps) override;
  void iteration_done(Iteration iteration, double loss) override;
  void tested(Iteration steps, const ForwardResult& result) override;

 private:
  void run();
  absl::Status prepare_and_train();
  absl::Status prepare_engine(const NetSpec& net);
  absl::Status load_initial_weights(const NetSpec& net);
  absl::Status prepare_data(const NetSpec& net, std::uint32_t workers);
  absl::Status restore_own_state(const Plan& plan);
  absl::Status prepare_synchronisation(Plan plan);
  SyncClientOptions sync_options(const Plan& plan);
  std::shared_ptr<TrafficProbe> show_progress(const Plan& plan);
  absl::Status wait_for_start();
  void wait_for_stop();
  Nanoseconds stop_timeout() const;
  void log_no_word(const char* awaited, const char* then) const;

  void save_own_state(Iteration version);
  void hold();
  std::optional<v1::SaveCheckpoint> next_held_save();
  absl::Status give_held(Iteration version, const v1::SaveCheckpoint& save);

  void report_end(const absl::Status& status);
  void report_checkpoint_failure(Iteration version, const std::string& reason, MissingPart why);

  void wake(const absl::Status& reason);
  void close_client();
  void close_giver();
  bool is_halting();

  const WorkerServices services_;
  const WorkerNodeOptions& options_;
  const v1::Assignment assignment_;
  const Epoch epoch_;
  const std::shared_ptr<DataProbe> data_probe_ = std::make_shared<DataProbe>();
  StateReader state_reader_;
  std::thread thread_;

  // The job's thread only.
  JobSpec job_;
  WorkerRank rank_;
  std::optional<RestoreSource> restore_;  ///< where the run goes on from
  Iteration first_iteration_ = 0;
  bool restoring_ = false;         ///< while a checkpoint is read
  std::string own_state_address_;  ///< address of a server that holds worker 0's own state
  std::shared_ptr<Executor> executor_;
  std::unique_ptr<ExecutorFactors> factors_;  ///< null when no layer goes by SFB
  DataIdentity data_;
  std::unique_ptr<TrainBatches> train_;
  std::unique_ptr<TestBatches> test_;

  std::atomic<bool> cancelled_{false};
  /// Guards all below; sync_, giver_ and states_ are read without it on the job's thread only.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  bool halting_ = false;  ///< training has ended, its memory stays
  bool stopped_ = false;
  absl::Status sync_failure_;
  std::optional<v1::SaveCheckpoint> held_save_;
  std::shared_ptr<TrafficProbe> traffic_;
  std::unique_ptr<SyncClient> sync_;
  std::unique_ptr<CheckpointGiver> giver_;
  std::unique_ptr<StateSender> states_;  ///< of worker 0, where the network has such a state
};

}  // namespace poseidon
