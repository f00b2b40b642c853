#include "sync/node/worker_job.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/memory/tensor_memory.h"
#include "common/node/job_reports.h"
#include "common/plan/plan_proto.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// The coordinator has a deadline of its own for workers that do not get ready, of seven days at
/// most; this one only ends the wait when the coordinator disappears.
constexpr std::chrono::hours kStartTimeout{8 * 24};
/// Likewise for the end of the job, once this worker's part is done: by so much longer than the
/// coordinator may be away.
constexpr std::chrono::hours kStopMargin{1};

/// A store is given up after as long as any other connection to its server.
StoreTransferOptions reading(const SyncerOptions& sync) {
  return {.give_up_after = sync.give_up_after};
}
StoreTransferOptions writing(const SyncerOptions& sync) {
  return {.give_up_after = std::max(kWriting.give_up_after, sync.give_up_after)};
}
StateReaderOptions state_reader_options(const SyncerOptions& sync) {
  return {.transfer = reading(sync), .give_up_after = sync.give_up_after};
}

}  // namespace

// ---- calls of the node ----

WorkerJob::WorkerJob(const WorkerServices& services, const WorkerNodeOptions& options,
                     v1::Assignment assignment)
    : services_(services),
      options_(options),
      assignment_(std::move(assignment)),
      epoch_(assignment_.plan().epoch()),
      framework_job_(options.framework->begin_job()),
      data_probe_(framework_job_->data_probe()),
      state_reader_(options.stores, state_reader_options(options.sync.syncer)) {}

std::shared_ptr<TrafficProbe> WorkerJob::traffic() {
  const MutexLock lock(mutex_);
  return traffic_;
}

void WorkerJob::launch() {
  thread_ = std::thread([this] { run(); });
}

void WorkerJob::join() {
  if (thread_.joinable()) thread_.join();
}

void WorkerJob::start() {
  const MutexLock lock(mutex_);
  started_ = true;
  changed_.notify_all();
}

void WorkerJob::cancel(const absl::Status& reason) {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  stopped_ = true;
  wake(reason);
  changed_.notify_all();
}

void WorkerJob::halt() {
  const MutexLock lock(mutex_);
  halting_ = true;
  cancelled_ = true;
  wake(absl::CancelledError("another worker is lost"));
  changed_.notify_all();
}

void WorkerJob::note_awaited() {
  const MutexLock lock(mutex_);
  if (sync_ != nullptr) sync_->note_awaited();
}

/// Ends the waits of the job's thread.
void WorkerJob::wake(const absl::Status& reason) {
  state_reader_.cancel(reason);
  if (sync_ != nullptr) sync_->cancel(reason);
  if (states_ != nullptr) states_->cancel(reason);
}

void WorkerJob::save_checkpoint(const v1::SaveCheckpoint& save) {
  const MutexLock lock(mutex_);
  if (save.held()) {
    held_save_ = save;
    changed_.notify_all();
  } else if (giver_ != nullptr) {
    giver_->save_at(static_cast<Iteration>(save.iteration()));
  }
}

// ---- from the first step to the last ----

void WorkerJob::run() {
  const ScopedThreadRole role(job_thread_);
  const absl::StatusOr<Iteration> trained = prepare_and_train();
  const absl::Status& status = trained.status();
  if (!status.ok()) {
    const absl::Status failure = options_.framework->broken_by(status);
    if (!failure.ok()) {
      services_.node_failed(failure);
      return;
    }
  }
  if (!is_halting()) {
    if (!status.ok()) close_client();
    report_end(trained);
    // Also after a failure: when a node was unreachable, the coordinator requests the state that
    // this worker has.
    wait_for_stop();
  }
  close_client();
  if (is_halting()) hold();
  close_giver();
}

absl::StatusOr<Iteration> WorkerJob::prepare_and_train() {
  POSEIDON_ASSIGN_OR_RETURN(Plan plan, plan_from_assignment(assignment_, AssignedRole::kWorker));
  POSEIDON_ASSIGN_OR_RETURN(job_, parse_job(assignment_.job_json()));
  rank_ = WorkerRank(assignment_.index());
  if (assignment_.has_restore()) {
    POSEIDON_ASSIGN_OR_RETURN(restore_, restore_from_message(assignment_.restore()));
    first_iteration_ = restore_->iteration();
  }
  POSEIDON_RETURN_IF_ERROR(framework_job_->prepare({.job = &job_,
                                                    .plan = &plan,
                                                    .rank = rank_,
                                                    .restore = restore_ ? &*restore_ : nullptr,
                                                    .cancelled = &cancelled_}));
  if (restore_) {
    restoring_ = true;
    POSEIDON_RETURN_IF_ERROR(restore_own_state(plan));
    restoring_ = false;
  }
  POSEIDON_RETURN_IF_ERROR(prepare_synchronisation(std::move(plan)));
  POSEIDON_RETURN_IF_ERROR(wait_for_start());
  POSEIDON_ASSIGN_OR_RETURN(
      const Iteration trained,
      framework_job_->train({.sync = sync_.get(), .traffic = traffic().get(), .events = this}));
  *trained_ = true;
  if (rank_ != WorkerRank(0)) return trained;
  POSEIDON_RETURN_IF_ERROR(
      framework_job_->give_model([this](std::span<const std::string_view> pieces) {
        return services_.client->upload_model(epoch_.value(), pieces);
      }));
  return trained;
}

