#include "worker/worker_node.h"

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/job.h"
#include "common/log.h"
#include "common/node_report.h"
#include "common/plan_proto.h"
#include "common/restore_source.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "spdlog/spdlog.h"
#include "worker/checkpoint_giver.h"
#include "worker/data/batches.h"
#include "worker/engine/cpu/parallel.h"
#include "worker/executor_factors.h"
#include "worker/measure_compute.h"
#include "worker/model_file.h"
#include "worker/state_sender.h"
#include "worker/trainer.h"

namespace poseidon {
namespace {

/// The coordinator has a deadline of its own for workers that do not get ready; this one only keeps
/// the wait from being endless should it vanish without a word.
constexpr std::chrono::minutes kStartTimeout{30};
/// Likewise for the end of the job, once this worker's part is done: longer than the coordinator
/// may be away (--coordinator-away-s).
constexpr std::chrono::hours kStopTimeout{2};

/// Between two looks for worker 0's running statistics, which are on their way when parameters of
/// the same version are here ...
constexpr Milliseconds kStatisticsPause{10};
/// ... and how long they may take in all.
constexpr Milliseconds kStatisticsTimeout{30000};

/// Initial values that are worth a thread of their own.
constexpr std::int64_t kInitialiseGrain = 1 << 16;

/// The plan and the network must speak of the same layers, or gradients would go to the wrong
/// place.
absl::Status check_plan_fits(const Plan& plan, const NetSpec& net) {
  const std::vector<std::size_t> layers = net.parameter_layers();
  bool fits = layers.size() == plan.layers.size();
  for (std::size_t l = 0; fits && l < layers.size(); ++l) {
    fits = plan.layers[l].name == net.layers[layers[l]].name &&
           plan.layers[l].parameters == net.layers[layers[l]].parameter_count();
  }
  if (fits) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "the plan has ", plan.layers.size(), " parameter layers, network ", net.name, " has ",
      layers.size(), ", or they differ: are coordinator and worker of the same version?"));
}

}  // namespace

/// One assignment, on its own thread.
class WorkerNode::Job final : public TrainerEvents {
 public:
  Job(WorkerNode* node, v1::Assignment assignment)
      : node_(node), assignment_(std::move(assignment)), epoch_(assignment_.plan().epoch()) {}

  Epoch epoch() const { return epoch_; }
  std::shared_ptr<TrafficProbe> traffic() {
    const std::lock_guard lock(mutex_);
    return traffic_;
  }

  std::shared_ptr<const DataProbe> data_probe() const { return data_probe_; }

