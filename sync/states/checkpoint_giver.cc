#include "sync/states/checkpoint_giver.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/memory/aligned_buffer.h"
#include "common/tensor/scan.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxFailuresRemembered = 64;

}  // namespace

struct CheckpointGiver::Transfers {
  std::uint64_t next = 0;
  std::map<std::uint64_t, std::unique_ptr<StoreTransfer>> live;
  bool closed = false;
};

namespace {

std::vector<std::string> names_of(const std::vector<PlanLayer>& layers) {
  std::vector<std::string> names;
  for (const PlanLayer& layer : layers) names.push_back(layer.name);
  return names;
}

}  // namespace

CheckpointGiver::CheckpointGiver(Transport* stores, const Plan& plan, WorkerRank rank,
                                 FactorState* state, CheckpointGiverOptions options, Failed failed)
    : stores_(stores),
      options_(options),
      failed_(std::move(failed)),
      epoch_(plan.epoch),
      rank_(rank),
      workers_(plan.workers()),
      state_(state),
      pieces_(checkpoint_pieces(plan, options.chunk_bytes, options.replicas)),
      server_addresses_(plan.server_addresses),
      layer_names_(names_of(plan.layers)),
      newest_(options.first_iteration),
      transfers_(std::make_shared<Transfers>()) {
  for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
    const CheckpointPiece& piece = pieces_[i];
    if (!piece.giver) continue;
    const bool is_own = *piece.giver == rank;
    const bool is_deputy = WorkerRank((piece.giver->value() + 1) % workers_) == rank;
    if (piece.layer && (is_own || is_deputy)) {
      POSEIDON_CHECK(state_ != nullptr, "SFB layers have a state");
      std::vector<StateRange>& ranges = kept_[piece.layer->value()].ranges;
      const std::vector<StateRange> more = ranges_of(piece);
      ranges.insert(ranges.end(), more.begin(), more.end());
      current_[piece.layer->value()] = options.first_iteration;
    }
    if (!is_own) continue;
    auto& group = piece.layer ? of_layer_[piece.layer->value()] : own_state_;
    group.push_back({PieceId(i), piece});
  }
}

CheckpointGiver::~CheckpointGiver() {
  auto closed = std::make_shared<std::promise<void>>();  // outlives set_value on the loop
  stores_->post([transfers = transfers_, closed] {
    transfers->closed = true;
    transfers->live.clear();
    closed->set_value();
  });
  closed->get_future().wait();  // bounded: the loop runs all posted tasks, and none of them blocks
}

void CheckpointGiver::save_at(Iteration version) {
  if (of_layer_.empty() && own_state_.empty()) return;
  {
    const MutexLock lock(mutex_);
    if (version > newest_) {
      asked_.insert(version);
      return;
    }
  }
  failed_(version, absl::StrCat("this worker is beyond version ", version, " already"),
          MissingPart::kTooLate);
}

bool CheckpointGiver::is_due(Iteration version) {
  if (version > newest_) {
    newest_ = version;
    // What was asked for one version ago is complete: BSP lets no layer fall back by two.
    asked_.erase(asked_.begin(), asked_.lower_bound(version - 1));
  }
  const bool periodic = options_.every_iterations > 0 && version % options_.every_iterations == 0;
  return version > options_.first_iteration && (periodic || asked_.contains(version));
}

/// Whether this version is to be saved and its copy fits into memory.
bool CheckpointGiver::begin(Iteration version) {
  bool told = false;
  {
    const MutexLock lock(mutex_);
    if (!is_due(version)) return false;
    if (under_way_.contains(version) || under_way_.size() < kMaxVersionsUnderWay) {
      ++under_way_[version];
      return true;
    }
    told = !failed_versions_.insert(version).second;
    if (failed_versions_.size() > kMaxFailuresRemembered) {
      failed_versions_.erase(failed_versions_.begin());
    }
  }
  if (!told) {
    failed_(version,
            absl::StrCat("the servers have not taken this worker's part of ", kMaxVersionsUnderWay,
                         " earlier checkpoints yet; set checkpoint.every_iterations higher"),
            MissingPart::kBusy);
  }
  return false;
}