/// State that no server keeps: SFB layers with their optimizer state, and own state, for which all
/// workers take worker 0's.
absl::Status WorkerJob::restore_own_state(const Plan& plan) {
  std::vector<StoreRequest> requests;
  // The loop may not wait for a device, which has the optimizer's slots.
  struct SlotRead {
    LayerIndex layer;
    StateRange range;
    std::vector<float> values;
  };
  std::deque<SlotRead> slots_read;
  const int slots = optimizer_state_slots(job_.optimizer);
  const PieceIndex pieces(restore_->pieces);
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    if (plan.layers[l].scheme != Scheme::kSfb) continue;
    const auto take = [parameters = framework_job_->memory(LayerIndex(l)).parameters, &slots_read,
                       layer = LayerIndex(l)](std::uint32_t slot, std::int64_t offset,
                                              const Bytes& values) {
      const StateRange range{.slot = static_cast<int>(slot),
                             .offset = offset,
                             .elements = static_cast<std::int64_t>(values.size() / sizeof(float))};
      if (slot == 0) {  // from where the layer's first pass takes them
        copy_payload(values, parameters.subspan(static_cast<std::size_t>(offset),
                                                static_cast<std::size_t>(range.elements)));
      } else {
        slots_read.push_back({layer, range, std::vector<float>(values.size() / sizeof(float))});
        copy_payload(values, slots_read.back().values);
      }
      return absl::OkStatus();
    };
    POSEIDON_RETURN_IF_ERROR(append_range_requests(
        *restore_, pieces, LayerIndex(l), 0, plan.layers[l].parameters, slots, take, requests));
  }
  std::vector<float> own(static_cast<std::size_t>(framework_job_->own_state_elements()));
  const auto take = [&own](const Bytes& data) { return copy_statistics(data, own); };
  POSEIDON_RETURN_IF_ERROR(append_own_state_request(*restore_, take, requests));
  POSEIDON_RETURN_IF_ERROR(state_reader_.read(std::move(requests)));
  for (; !slots_read.empty(); slots_read.pop_front()) {
    const SlotRead& read = slots_read.front();
    POSEIDON_RETURN_IF_ERROR(
        framework_job_->factor_state()->write(read.layer, read.range, read.values));
  }
  return framework_job_->write_own_state(own);
}

absl::Status WorkerJob::prepare_synchronisation(Plan plan) {
  if (options_.set_windows) options_.set_windows(plan.window_bytes);
  SyncClientOptions options = sync_options(plan);
  std::vector<LayerMemory> layers;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    layers.push_back(framework_job_->memory(LayerIndex(l)));
  }
  std::shared_ptr<TrafficProbe> traffic = show_progress(plan);
  {
    const MutexLock lock(mutex_);
    if (cancelled_) return absl::CancelledError("the job was stopped");
    traffic_ = std::move(traffic);
    giver_ = std::make_unique<CheckpointGiver>(
        options_.stores, plan, rank_, framework_job_->factor_state(),
        CheckpointGiverOptions{.first_iteration = first_iteration_,
                               .every_iterations = job_.checkpoint.every_iterations,
                               .chunk_bytes = job_.sync.largest_chunk_bytes(),
                               .replicas = job_.checkpoint.replicas,
                               .transfer = writing(options_.sync.syncer)},
        [this](Iteration version, const std::string& reason, MissingPart why) {
          report_checkpoint_failure(version, reason, why);
        });
    std::vector<std::string> keepers = own_state_addresses(
        checkpoint_pieces(plan, job_.sync.largest_chunk_bytes(), job_.checkpoint.replicas), plan);
    own_state_address_ = keepers.front();
    if (rank_ == WorkerRank(0) && framework_job_->own_state_elements() > 0) {
      states_ = std::make_unique<StateSender>(options_.stores, epoch_, std::move(keepers),
                                              reading(options_.sync.syncer));
    }
    sync_ = std::make_unique<SyncClient>(
        services_.transport, std::move(plan), rank_, std::move(layers), std::move(options),
        traffic_.get(), services_.refusals, options_.peers, framework_job_->factor_engine());
  }
  sync_->start();
  POSEIDON_RETURN_IF_ERROR(sync_->wait_all_parameters(first_iteration_));
  if (states_ != nullptr) {
    save_own_state(first_iteration_);
    POSEIDON_RETURN_IF_ERROR(states_->wait(first_iteration_));
  }
  services_.client->send(ready_message(epoch_, framework_job_->data()));
  spdlog::info("job {}: worker {} is ready, epoch {}", job_.name, rank_.value(), epoch_.value());
  return absl::OkStatus();
}

