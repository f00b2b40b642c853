// How a simulated worker prepares its part of a job: from initial values or from a checkpoint.

#include "tests/sim/sim_job.h"

namespace poseidon::sim {

absl::Status SimWorker::Job::prepare() {
  if (halting_) return absl::CancelledError("halted");
  POSEIDON_ASSIGN_OR_RETURN(plan_, plan_from_assignment(assignment_, AssignedRole::kWorker));
  POSEIDON_ASSIGN_OR_RETURN(job_, parse_job(assignment_.job_json()));
  POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(job_.model, "."));
  rank_ = WorkerRank(assignment_.index());
  if (assignment_.has_restore()) {
    POSEIDON_ASSIGN_OR_RETURN(restore_, restore_from_message(assignment_.restore()));
    first_ = restore_->iteration();
  }
  course_ = node_.truth_->begin(
      plan_, job_, restore_ ? std::optional(restore_->snapshot) : std::nullopt,
      restore_ ? restore_->samples : 0, static_cast<std::size_t>(net.statistics_count()));
  if (course_ == nullptr) return absl::InternalError("no truth");
  statistics_.resize(static_cast<std::size_t>(net.statistics_count()));
  iteration_ = first_;
  const int slots = optimizer_state_slots(job_.optimizer);
  for (std::size_t l = 0; l < plan_.layers.size(); ++l) {
    const std::int64_t n = plan_.layers[l].parameters;
    parameters_.emplace_back(n);
    gradients_.emplace_back(by_factors(l) ? 0 : n);
    state0_.emplace_back(by_factors(l) && slots > 0 ? n : 0);
    state1_.emplace_back(by_factors(l) && slots > 1 ? n : 0);
    for (std::size_t e = 0; e < static_cast<std::size_t>(n); ++e) {
      // Only worker 0's initial values may count.
      parameters_[l].floats()[e] =
          rank_ == WorkerRank(0) && !restore_ ? initial_value(l, e) : -7.0f;
    }
  }
  factor_state_ = std::make_unique<testing_support::PlainFactorState>(
      std::array{&parameters_, &state0_, &state1_}, slots);
  versions_.assign(plan_.layers.size(), first_ - 1);
  complete_ = versions_;
  measured_ = versions_;
  exact_.assign(plan_.layers.size(), false);
  if (!restore_) return prepare_synchronisation();
  return fetch_own_state(slots);
}

absl::Status SimWorker::Job::fetch_own_state(int slots) {
  std::vector<StoreRequest> requests;
  const PieceIndex pieces(restore_->pieces);
  for (std::uint32_t l = 0; l < plan_.layers.size(); ++l) {
    if (!by_factors(l)) continue;
    const auto take = [this, l](std::uint32_t slot, std::int64_t offset, const Bytes& values) {
      std::vector<float> taken(values.size() / sizeof(float));
      copy_payload(values, taken);
      return factor_state_->write(LayerIndex(l),
                                  {.slot = static_cast<int>(slot),
                                   .offset = offset,
                                   .elements = static_cast<std::int64_t>(taken.size())},
                                  taken);
    };
    POSEIDON_RETURN_IF_ERROR(append_range_requests(
        *restore_, pieces, LayerIndex(l), 0, plan_.layers[l].parameters, slots, take, requests));
  }
  const auto take_statistics = [this](const Bytes& values) {
    if (values.size() != statistics_.size() * sizeof(float)) {
      return absl::DataLossError("running statistics of another size");
    }
    copy_payload(values, statistics_);
    return absl::OkStatus();
  };
  POSEIDON_RETURN_IF_ERROR(append_own_state_request(*restore_, take_statistics, requests));
  transfer_ = std::make_unique<StoreTransfer>(&node_.stores_);
  transfer_->start(std::move(requests), [this](const absl::Status& status) {
    if (halting_) return;
    if (!status.ok()) {
      restoring_ = true;
      end(status);
      return;
    }
    if (statistics_ != course_->at(first_).statistics) fail("restored other statistics");
    end_unless_ok(prepare_synchronisation());
  });
  return absl::OkStatus();
}

absl::Status SimWorker::Job::prepare_synchronisation() {
  if (halting_) return absl::CancelledError("halted");
  SyncerOptions options;
  options.give_up_after = node_.options_.server_timeout;
  options.first_iteration = first_;
  options.sfb.piece_bytes = plan_.chunk_bytes;
  options.sfb.iterations = job_.iterations;
  options.sfb.check_every = 3;
  options.sfb.save_every = job_.checkpoint.every_iterations;
  std::vector<LayerMemory> layers;
  for (std::size_t l = 0; l < plan_.layers.size(); ++l) {
    layers.push_back({parameters_[l].floats(), gradients_[l].floats(), gradients_[l].owner()});
  }
  traffic_ = std::make_unique<TrafficProbe>(plan_.layers.size(), node_.probe_);
  giver_ = std::make_unique<CheckpointGiver>(
      &node_.stores_, plan_, rank_, factor_state_.get(),
      CheckpointGiverOptions{.first_iteration = first_,
                             .every_iterations = job_.checkpoint.every_iterations,
                             .chunk_bytes = job_.sync.largest_chunk_bytes(),
                             .replicas = job_.checkpoint.replicas,
                             .transfer = {}},
      [this](Iteration version, const std::string& reason, MissingPart why) {
        report_checkpoint_failure(version, reason, why);
      });
  if (rank_ == WorkerRank(0) && !statistics_.empty()) {
    states_ = std::make_unique<StateSender>(
        &node_.stores_, epoch_,
        own_state_addresses(
            checkpoint_pieces(plan_, job_.sync.largest_chunk_bytes(), job_.checkpoint.replicas),
            plan_),
        StoreTransferOptions{}, [this, alive = alive_] {
          if (*alive) advance();
        });
  }
  factor_options_ = options.factor_options();
  stacks_ = std::make_unique<FactorStacks>(plan_, rank_);
  syncer_ = std::make_unique<Syncer>(
      node_.transport_, plan_, rank_, std::move(layers), options, this, traffic_.get(),
      &node_.refusals_, PeerAccess{&node_.factors_, &node_.door_, &node_.relays_, &node_.relay_},
      stacks_.get());
  state_ = State::kWaiting;
  node_.transport_->post([this, alive = alive_] {
    if (*alive && syncer_ != nullptr) syncer_->start();
  });
  return absl::OkStatus();
}

}  // namespace poseidon::sim