std::vector<StateRange> CheckpointGiver::ranges_of(const CheckpointPiece& piece) const {
  std::vector<StateRange> ranges;
  for (int slot = 0; slot <= state_->optimizer_slots(); ++slot) {
    ranges.push_back({.slot = slot, .offset = piece.offset, .elements = piece.elements});
  }
  return ranges;
}

absl::StatusOr<std::shared_ptr<std::vector<float>>> CheckpointGiver::read(
    const CheckpointPiece& piece, bool as_kept) const {
  const std::vector<StateRange> ranges = ranges_of(piece);
  const auto elements = static_cast<std::size_t>(piece.elements);
  auto values = std::make_shared<std::vector<float>>(elements * ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::span<float> part = std::span(*values).subspan(i * elements, elements);
    POSEIDON_RETURN_IF_ERROR(as_kept ? state_->read_held(*piece.layer, ranges[i], part)
                                     : state_->read(*piece.layer, ranges[i], part));
  }
  // The loss before the last step was finite and does not show it. The pieces of all workers cover
  // the whole layer.
  if (!all_finite(std::span(*values).first(elements))) {
    return absl::FailedPreconditionError(
        absl::StrCat("the parameters of layer ", layer_names_[piece.layer->value()],
                     " hold values that are infinite or not a number, and go into no checkpoint: "
                     "try a smaller optimizer.learning_rate"));
  }
  return values;
}

void CheckpointGiver::append_writes(Iteration version, const Given& given, int slots,
                                    const std::shared_ptr<const std::vector<float>>& values,
                                    std::vector<StoreRequest>& requests) const {
  const auto write_to = [&](ServerIndex server) {
    StoreRequest request;
    request.address = server_addresses_[server.value()];
    request.header.operation = StoreOperation::kWrite;
    request.header.snapshot = snapshot_id(epoch_, version);
    request.header.piece = given.piece;
    request.header.slot = static_cast<std::uint32_t>(slots);
    request.payload = as_payload(*values);
    request.owner = values;
    requests.push_back(std::move(request));
  };
  write_to(given.place.holder);
  if (given.place.second) write_to(*given.place.second);
}

absl::Status CheckpointGiver::layer_at(LayerIndex layer, Iteration version) {
  if (const auto steps = current_.find(layer.value()); steps != current_.end()) {
    steps->second = version;
  }
  const auto given = of_layer_.find(layer.value());
  if (given == of_layer_.end()) {
    const MutexLock lock(mutex_);
    (void)is_due(version);  // records the progress of training
    return absl::OkStatus();
  }
  if (!begin(version)) return absl::OkStatus();
  std::vector<StoreRequest> requests;
  for (const Given& piece : given->second) {
    const auto values = read(piece.place, /*as_kept=*/false);
    if (!values.ok()) {
      settled(version, values.status());
      return values.status();
    }
    append_writes(version, piece, state_->optimizer_slots(), *values, requests);
  }
  send(version, std::move(requests));
  return absl::OkStatus();
}

absl::Status CheckpointGiver::keep(LayerIndex layer, Iteration version) {
  const auto kept = kept_.find(layer.value());
  if (kept == kept_.end() || !has_room_) return absl::OkStatus();
  kept->second.version = -1;  // until it is complete
  const absl::Status held = state_->hold(layer, kept->second.ranges);
  if (held.ok()) {
    kept->second.version = version;
  } else if (absl::IsResourceExhausted(held)) {
    has_room_ = false;
    for (auto& [other, of_other] : kept_) {
      of_other.version = -1;
      // The kept versions of other layers are useless now, and the next step may need their memory.
      POSEIDON_RETURN_IF_ERROR(state_->hold(LayerIndex(other), {}));
    }
    spdlog::warn(
        "no memory to keep the version before each step: if a worker is lost, the job goes back to "
        "its last checkpoint ({})",
        std::string(held.message()));
    return absl::OkStatus();
  }
  return held;
}