SyncClientOptions WorkerJob::sync_options(const Plan& plan) {
  SyncClientOptions options = options_.sync;
  options.syncer.sfb.piece_bytes =
      plan.chunk_bytes > 0 ? plan.chunk_bytes : job_.sync.largest_chunk_bytes();
  options.syncer.sfb.iterations = job_.iterations;
  options.syncer.sfb.save_every = job_.checkpoint.every_iterations;
  options.syncer.first_iteration = first_iteration_;
  // Who is done ends its streams, in any order: only while this worker trains is that an outage.
  if (options.syncer.log) {
    options.syncer.log = [trained = trained_,
                          log = std::move(options.syncer.log)](const std::string& text) {
      if (*trained) {
        spdlog::debug("{}", text);
      } else {
        log(text);
      }
    };
  }
  options.stepping = [this](LayerIndex layer, Iteration version) {
    return giver_->keep(layer, version);
  };
  options.stepped = [this](LayerIndex layer, Iteration version) {
    return giver_->layer_at(layer, version);
  };
  options.failed = [this](const absl::Status& status) {
    const MutexLock lock(mutex_);
    sync_failure_ = status;
    changed_.notify_all();
  };
  return options;
}

/// From now on metrics and heartbeats tell of this job.
std::shared_ptr<TrafficProbe> WorkerJob::show_progress(const Plan& plan) {
  NodeProbe& probe = *options_.probe;
  probe.set(NodeGauge::kRank, rank_.value());
  probe.set(NodeGauge::kEpoch, static_cast<std::int64_t>(epoch_.value()));
  probe.set(NodeGauge::kIteration, first_iteration_);
  auto traffic = std::make_shared<TrafficProbe>(plan.layers.size(), options_.probe);
  if (services_.metrics != nullptr) {
    services_.metrics->show(
        {.plan = std::make_shared<const Plan>(plan), .traffic = traffic, .data = data_probe_});
  }
  return traffic;
}

absl::Status WorkerJob::wait_for_start() {
  MutexLock lock(mutex_);
  const bool in_time =
      changed_.wait_for(mutex_, kStartTimeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return started_ || cancelled_ || !sync_failure_.ok();
      });
  if (!in_time) {
    return absl::DeadlineExceededError("the coordinator did not start the job within 8 days");
  }
  if (cancelled_) return absl::CancelledError("the job was stopped");
  // Others may wait for this worker, which would never come.
  return started_ ? absl::OkStatus() : sync_failure_;
}

/// Other workers may still need this worker's last messages if a stream breaks. So the client stays
/// until the coordinator says that all workers have finished.
void WorkerJob::wait_for_stop() {
  MutexLock lock(mutex_);
  if (!changed_.wait_for(mutex_, stop_timeout(), [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopped_ || halting_;
      })) {
    log_no_word("that all workers have finished",
                "this worker's last messages will not be sent again");
  }
}

Nanoseconds WorkerJob::stop_timeout() const { return options_.away_timeout + kStopMargin; }

void WorkerJob::log_no_word(const char* awaited, const char* then) const {
  spdlog::error("epoch {}: for {:.0f} s the coordinator did not say {}; {}", epoch_.value(),
                seconds(stop_timeout()), awaited, then);
}

/// The streams go with the client. The memory that they sent from is freed but not overwritten:
/// servers and other workers may still read announced payloads in it.
void WorkerJob::close_client() {
  keep_freed_tensor_memory();
  std::unique_ptr<SyncClient> closing;
  const MutexLock lock(mutex_);  // it cannot be cancelled from now on
  closing = std::move(sync_);
}

void WorkerJob::close_giver() {
  std::unique_ptr<CheckpointGiver> closing;
  std::unique_ptr<StateSender> closing_too;
  const MutexLock lock(mutex_);
  closing = std::move(giver_);
  closing_too = std::move(states_);
}

bool WorkerJob::is_halting() {
  const MutexLock lock(mutex_);
  return halting_ && !stopped_;
}

// ---- events of the trainer ----

