#include "worker/native_framework.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "models/net/initialise.h"
#include "spdlog/spdlog.h"
#include "worker/data/feed/batches.h"
#include "worker/data/formats/dataset_identity.h"
#include "worker/data/formats/storage_failure.h"
#include "worker/engine/cpu/parallel.h"
#include "worker/engine/model_file.h"
#include "worker/executor_factors.h"
#include "worker/measure_compute.h"
#include "worker/trainer.h"

namespace poseidon {
namespace {

/// Initial values that are worth a thread of their own.
constexpr std::int64_t kInitialiseGrain = 1 << 16;
/// To compute a larger batch takes longer than to find out how many samples there are.
constexpr std::int64_t kLargeBatch = 4096;

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

absl::StatusOr<DatasetIdentity> identify(const Dataset& dataset) {
  POSEIDON_ASSIGN_OR_RETURN(const DatasetIdentity identity, identity_of(dataset));
  if (identity.digest == 0) {
    spdlog::warn(
        "{}: only the number of samples is compared with other workers, because one of the {} "
        "samples to compare cannot be read ('poseidon data check' names it)",
        dataset.name(), std::min(dataset.size(), kIdentitySamples));
  }
  return identity;
}

ExecutorOptions executor_options(const NativeFrameworkOptions& options, const JobSpec& job) {
  return {.batch_size = job.batch_size / job.micro_batches,
          .seed = job.init.seed,
          .threads = options.threads,
          .precision = job.precision};
}

class NativeJob final : public FrameworkJob {
 public:
  explicit NativeJob(const NativeFrameworkOptions& options) : options_(options) {}

  absl::Status prepare(const FrameworkTask& task) override {
    task_ = task;
    POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(task.job->model, "."));
    POSEIDON_RETURN_IF_ERROR(check_plan_fits(*task.plan, net));
    // The data first: too few samples are found at once, memory for a batch takes its time.
    POSEIDON_RETURN_IF_ERROR(prepare_data(net));
    POSEIDON_RETURN_IF_ERROR(prepare_executor(net));
    POSEIDON_ASSIGN_OR_RETURN(factors_,
                              ExecutorFactors::create(executor_, *task.plan, task.job->optimizer,
                                                      task.job->micro_batches));
    task_.plan = nullptr;
    return absl::OkStatus();
  }

  LayerMemory memory(LayerIndex layer) override {
    return {.parameters = executor_->parameters(layer),
            .gradients = executor_->gradients(layer),
            .owner = executor_->memory(layer)};
  }
  FactorEngine* factor_engine() override { return factors_.get(); }
  FactorState* factor_state() override { return factors_.get(); }
  std::optional<DataIdentity> data() const override { return data_; }
  std::shared_ptr<const DataProbe> data_probe() const override { return data_probe_; }

  std::int64_t own_state_elements() const override { return executor_->net().statistics_count(); }
  absl::Status read_own_state(std::span<float> values) override {
    return executor_->read_statistics(values);
  }
  absl::Status write_own_state(std::span<const float> values) override {
    return executor_->write_statistics(values);
  }

  absl::StatusOr<Iteration> train(const TrainingServices& services) override {
    POSEIDON_RETURN_IF_ERROR(poseidon::train({.job = task_.job,
                                              .first_iteration = task_.first_iteration(),
                                              .rank = task_.rank,
                                              .executor = executor_.get(),
                                              .sync = services.sync,
                                              .train = train_.get(),
                                              .test = test_.get(),
                                              .traffic = services.traffic,
                                              .cancelled = task_.cancelled,
                                              .events = services.events}));
    return task_.job->iterations;
  }
  absl::Status give_model(
      const std::function<absl::Status(std::span<const std::string_view> pieces)>& take) override {
    POSEIDON_ASSIGN_OR_RETURN(const EncodedModel model, encode_model(*executor_));
    return take(model.pieces());
  }