  void launch() {
    thread_ = std::thread([this] { run(); });
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  void start() {
    const std::lock_guard lock(mutex_);
    started_ = true;
    changed_.notify_all();
  }

  void cancel(const absl::Status& reason) {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    stopped_ = true;
    wake(reason);
    changed_.notify_all();
  }

  /// Another worker is lost: training ends, but what it has made stays until stop.
  void halt() {
    const std::lock_guard lock(mutex_);
    halting_ = true;
    cancelled_ = true;
    wake(absl::CancelledError("another worker is lost"));
    changed_.notify_all();
  }

  void save_checkpoint(const v1::SaveCheckpoint& save) {
    const std::lock_guard lock(mutex_);
    if (save.held()) {
      held_save_ = save;
      changed_.notify_all();
    } else if (giver_ != nullptr) {
      giver_->save_at(static_cast<Iteration>(save.iteration()));
    }
  }

  /// What this worker alone has of the version that gradients are about to change is held
  /// elsewhere.
  absl::Status before_backward(Iteration iteration) override {
    return states_ == nullptr ? absl::OkStatus() : states_->wait(iteration);
  }

  /// Everybody tests with worker 0's running statistics: they are the model's, and the figures do
  /// not depend on who was restarted. (Training does not read them.)
  absl::Status before_test(Iteration steps) override {
    std::vector<float> values(static_cast<std::size_t>(executor_->net().statistics_count()));
    if (values.empty() || rank_ == WorkerRank(0)) return absl::OkStatus();
    // From then on worker 0's are on their way.
    POSEIDON_RETURN_IF_ERROR(sync_->wait_all_parameters(steps));
    POSEIDON_RETURN_IF_ERROR(fetch_statistics(steps, values));
    return executor_->write_statistics(values);
  }

  void iteration_done(Iteration iteration, double loss) override {
    save_own_state(iteration + 1);
    v1::NodeMessage message;
    v1::IterationReport& report = *message.mutable_iteration();
    report.set_epoch(epoch_.value());
    report.set_iteration(static_cast<std::uint64_t>(iteration));
    report.set_loss(loss);
    node_->client_->send(std::move(message));
  }

  void tested(Iteration steps, const ForwardResult& result) override {
    v1::NodeMessage message;
    v1::TestReport& report = *message.mutable_test();
    report.set_epoch(epoch_.value());
    report.set_iteration(static_cast<std::uint64_t>(steps));
    report.set_loss_sum(result.loss_sum);
    report.set_correct(static_cast<std::uint64_t>(result.correct));
    report.set_samples(static_cast<std::uint64_t>(result.samples));
    node_->client_->send(std::move(message));
  }

 private:
  void run() {
    const absl::Status status = prepare_and_train();
    if (!is_halting()) {
      if (!status.ok()) close_client();
      report_end(status);
      if (status.ok()) wait_for_stop();
    }
    close_client();
    if (is_halting()) hold();
    close_giver();
  }

  /// Ends the waits of the job's thread. Under mutex_.
  void wake(const absl::Status& reason) {
    if (sync_ != nullptr) sync_->cancel(reason);
    if (states_ != nullptr) states_->cancel(reason);
  }

  /// The streams go with the client, and then the memory may.
  void close_client() {
    std::unique_ptr<SyncClient> closing;
    const std::lock_guard lock(mutex_);  // nobody may cancel it from now on
    closing = std::move(sync_);
  }

  void close_giver() {
    std::unique_ptr<CheckpointGiver> closing;
    std::unique_ptr<StateSender> closing_too;
    const std::lock_guard lock(mutex_);
    closing = std::move(giver_);
    closing_too = std::move(states_);
  }

  bool is_halting() {
    const std::lock_guard lock(mutex_);
    return halting_ && !stopped_;
  }

  /// Says what is still here of the versions around the iteration in flight, and gives one of them
  /// when asked.
  void hold() {
    CheckpointGiver::Held held{.oldest = 1, .newest = 0};
    if (giver_ != nullptr) {
      held = giver_->held();
    }
    v1::NodeMessage message;
    message.mutable_halted()->set_epoch(epoch_.value());
    message.mutable_halted()->set_oldest(static_cast<std::uint64_t>(held.oldest));
    message.mutable_halted()->set_newest(static_cast<std::uint64_t>(held.newest));
    node_->client_->send(std::move(message));
    spdlog::info("epoch {}: halted", epoch_.value());
    // More than once where a coordinator died in the middle of it.
    while (const std::optional<v1::SaveCheckpoint> save = next_held_save()) {
      const auto version = static_cast<Iteration>(save->iteration());
      if (const absl::Status given = give_held(version, *save); !given.ok()) {
        report_checkpoint_failure(version, std::string(given.message()), /*too_late=*/false);
      }
    }
  }

  /// Nothing once the epoch is over.
  std::optional<v1::SaveCheckpoint> next_held_save() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kStopTimeout, [this] { return stopped_ || held_save_; });
    return stopped_ ? std::nullopt : std::exchange(held_save_, std::nullopt);
  }

  absl::Status give_held(Iteration version, const v1::SaveCheckpoint& save) {
    if (giver_ == nullptr) return absl::FailedPreconditionError("this worker holds nothing");
    std::set<WorkerRank> lost;
    for (const std::uint32_t rank : save.lost_ranks()) lost.insert(WorkerRank(rank));
    return giver_->give_held(version, lost,
                             [this](LayerIndex layer) -> std::array<std::span<const float>, 3> {
                               return {executor_->parameters(layer), factors_->state(layer, 0),
                                       factors_->state(layer, 1)};
                             });
  }

  void report_end(const absl::Status& status) {
    v1::NodeMessage message;
    if (status.ok()) {
      spdlog::info("epoch {}: finished", epoch_.value());
      message.mutable_finished()->set_epoch(epoch_.value());
    } else if (cancelled_) {
      spdlog::info("epoch {}: stopped", epoch_.value());
      return;
    } else {
      spdlog::error("epoch {}: {}", epoch_.value(), std::string(status.message()));
      message.mutable_failed()->set_epoch(epoch_.value());
      message.mutable_failed()->set_reason(to_utf8(from_absl(status.message())));
      message.mutable_failed()->set_failure(failure_of(status, restoring_));
    }
    node_->client_->send(std::move(message));
  }

  /// Of worker 0: the running statistics after so many iterations, for the checkpoint that is due
  /// and for the servers' memory.
  void save_own_state(Iteration version) {
    const bool due = giver_->wants_own_state(version);
    if (rank_ != WorkerRank(0)) return;
    std::vector<float> values(static_cast<std::size_t>(executor_->net().statistics_count()));
    if (const absl::Status read = executor_->read_statistics(values); !read.ok()) {
      if (due) report_checkpoint_failure(version, std::string(read.message()), /*too_late=*/false);
      return;
    }
    if (states_ != nullptr) states_->send(version, values);
    if (due) giver_->own_state_at(version, std::move(values));
  }

  /// Any thread. A checkpoint that fails stops no training.
  void report_checkpoint_failure(Iteration version, const std::string& reason, bool too_late) {
    spdlog::error("epoch {}: no checkpoint at iteration {}: {}", epoch_.value(), version, reason);
    v1::NodeMessage message;
    v1::CheckpointReport& report = *message.mutable_checkpoint();
    report.set_epoch(epoch_.value());
    report.set_iteration(static_cast<std::uint64_t>(version));
    report.set_reason(to_utf8(reason));
    report.set_too_late(too_late);
    node_->client_->send(std::move(message));
  }

  absl::Status prepare_and_train() {
    POSEIDON_ASSIGN_OR_RETURN(Plan plan, plan_from_message(assignment_.plan()));
    POSEIDON_ASSIGN_OR_RETURN(job_, parse_job(assignment_.job_json()));
    POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(job_.model, "."));
    POSEIDON_RETURN_IF_ERROR(check_plan_fits(plan, net));
    if (assignment_.index() >= plan.workers()) {
      return absl::InternalError(
          absl::StrCat("assigned rank ", assignment_.index(), " of ", plan.workers()));
    }
    rank_ = WorkerRank(assignment_.index());
    if (assignment_.has_restore()) {
      POSEIDON_ASSIGN_OR_RETURN(restore_, restore_from_message(assignment_.restore()));
      first_iteration_ = restore_->iteration();
    }
    POSEIDON_RETURN_IF_ERROR(prepare_engine(net));
    POSEIDON_RETURN_IF_ERROR(prepare_data(net, plan.workers()));
    POSEIDON_ASSIGN_OR_RETURN(
        factors_, ExecutorFactors::create(executor_, plan, job_.optimizer, job_.micro_batches));
    if (restore_) {
      restoring_ = true;
      POSEIDON_RETURN_IF_ERROR(restore_own_state(plan));
      restoring_ = false;
    }
    POSEIDON_RETURN_IF_ERROR(prepare_synchronisation(std::move(plan)));
    POSEIDON_RETURN_IF_ERROR(wait_for_start());
    POSEIDON_RETURN_IF_ERROR(train({.job = &job_,
                                    .first_iteration = first_iteration_,
                                    .rank = rank_,
                                    .executor = executor_.get(),
                                    .sync = sync_.get(),
                                    .train = train_.get(),
                                    .test = test_.get(),
                                    .traffic = traffic().get(),
                                    .cancelled = &cancelled_,
                                    .events = this}));
    if (rank_ != WorkerRank(0)) return absl::OkStatus();
    POSEIDON_ASSIGN_OR_RETURN(const EncodedModel model, EncodedModel::encode(*executor_));
    return node_->client_->upload_model(epoch_.value(), model.pieces());
  }

  absl::Status prepare_engine(const NetSpec& net) {
    POSEIDON_ASSIGN_OR_RETURN(executor_,
                              node_->options_.engine.make_executor(
                                  net, {.batch_size = job_.batch_size / job_.micro_batches,
                                        .seed = job_.init.seed,
                                        .threads = node_->options_.threads,
                                        .precision = job_.precision}));
    // Only worker 0's parameters count; it sends them to the servers, and everybody gets them from
    // there.
    if (restore_) return absl::OkStatus();
    if (rank_ == WorkerRank(0)) {
      initialise_parameters(
          net, job_.init.seed, [this](LayerIndex layer) { return executor_->parameters(layer); },
          [](std::int64_t items, const auto& body) {
            parallel_for(items, kInitialiseGrain, body);
          });
    }
    return job_.init.weights.empty() ? absl::OkStatus() : load_initial_weights(net);
  }

  absl::Status load_initial_weights(const NetSpec& net) {
    const bool is_first = rank_ == WorkerRank(0);
    if (!is_first && net.statistics_count() == 0) return absl::OkStatus();
    POSEIDON_ASSIGN_OR_RETURN(
        const WeightsReport report,
        load_weights(job_.init.weights, job_.init.rename,
                     is_first ? WeightsPart::kAll : WeightsPart::kStatistics, *executor_));
    if (is_first) spdlog::info("{}: {}", job_.init.weights, weights_report_to_text(report));
    return absl::OkStatus();
  }

  absl::Status prepare_data(const NetSpec& net, std::uint32_t workers) {
    const BatchPlacement placement{.workers = workers,
                                   .rank = rank_.value(),
                                   .batch_size = job_.batch_size,
                                   .first_iteration = first_iteration_,
                                   .samples_before = restore_ ? restore_->samples : 0};
    const BatchOptions options{.threads = node_->options_.data_threads,
                               .probe = data_probe_,
                               .log = [](const std::string& text) { spdlog::warn("{}", text); }};
    POSEIDON_ASSIGN_OR_RETURN(
        train_, TrainBatches::open(job_.data, net.input_shape, net.classes, placement, options));
    if (!job_.data.test) return absl::OkStatus();
    // Tests have the engine's batch, and no positions in the run that it would change.
    BatchPlacement test_placement = placement;
    test_placement.batch_size = job_.batch_size / job_.micro_batches;
    POSEIDON_ASSIGN_OR_RETURN(
        test_, TestBatches::open(job_.data, net.input_shape, net.classes, test_placement, options));
    return absl::OkStatus();
  }

  absl::Status prepare_synchronisation(Plan plan) {
    SyncClientOptions options = node_->options_.sync;
    if (node_->options_.set_windows) node_->options_.set_windows(plan.window_bytes);
    options.syncer.sfb.piece_bytes =
        plan.chunk_bytes > 0 ? plan.chunk_bytes : job_.sync.largest_chunk_bytes();
    options.syncer.sfb.iterations = job_.iterations;
    options.syncer.first_iteration = first_iteration_;
    options.stepping = [this](LayerIndex layer, Iteration version) {
      giver_->keep(layer, version, executor_->parameters(layer), factors_->state(layer, 0),
                   factors_->state(layer, 1));
    };
    options.stepped = [this](LayerIndex layer, Iteration version) {
      giver_->layer_at(layer, version, executor_->parameters(layer), factors_->state(layer, 0),
                       factors_->state(layer, 1));
    };
    options.failed = [this](const absl::Status& status) {
      const std::lock_guard lock(mutex_);
      sync_failure_ = status;
      changed_.notify_all();
    };
    std::vector<LayerMemory> layers;
    for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
      layers.push_back({.parameters = executor_->parameters(LayerIndex(l)),
                        .gradients = executor_->gradients(LayerIndex(l)),
                        .owner = executor_});
    }
    NodeProbe& probe = *node_->options_.probe;
    probe.set(NodeGauge::kRank, rank_.value());
    probe.set(NodeGauge::kEpoch, static_cast<std::int64_t>(epoch_.value()));
    probe.set(NodeGauge::kIteration, first_iteration_);
    auto traffic = std::make_shared<TrafficProbe>(plan.layers.size(), node_->options_.probe);
    if (node_->metrics_ != nullptr) {
      node_->metrics_->show(
          {.plan = std::make_shared<const Plan>(plan), .traffic = traffic, .data = data_probe_});
    }
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_) return absl::CancelledError("the job was stopped");
      traffic_ = std::move(traffic);
      giver_ = std::make_unique<CheckpointGiver>(
          node_->options_.stores, plan, rank_,
          CheckpointGiverOptions{.first_iteration = first_iteration_,
                                 .every_iterations = job_.checkpoint.every_iterations,
                                 .chunk_bytes = job_.sync.largest_chunk_bytes(),
                                 .replicas = job_.checkpoint.replicas,
                                 .transfer = {}},
          [this](Iteration version, const std::string& reason, bool too_late) {
            report_checkpoint_failure(version, reason, too_late);
          });
      std::vector<std::string> keepers = own_state_addresses(
          checkpoint_pieces(plan, job_.sync.largest_chunk_bytes(), job_.checkpoint.replicas), plan);
      own_state_address_ = keepers.front();
      if (rank_ == WorkerRank(0) && executor_->net().statistics_count() > 0) {
        states_ = std::make_unique<StateSender>(node_->options_.stores, epoch_, std::move(keepers));
      }
      sync_ = std::make_unique<SyncClient>(node_->transport_, std::move(plan), rank_,
                                           std::move(layers), options, traffic_.get(),
                                           node_->refusals_, node_->options_.peers, factors_.get());
    }
    sync_->start();
    POSEIDON_RETURN_IF_ERROR(sync_->wait_all_parameters(first_iteration_));
    if (states_ != nullptr) {
      save_own_state(first_iteration_);
      POSEIDON_RETURN_IF_ERROR(states_->wait(first_iteration_));
    }
    v1::NodeMessage ready;
    ready.mutable_ready()->set_epoch(epoch_.value());
    node_->client_->send(std::move(ready));
    spdlog::info("job {}: worker {} is ready, epoch {}", job_.name, rank_.value(), epoch_.value());
    return absl::OkStatus();
  }

  /// What no server keeps: layers that go by SFB, with their optimizer state, and the running
  /// statistics, of which everybody takes worker 0's.
  absl::Status restore_own_state(const Plan& plan) {
    std::vector<StoreRequest> requests;
    const int slots = optimizer_state_slots(job_.optimizer);
    for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
      if (plan.layers[l].scheme != Scheme::kSfb) continue;
      const auto take = [this, layer = LayerIndex(l)](std::uint32_t slot, std::int64_t offset,
                                                      const Bytes& values) {
        const std::span<float> whole = slot == 0
                                           ? executor_->parameters(layer)
                                           : factors_->state(layer, static_cast<int>(slot) - 1);
        copy_payload(
            values, whole.subspan(static_cast<std::size_t>(offset), values.size() / sizeof(float)));
        return absl::OkStatus();
      };
      POSEIDON_RETURN_IF_ERROR(append_range_requests(
          *restore_, LayerIndex(l), 0, plan.layers[l].parameters, slots, take, requests));
    }
    std::vector<float> statistics(static_cast<std::size_t>(executor_->net().statistics_count()));
    const auto take = [&statistics](const Bytes& data) {
      return copy_statistics(data, statistics);
    };
    POSEIDON_RETURN_IF_ERROR(append_own_state_request(*restore_, take, requests));
    POSEIDON_RETURN_IF_ERROR(fetch(std::move(requests)));
    return executor_->write_statistics(statistics);
  }

  /// Worker 0's, from a server's memory.
  absl::Status fetch_statistics(Iteration version, std::vector<float>& values) {
    StoreRequest request;
    request.address = own_state_address_;
    request.header.operation = StoreOperation::kReadHeld;
    request.header.snapshot = snapshot_id(epoch_, version);
    request.on_data = [&values](const Bytes& data) { return copy_statistics(data, values); };
    absl::Status status;
    for (Milliseconds waited{0}; waited < kStatisticsTimeout; waited += kStatisticsPause) {
      status = fetch({request});
      if (!absl::IsNotFound(status)) return status;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kStatisticsPause, [this] { return cancelled_.load(); });
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "after ", kStatisticsTimeout.count(), " ms: ", status.message(), "; is worker 0 there?"));
  }

  /// What came over the network into memory of a known size.
  static absl::Status copy_statistics(const Bytes& data, std::vector<float>& values) {
    if (data.size() != values.size() * sizeof(float)) {
      return absl::DataLossError(absl::StrCat("running statistics of ", data.size(), " bytes for ",
                                              values.size(), " values"));
    }
    copy_payload(data, values);
    return absl::OkStatus();
  }

  /// Waits on the job's thread for a transfer on the loop.
  absl::Status fetch(std::vector<StoreRequest> requests) {
    struct Fetch {
      std::unique_ptr<StoreTransfer> transfer;  // the loop's
      std::optional<absl::Status> end;          // under mutex_
    };
    auto fetch = std::make_shared<Fetch>();
    auto shared = std::make_shared<std::vector<StoreRequest>>(std::move(requests));
    Transport* const stores = node_->options_.stores;
    stores->post([this, fetch, shared, stores] {
      fetch->transfer = std::make_unique<StoreTransfer>(stores);
      fetch->transfer->start(std::move(*shared),
                             [this, fetch = fetch.get()](const absl::Status& end) {
                               const std::lock_guard lock(mutex_);
                               fetch->end = end;
                               changed_.notify_all();
                             });
    });
    absl::Status status;
    {
      // The transfer has a deadline of its own.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return fetch->end || cancelled_; });
      status = fetch->end.value_or(absl::CancelledError("the job was stopped"));
    }
    auto ended = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
    stores->post([fetch, ended] {
      fetch->transfer.reset();  // from now on nobody writes to our memory
      ended->set_value();
    });
    ended->get_future().wait();  // bounded: the loop runs what is posted, and nothing on it blocks
    return status;
  }

  /// Other workers may still need what this one sent last, should a stream break: until the
  /// coordinator says that all have finished, the client stays.
  void wait_for_stop() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kStopTimeout, [this] { return stopped_ || halting_; });
  }

  absl::Status wait_for_start() {
    std::unique_lock lock(mutex_);
    const bool in_time = changed_.wait_for(
        lock, kStartTimeout, [this] { return started_ || cancelled_ || !sync_failure_.ok(); });
    if (!in_time) {
      return absl::DeadlineExceededError("the coordinator did not start the job within 30 minutes");
    }
    if (cancelled_) return absl::CancelledError("the job was stopped");
    // Others may wait for this worker, which would never come.
    return started_ ? absl::OkStatus() : sync_failure_;
  }

  WorkerNode* const node_;
  const v1::Assignment assignment_;
  const Epoch epoch_;
  const std::shared_ptr<DataProbe> data_probe_ = std::make_shared<DataProbe>();
  std::thread thread_;

  // The job's thread only.
  JobSpec job_;
  WorkerRank rank_;
  std::optional<RestoreSource> restore_;  ///< where the run goes on from
  Iteration first_iteration_ = 0;
  bool restoring_ = false;         ///< while a checkpoint is read
  std::string own_state_address_;  ///< of a server that holds worker 0's own state
  std::shared_ptr<Executor> executor_;
  std::unique_ptr<ExecutorFactors> factors_;  ///< null when no layer goes by SFB
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