CheckpointGiver::Held CheckpointGiver::held() const {
  Held held;
  for (const auto& [layer, version] : current_) {
    const auto kept = kept_.find(layer);  // as many as those
    held.oldest = std::max(held.oldest, kept->second.version < 0 ? version : kept->second.version);
    held.newest = std::min(held.newest, version);
  }
  return held;
}

absl::Status CheckpointGiver::give_held(Iteration version, const std::set<WorkerRank>& lost) {
  if (lost.size() >= workers_) return absl::InvalidArgumentError("every worker is lost");
  std::vector<StoreRequest> requests;
  for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
    if (!pieces_[i].giver || !pieces_[i].layer) continue;
    WorkerRank giver = *pieces_[i].giver;
    while (lost.contains(giver)) giver = WorkerRank((giver.value() + 1) % workers_);
    if (giver != rank_) continue;
    const Given given{PieceId(i), pieces_[i]};
    const std::uint32_t layer = pieces_[i].layer->value();
    const auto current = current_.find(layer);
    const auto kept = kept_.find(layer);
    const bool is_current = current != current_.end() && current->second == version;
    const bool is_kept = kept != kept_.end() && kept->second.version == version &&
                         std::ranges::find(kept->second.ranges, ranges_of(pieces_[i]).front()) !=
                             kept->second.ranges.end();
    // When both exist, a step may have begun.
    if (!is_current && !is_kept) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker ", rank_.value(), " does not have version ", version, " of piece ",
                       i, " (worker ", pieces_[i].giver->value(), "'s)"));
    }
    POSEIDON_ASSIGN_OR_RETURN(const std::shared_ptr<std::vector<float>> values,
                              read(pieces_[i], /*as_kept=*/is_kept));
    append_writes(version, given, state_->optimizer_slots(), values, requests);
  }
  if (requests.empty()) return absl::OkStatus();
  {
    const MutexLock lock(mutex_);
    ++under_way_[version];
    failed_versions_.erase(version);  // of an earlier attempt
  }
  send(version, std::move(requests));
  return absl::OkStatus();
}

bool CheckpointGiver::wants_own_state(Iteration version) {
  const MutexLock lock(mutex_);
  const bool due = is_due(version);
  return due && !own_state_.empty();
}

void CheckpointGiver::own_state_at(Iteration version, std::vector<float> state) {
  if (own_state_.empty() || !begin(version)) return;
  auto values = std::make_shared<const std::vector<float>>(std::move(state));
  std::vector<StoreRequest> requests;
  append_writes(version, own_state_[0], 0, values, requests);
  send(version, std::move(requests));
}

void CheckpointGiver::send(Iteration version, std::vector<StoreRequest> requests) {
  auto shared = std::make_shared<std::vector<StoreRequest>>(std::move(requests));
  stores_->post([this, transfers = transfers_, version, shared] {
    if (transfers->closed) return;
    const std::uint64_t number = transfers->next++;
    auto transfer = std::make_unique<StoreTransfer>(stores_, options_.transfer);
    transfer->start(std::move(*shared),
                    [this, transfers, version, number](const absl::Status& status) {
                      const auto ended = transfers->live.extract(number);  // destroyed last
                      settled(version, status);
                    });
    transfers->live.emplace(number, std::move(transfer));
  });
}

void CheckpointGiver::settled(Iteration version, const absl::Status& status) {
  bool tell = false;
  {
    const MutexLock lock(mutex_);
    if (--under_way_[version] == 0) under_way_.erase(version);
    tell = !status.ok() && failed_versions_.insert(version).second;
  }
  const MissingPart why = absl::IsOutOfRange(status) ? MissingPart::kBusy : MissingPart::kFailed;
  if (tell) failed_(version, std::string(status.message()), why);
}

}  // namespace poseidon