 private:
  absl::Status prepare_data(const NetSpec& net) {
    const JobSpec& job = *task_.job;
    const BatchPlacement placement{
        .workers = task_.plan->workers(),
        .rank = task_.rank.value(),
        .batch_size = job.batch_size,
        .samples_before = task_.restore != nullptr ? task_.restore->samples : 0};
    const BatchOptions options{.threads = options_.data_threads,
                               .probe = data_probe_,
                               .log = [](const std::string& text) { spdlog::warn("{}", text); }};
    POSEIDON_ASSIGN_OR_RETURN(
        train_, TrainBatches::open(job.data, net.input_shape, net.classes, placement, options));
    POSEIDON_ASSIGN_OR_RETURN(data_.train, identify(train_->dataset()));
    if (!job.data.test) return absl::OkStatus();
    // Tests have the engine's batch, and no positions in the run that it would change.
    BatchPlacement test_placement = placement;
    test_placement.batch_size = job.batch_size / job.micro_batches;
    POSEIDON_ASSIGN_OR_RETURN(
        test_, TestBatches::open(job.data, net.input_shape, net.classes, test_placement, options));
    POSEIDON_ASSIGN_OR_RETURN(data_.test, identify(test_->dataset()));
    return absl::OkStatus();
  }

  absl::Status prepare_executor(const NetSpec& net) {
    POSEIDON_ASSIGN_OR_RETURN(
        executor_, options_.engine.make_executor(net, executor_options(options_, *task_.job)));
    // Only worker 0's parameters count; it sends them to the servers, from which all workers get
    // them.
    if (task_.restore != nullptr) return absl::OkStatus();
    if (task_.rank == WorkerRank(0)) {
      initialise_parameters(
          net, task_.job->init.seed,
          [executor = executor_.get()](LayerIndex layer) { return executor->parameters(layer); },
          until_stopped([](std::int64_t items,
                           const auto& body) { parallel_for(items, kInitialiseGrain, body); },
                        kInitialisePiece, [this] { return task_.cancelled->load(); }));
    }
    if (*task_.cancelled) return absl::CancelledError("the job was stopped");
    return task_.job->init.weights.empty() ? absl::OkStatus() : load_initial_weights(net);
  }

  absl::Status load_initial_weights(const NetSpec& net) {
    const InitSpec& init = task_.job->init;
    const bool is_first = task_.rank == WorkerRank(0);
    if (!is_first && net.statistics_count() == 0) return absl::OkStatus();
    POSEIDON_ASSIGN_OR_RETURN(
        const WeightsReport report,
        load_weights(init.weights, init.rename,
                     is_first ? WeightsPart::kAll : WeightsPart::kStatistics, *executor_));
    if (is_first) spdlog::info("{}: {}", init.weights, weights_report_to_text(report));
    return absl::OkStatus();
  }

  const NativeFrameworkOptions options_;
  const std::shared_ptr<DataProbe> data_probe_ = std::make_shared<DataProbe>();
  FrameworkTask task_;
  std::shared_ptr<Executor> executor_;
  std::unique_ptr<ExecutorFactors> factors_;  ///< null when no layer goes by SFB
  DataIdentity data_;
  std::unique_ptr<TrainBatches> train_;
  std::unique_ptr<TestBatches> test_;
};

}  // namespace

std::unique_ptr<FrameworkJob> NativeFramework::begin_job() {
  return std::make_unique<NativeJob>(options_);
}

absl::Status NativeFramework::measure(const v1::CalibrateCompute& task,
                                      const std::atomic<bool>& cancelled,
                                      v1::CalibrationReport& report) {
  if (task.workers() == 0) return absl::InvalidArgumentError("a job of no worker");
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(task.job_json()));
  POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(job.model, "."));
  if (job.batch_size > kLargeBatch) {
    POSEIDON_RETURN_IF_ERROR(
        check_enough_samples(job.data, net.classes,
                             {.workers = task.workers(), .rank = 0, .batch_size = job.batch_size}));
  }
  POSEIDON_ASSIGN_OR_RETURN(std::shared_ptr<Executor> executor,
                            options_.engine.make_executor(net, executor_options(options_, job)));
  const SystemClock clock;
  POSEIDON_ASSIGN_OR_RETURN(const ComputeSpeed speed,
                            measure_compute(executor, {.batch_size = job.batch_size,
                                                       .micro_batches = job.micro_batches,
                                                       .workers = task.workers(),
                                                       .iterations = job.iterations,
                                                       .optimizer = job.optimizer,
                                                       .max_time = Milliseconds(task.max_ms()),
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

absl::Status NativeFramework::broken_by(const absl::Status& failure) {
  if (!is_storage_failure(failure)) return device_failure(options_.engine, failure);
  return absl::UnavailableError(
      absl::StrCat("samples cannot be read on this machine any more, and this worker ends: ",
                   failure.message()));
}

}  // namespace poseidon
