#include "sync/relay/relay.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/wire/wire.h"

namespace poseidon {
namespace {

ChunkDecision refuse(DataRefusal reason, std::string message) {
  return {.objection = {reason, std::move(message)}, .delivery = std::nullopt};
}

/// The sender missed the answer: it gets it.
ChunkDecision repeat(ChunkId chunk, WorkerRank rank, std::string message) {
  ChunkDecision decision = refuse(DataRefusal::kDuplicate, std::move(message));
  decision.delivery = Delivery{.chunk = chunk, .only = rank};
  return decision;
}

}  // namespace

bool is_behind_relay(const Plan& plan, WorkerRank rank) {
  return group_of(plan, leader_of(plan, rank)).size() > 1;
}

Plan behind_relay(Plan plan, WorkerRank rank) {
  const WorkerRank leader = leader_of(plan, rank);
  plan.server_addresses = {plan.worker_addresses[leader.value()]};
  plan.proofs.to_servers = {proof_at(plan.proofs.to_workers, leader.value())};
  for (PlanChunk& chunk : plan.chunks) chunk.server = ServerIndex(0);
  return plan;
}

Relay::Relay(Plan plan, WorkerRank leader, Iteration first_version,
             std::int64_t pending_limit_bytes, Team* team)
    : plan_(std::move(plan)),
      leader_(leader),
      first_version_(first_version),
      group_(group_of(plan_, leader)),
      place_of_(plan_.workers(), -1),
      team_(team),
      early_(group_.size(), plan_.chunks.size(), pending_limit_bytes) {
  POSEIDON_CHECK(plan_.norm_scope == NormScope::kNone, "relays carry no norms");
  for (std::size_t i = 0; i < group_.size(); ++i) {
    place_of_[group_[i].value()] = static_cast<std::int32_t>(i);
  }
  for (const PlanLayer& layer : plan_.layers) {
    const std::int64_t elements = layer.scheme == Scheme::kPs ? layer.parameters : 0;
    parameters_.push_back(elements > 0 ? FloatBuffer::sendable(elements) : FloatBuffer());
    sums_.push_back(elements > 0 ? FloatBuffer::sendable(elements) : FloatBuffer());
  }
  slots_.reserve(plan_.chunks.size());
  for (std::uint32_t i = 0; i < plan_.chunks.size(); ++i) {
    const std::size_t bytes =
        static_cast<std::size_t>(plan_.chunks[i].elements) * element_bytes(plan_.wire_type);
    slots_.push_back(
        {.sum = Aggregator(part_of(sums_, ChunkId(i)), group_.size(), plan_.wire_type, team_),
         .rounded = rounds() ? PayloadBuffer::sendable(bytes) : PayloadBuffer(),
         .version = first_version - 1,
         .exact_for = {}});
  }
}

std::span<float> Relay::part_of(const std::vector<FloatBuffer>& layers, ChunkId chunk) const {
  const PlanChunk& place = plan_.chunks[chunk.value()];
  FloatBuffer whole = layers[place.layer.value()];  // refers to the same floats
  return whole.floats().subspan(static_cast<std::size_t>(place.offset),
                                static_cast<std::size_t>(place.elements));
}

std::vector<LayerMemory> Relay::layers() const {
  std::vector<LayerMemory> layers;
  for (std::size_t l = 0; l < parameters_.size(); ++l) {
    FloatBuffer parameters = parameters_[l];
    layers.push_back(
        {.parameters = parameters.floats(),
         .gradients = sums_[l].floats(),
         .owner = std::make_shared<std::pair<FloatBuffer, FloatBuffer>>(parameters_[l], sums_[l])});
  }
  return layers;
}

ChunkDecision Relay::on_message(const DecodedChunk& message) {
  const ChunkHeader& header = message.header;
  if (Objection objection = check_against_plan(header, message.payload.size(), plan_)) {
    return {.objection = std::move(objection), .delivery = std::nullopt};
  }
  if (place_of_[header.rank.value()] < 0) {
    return refuse(DataRefusal::kRank,
                  absl::StrCat("worker ", header.rank.value(), " is not of the group that worker ",
                               leader_.value(), " leads (local aggregation)"));
  }
  switch (header.kind) {
    case ChunkKind::kPushGradient:
      return on_push(header.chunk, message);
    case ChunkKind::kInitialise:
      return on_initialise(header.chunk, message);
    case ChunkKind::kPull:
      return on_pull(header.chunk, header);
    case ChunkKind::kTotals:
    case ChunkKind::kNorms:
    case ChunkKind::kParameters:
      break;
  }
  return refuse(DataRefusal::kKind, absl::StrCat("kind ", static_cast<std::uint32_t>(header.kind),
                                                 " is not for a relay"));
}

ChunkDecision Relay::on_initialise(ChunkId chunk, const DecodedChunk& message) {
  const ChunkHeader& header = message.header;
  if (header.rank != WorkerRank(0) || header.iteration != 0 || first_version_ != 0) {
    return refuse(
        DataRefusal::kRank,
        absl::StrCat("initial parameters from worker ", header.rank.value(), " at iteration ",
                     header.iteration, ", only worker 0 gives them, where a run begins"));
  }
  Slot& slot = slots_[chunk.value()];
  const std::string known = absl::StrCat("chunk ", chunk.value(), " is initialised already");
  if (slot.is_here) return repeat(chunk, header.rank, known);
  if (std::exchange(slot.initialising, true)) return refuse(DataRefusal::kDuplicate, known);
  copy_payload(message.payload, part_of(parameters_, chunk), ElementType::kFloat32, *team_);
  requests_.push_back({.kind = ChunkRequest::Kind::kInitialise, .chunk = chunk});
  return {};
}

ChunkDecision Relay::on_pull(ChunkId chunk, const ChunkHeader& header) {
  Slot& slot = slots_[chunk.value()];
  const bool exact = rounds() && header.element_type == ElementType::kFloat32;
  // Answered when the chunk reaches that version, with the delivery to the whole group.
  if (!exact && header.iteration == slot.version + 1) return {};
  const bool is_stepping = slot.sum.complete();
  const bool asks_too_late = exact && !slot.exact_here && is_stepping;
  if (!slot.is_here || header.iteration > slot.version || asks_too_late) {
    return refuse(DataRefusal::kIteration,
                  absl::StrCat("pull of chunk ", chunk.value(), " at version ", header.iteration,
                               ", it is at version ", slot.version,
                               is_stepping ? " and waits for the next" : ""));
  }
  if (!exact || slot.exact_here) {
    return {.objection = {},
            .delivery = Delivery{.chunk = chunk, .only = header.rank, .exact = exact}};
  }
  if (std::ranges::find(slot.exact_for, header.rank) == slot.exact_for.end()) {
    slot.exact_for.push_back(header.rank);
  }
  if (!std::exchange(slot.exact_asked, true)) {
    requests_.push_back({.kind = ChunkRequest::Kind::kPullExact, .chunk = chunk});
  }
  return {};
}

ChunkDecision Relay::on_push(ChunkId chunk, const DecodedChunk& message) {
  const ChunkHeader& header = message.header;
  Slot& slot = slots_[chunk.value()];
  if (!slot.is_here) {
    return refuse(DataRefusal::kNotInitialised,
                  absl::StrCat("gradient for chunk ", chunk.value(), " before its parameters"));
  }
  switch (consistency_.judge_push(slot.version, header.iteration)) {
    case ConsistencyPolicy::Push::kFuture:
      return refuse(DataRefusal::kIteration,
                    absl::StrCat("gradient of iteration ", header.iteration, " for chunk ",
                                 chunk.value(), ", which is at version ", slot.version));
    case ConsistencyPolicy::Push::kTooOld:
      return refuse(
          DataRefusal::kDuplicate,
          absl::StrCat("gradient of iteration ", header.iteration, " was counted long ago"));
    case ConsistencyPolicy::Push::kAlreadyComplete:
      return repeat(chunk, header.rank,
                    absl::StrCat("gradient of iteration ", header.iteration, " is in already"));
    case ConsistencyPolicy::Push::kCounts:
      break;
  }
  const auto place = static_cast<std::size_t>(place_of_[header.rank.value()]);
  if (slot.sum.has(place)) {
    return refuse(DataRefusal::kDuplicate,
                  absl::StrCat("worker ", header.rank.value(), " gave its gradient of iteration ",
                               header.iteration, " for chunk ", chunk.value(), " already"));
  }
  early_.contribute(slot.sum, place, [&] {
    slot.sum.add(place, message.payload);
    if (!slot.sum.complete()) return;
    slot.sum.settle();
    if (!slot.exact_asked || slot.exact_here) push_up(chunk);
  });
  return {};
}

void Relay::push_up(ChunkId chunk) {
  requests_.push_back({.kind = ChunkRequest::Kind::kPush,
                       .chunk = chunk,
                       .iteration = slots_[chunk.value()].version});
}

std::vector<Delivery> Relay::landed(ChunkId chunk, Iteration version, bool exact) {
  Slot& slot = slots_[chunk.value()];
  if (exact) {
    slot.exact_here = true;
    std::vector<Delivery> deliveries;
    for (const WorkerRank rank : std::exchange(slot.exact_for, {})) {
      deliveries.push_back({.chunk = chunk, .only = rank, .exact = true});
    }
    if (slot.sum.complete()) push_up(chunk);
    return deliveries;
  }
  if (rounds()) {
    // Gives back the very bits that came: they were widened.
    encode_payload(plan_.wire_type, part_of(parameters_, chunk), slot.rounded.writable(), *team_);
  }
  slot.version = version;
  slot.is_here = true;
  slot.exact_asked = slot.exact_here = false;
  if (slot.sum.complete()) {
    slot.sum.next_round();
    early_.chunk_done();
  }
  return {Delivery{.chunk = chunk, .only = std::nullopt}};
}

bool Relay::may_read(WorkerRank rank) const {
  return early_.may_read(static_cast<std::size_t>(place_of_[rank.value()]));
}

ChunkPayload Relay::payload(ChunkId chunk, bool exact) const {
  const Slot& slot = slots_[chunk.value()];
  POSEIDON_CHECK(slot.is_here, "parameters that are here");
  if (!exact && rounds()) {
    return {.type = plan_.wire_type, .bytes = slot.rounded.bytes(), .owner = slot.rounded.owner()};
  }
  // Exact parameters that were requested before a later step do not exist any more: the worker gets
  // the current ones.
  const FloatBuffer& whole = parameters_[plan_.chunks[chunk.value()].layer.value()];
  return {.type = ElementType::kFloat32,
          .bytes = as_payload(part_of(parameters_, chunk)),
          .owner = whole.owner()};
}

std::vector<AwaitedData> Relay::awaited(LayerIndex layer) const {
  std::vector<AwaitedData> awaited;
  for (std::uint32_t i = 0; i < slots_.size() && awaited.size() < kMostAwaited; ++i) {
    const Slot& slot = slots_[i];
    if (plan_.chunks[i].layer != layer || slot.sum.contributed() == 0 || slot.sum.complete()) {
      continue;
    }
    AwaitedData& data = awaited.emplace_back(AwaitedData{.layer = layer,
                                                         .chunk = ChunkId(i),
                                                         .iteration = slot.version,
                                                         .ranks = {},
                                                         .server = std::nullopt});
    for (std::size_t place = 0; place < group_.size(); ++place) {
      if (!slot.sum.has(place)) data.ranks.push_back(group_[place]);
    }
  }
  return awaited;
}

}  // namespace poseidon