WorkerNode::WorkerNode(Transport* transport, RefusalCounts* refusals, NodeMetrics* metrics,
                       LinkProbe* probe, WorkerNodeOptions options)
    : transport_(transport),
      refusals_(refusals),
      metrics_(metrics),
      options_(std::move(options)),
      calibration_(probe, [this](const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                                 v1::CalibrationReport& report) {
        return measure(task, cancelled, report);
      }) {}

WorkerNode::~WorkerNode() { end(); }

void WorkerNode::on_calibrate(const v1::Calibrate& calibrate) {
  end_job(absl::CancelledError("a new job is being prepared"));
  calibration_.begin(calibrate);
}

absl::Status WorkerNode::measure(const v1::Calibrate& task, const std::atomic<bool>& cancelled,
                                 v1::CalibrationReport& report) const {
  if (!task.has_compute()) return absl::InvalidArgumentError("a worker sums nothing");
  const v1::CalibrateCompute& compute = task.compute();
  if (compute.workers() == 0) return absl::InvalidArgumentError("a job of no worker");
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(compute.job_json()));
  POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(job.model, "."));
  POSEIDON_ASSIGN_OR_RETURN(
      std::shared_ptr<Executor> executor,
      options_.engine.make_executor(net, {.batch_size = job.batch_size / job.micro_batches,
                                          .seed = job.init.seed,
                                          .threads = options_.threads,
                                          .precision = job.precision}));
  const SystemClock clock;
  POSEIDON_ASSIGN_OR_RETURN(const ComputeSpeed speed,
                            measure_compute(executor, {.batch_size = job.batch_size,
                                                       .micro_batches = job.micro_batches,
                                                       .workers = compute.workers(),
                                                       .iterations = job.iterations,
                                                       .optimizer = job.optimizer,
                                                       .max_time = Milliseconds(compute.max_ms()),
                                                       .clock = &clock,
                                                       .cancelled = &cancelled}));
  for (const LayerTimes& layer : speed.layers) {
    v1::LayerTimesMessage& times = *report.add_layers();
    times.set_name(layer.name);
    times.set_forward_seconds(layer.forward_s);
    times.set_backward_seconds(layer.backward_s);
  }
  report.set_device_ops_per_s(speed.device_ops_per_s);
  return absl::OkStatus();
}