/// What this worker alone has of the version that gradients are about to change is held
/// elsewhere.
absl::Status WorkerJob::before_backward(Iteration iteration) {
  job_thread_.assert_held();
  return states_ == nullptr ? absl::OkStatus() : states_->wait(iteration);
}

/// All workers test with worker 0's own state: it is the model's, and the results do not depend on
/// restarts of workers. (Training does not read it.)
absl::Status WorkerJob::before_test(Iteration steps) {
  job_thread_.assert_held();
  std::vector<float> values(static_cast<std::size_t>(framework_job_->own_state_elements()));
  if (values.empty() || rank_ == WorkerRank(0)) return absl::OkStatus();
  // From then on worker 0's are on their way.
  POSEIDON_RETURN_IF_ERROR(sync_->wait_all_parameters(steps));
  POSEIDON_RETURN_IF_ERROR(state_reader_.read_held(own_state_address_, epoch_, steps, values));
  return framework_job_->write_own_state(values);
}

void WorkerJob::iteration_done(Iteration iteration, double loss) {
  job_thread_.assert_held();
  save_own_state(iteration + 1);
  services_.client->send(iteration_message(epoch_, iteration, loss));
}

void WorkerJob::tested(Iteration steps, const TestTotals& totals) {
  services_.client->send(
      test_message(epoch_, steps, totals.loss_sum, totals.correct, totals.samples));
}

/// Worker 0's own state of this version, for the checkpoint that is due and for the servers'
/// memory.
void WorkerJob::save_own_state(Iteration version) {
  const bool due = giver_->wants_own_state(version);
  if (rank_ != WorkerRank(0)) return;
  std::vector<float> values(static_cast<std::size_t>(framework_job_->own_state_elements()));
  if (const absl::Status read = framework_job_->read_own_state(values); !read.ok()) {
    if (due) report_checkpoint_failure(version, std::string(read.message()), MissingPart::kFailed);
    if (states_ != nullptr) states_->cancel(read);  // or the next gradients would wait for it
    return;
  }
  if (states_ != nullptr) states_->send(version, values);
  if (due) giver_->own_state_at(version, std::move(values));
}

// ---- another worker is lost ----

/// Reports the versions around the iteration in flight that this worker still has, and sends one of
/// them on request.
void WorkerJob::hold() {
  CheckpointGiver::Held held{.oldest = 1, .newest = 0};
  if (giver_ != nullptr) held = giver_->held();
  services_.client->send(halted_message(epoch_, held.oldest, held.newest));
  spdlog::info("epoch {}: halted", epoch_.value());
  // More than once when a coordinator died meanwhile.
  while (const std::optional<v1::SaveCheckpoint> save = next_held_save()) {
    const auto version = static_cast<Iteration>(save->iteration());
    if (const absl::Status given = give_held(version, *save); !given.ok()) {
      report_checkpoint_failure(version, std::string(given.message()), MissingPart::kFailed);
    }
  }
}

/// Nothing once the epoch is over, or the coordinator has been silent for too long.
std::optional<v1::SaveCheckpoint> WorkerJob::next_held_save() {
  MutexLock lock(mutex_);
  if (!changed_.wait_for(mutex_, stop_timeout(), [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopped_ || held_save_;
      })) {
    log_no_word("what to save of the halted epoch", "this worker frees its state");
    return std::nullopt;
  }
  return stopped_ ? std::nullopt : std::exchange(held_save_, std::nullopt);
}

absl::Status WorkerJob::give_held(Iteration version, const v1::SaveCheckpoint& save) {
  if (giver_ == nullptr) return absl::FailedPreconditionError("this worker holds nothing");
  std::set<WorkerRank> lost;
  for (const std::uint32_t rank : save.lost_ranks()) lost.insert(WorkerRank(rank));
  return giver_->give_held(version, lost);
}

// ---- reports to the coordinator ----

void WorkerJob::report_end(const absl::StatusOr<Iteration>& trained) {
  const absl::Status& status = trained.status();
  if (status.ok()) {
    spdlog::info("epoch {}: finished after {} iterations", epoch_.value(), *trained);
    services_.client->send(finished_message(epoch_));
  } else if (cancelled_) {
    spdlog::info("epoch {}: stopped", epoch_.value());
  } else {
    spdlog::error("epoch {}: {}", epoch_.value(), std::string(status.message()));
    services_.client->send(failed_message(epoch_, status, restoring_));
  }
}

/// Any thread. A checkpoint that fails stops no training (memory that cannot be read does).
void WorkerJob::report_checkpoint_failure(Iteration version, const std::string& reason,
                                          MissingPart why) {
  spdlog::error("epoch {}: no checkpoint at iteration {}: {}", epoch_.value(), version, reason);
  services_.client->send(checkpoint_missing_message(epoch_, version, reason, why));
}

}  // namespace poseidon