void WorkerNode::end_job(const absl::Status& reason) {
  calibration_.end();
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    job = std::move(job_);
    job_ = nullptr;
  }
  if (job == nullptr) return;
  job->cancel(reason);
  job->join();
  set_log_job("", 0);
  if (metrics_ != nullptr) metrics_->show({});
}

void WorkerNode::on_joined(const v1::Joined& joined) {
  set_log_node(joined.node_id());
  spdlog::info("joined as node {}{}{}", joined.node_id(), joined.note().empty() ? "" : ": ",
               joined.note());
}

void WorkerNode::on_assign(const v1::Assignment& assignment) {
  end_job(absl::CancelledError("a new assignment came"));
  set_log_job(assignment.job_id(), assignment.plan().epoch());
  auto job = std::make_shared<Job>(this, assignment);
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
  }
  job->launch();
}

void WorkerNode::on_start(const v1::Start& start) {
  const std::lock_guard lock(mutex_);
  if (job_ != nullptr && job_->epoch() == Epoch(start.epoch())) job_->start();
}

void WorkerNode::on_stop(const v1::StopJob& stop) {
  calibration_.end();
  {
    const std::lock_guard lock(mutex_);
    if (job_ == nullptr || job_->epoch() != Epoch(stop.epoch())) return;
  }
  spdlog::info("epoch {} {}: {}", stop.epoch(), stop.succeeded() ? "is done" : "failed",
               stop.reason());
  end_job(absl::CancelledError(stop.reason()));
}

void WorkerNode::on_save_checkpoint(const v1::SaveCheckpoint& save) {
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    job = job_;
  }
  if (job != nullptr && job->epoch() == Epoch(save.epoch())) {
    job->save_checkpoint(save);
  }
}

void WorkerNode::on_halt(const v1::Halt& halt) {
  const std::lock_guard lock(mutex_);
  if (job_ != nullptr && job_->epoch() == Epoch(halt.epoch())) job_->halt();
}

void WorkerNode::on_away(const absl::Status& reason) {
  spdlog::warn("coordinator out of reach: {}", std::string(reason.message()));
  options_.probe->count(NodeCount::kRetriesCoordinator);
  calibration_.end();
}

void WorkerNode::on_lost(const absl::Status& reason) {
  spdlog::warn("{}", std::string(reason.message()));
  end_job(reason);
}

void WorkerNode::fill_heartbeat(v1::Heartbeat& heartbeat) {
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    job = job_;
  }
  const std::shared_ptr<const TrafficProbe> traffic = job == nullptr ? nullptr : job->traffic();
  const std::shared_ptr<const DataProbe> data = job == nullptr ? nullptr : job->data_probe();
  fill_heartbeat_totals(traffic.get(), data.get(), *refusals_, heartbeat);
  fill_load(*options_.probe, *heartbeat.mutable_load());
}

}  // namespace poseidon
