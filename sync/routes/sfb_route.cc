#include "sync/routes/sfb_route.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/tensor/scan.h"

namespace poseidon {
namespace {

Objection object(DataRefusal reason, std::string message) { return {reason, std::move(message)}; }

}  // namespace

bool SfbOptions::has_digest(Iteration iteration) const {
  return iteration % check_every == 0 || iteration == iterations || iteration == first_iteration ||
         (save_every > 0 && iteration % save_every == 0);
}

Iteration SfbOptions::compared_before(Iteration iteration) const {
  Iteration before = std::max(iteration - 1, first_iteration);
  while (!has_digest(before)) --before;
  return before;
}

SfbRoute::SfbRoute(Plan plan, WorkerRank rank, const std::vector<LayerMemory>& layers,
                   FactorStacks* stacks, SfbOptions options)
    : plan_(std::move(plan)),
      rank_(rank),
      stacks_(stacks),
      options_(std::move(options)),
      piece_elements_(options_.piece_bytes / static_cast<std::int64_t>(sizeof(float))),
      position_(plan_.layers.size(), -1) {
  POSEIDON_CHECK(piece_elements_ > 0 && options_.piece_bytes <= kMaxChunkBytes,
                 "a piece holds a float and fits into a message");
  POSEIDON_CHECK(stacks_ != nullptr, "a plan with SFB layers needs memory for their factors");
  POSEIDON_CHECK(options_.check_every > 0, "replicas are compared now and then");
  POSEIDON_CHECK(layers.size() == plan_.layers.size(), "memory for every layer of the plan");
  const auto pieces_of = [this](std::int64_t elements) {
    return static_cast<std::uint32_t>(piece_count(elements, piece_elements_));
  };
  for (std::uint32_t l = 0; l < plan_.layers.size(); ++l) {
    const std::optional<FactorShape> shape = factor_shape(plan_, LayerIndex(l));
    if (!shape) continue;
    POSEIDON_CHECK(static_cast<std::int64_t>(layers[l].parameters.size()) == shape->parameters,
                   "parameter memory as long as the layer");
    const auto position = static_cast<std::uint32_t>(layers_.size());
    position_[l] = static_cast<std::int32_t>(position);
    Layer& layer = layers_.emplace_back();
    layer.index = LayerIndex(l);
    layer.shape = *shape;
    layer.parameters = layers[l].parameters;
    layer.owner = layers[l].owner;
    layer.gradient_pieces = pieces_of(shape->gradient_elements());
    layer.input_pieces = pieces_of(shape->input_elements());
    layer.pieces = 1 + layer.gradient_pieces + layer.input_pieces;
    layer.parameter_pieces = pieces_of(shape->parameters);
    layer.parameters_landed.assign(layer.parameter_pieces, false);
    layer.parameters_missing = layer.parameter_pieces;
    layer.taken.assign(plan_.workers(), options_.first_iteration - 1);
    layer.mine = options_.first_iteration - 1;
    if (options_.first_iteration > 0) {
      layer.parameters_landed.assign(layer.parameter_pieces, true);
      layer.parameters_missing = 0;
    }
    layer.first_item = static_cast<std::uint32_t>(items_.size());
    for (std::uint32_t piece = 0; piece < layer.parameter_pieces; ++piece) {
      items_.push_back({.layer = position, .of_parameters = true, .piece = piece});
    }
    for (std::uint32_t slot = 0; slot < layer.slots.size(); ++slot) {
      for (std::uint32_t piece = 0; piece < layer.pieces; ++piece) {
        items_.push_back({.layer = position, .slot = slot, .piece = piece});
      }
      Slot& memory = layer.slots[slot];
      memory.landed.assign(std::size_t{plan_.workers()} * layer.pieces, false);
      memory.digests.assign(plan_.workers(), 0);
    }
  }
  outboxes_.assign(plan_.workers(), Outbox(items_.size(), plan_.send_order));
  has_parameters_.assign(plan_.workers(), options_.first_iteration > 0);
  for (Layer& layer : layers_) {
    for (Iteration i = options_.first_iteration; i < options_.first_iteration + 2; ++i) {
      begin(layer, slot_of(layer, i), i);
    }
  }
}

SfbRoute::Layer& SfbRoute::layer_of(LayerIndex layer) {
  return const_cast<Layer&>(std::as_const(*this).layer_of(layer));
}

const SfbRoute::Layer& SfbRoute::layer_of(LayerIndex layer) const {
  const std::int32_t position = position_[layer.value()];
  POSEIDON_CHECK(position >= 0, "a layer that goes by SFB");
  return layers_[static_cast<std::size_t>(position)];
}

/// First piece and end of what each rank sends for this iteration.
std::pair<std::uint32_t, std::uint32_t> SfbRoute::wanted_pieces(const Layer& layer,
                                                                Iteration iteration) const {
  return {options_.has_digest(iteration) ? 0u : 1u,
          iteration == options_.iterations ? 1u : layer.pieces};
}

void SfbRoute::begin(Layer& layer, Slot& slot, Iteration iteration) {
  // All workers have the set that this slot held before.
  for (std::uint32_t peer = 0; iteration >= 2 && peer < plan_.workers(); ++peer) {
    note_taken(layer, WorkerRank(peer), iteration - 2);
  }
  slot.iteration = iteration;
  std::fill(slot.landed.begin(), slot.landed.end(), false);
  std::fill(slot.digests.begin(), slot.digests.end(), 0);
  const auto [first, end] = wanted_pieces(layer, iteration);
  slot.missing = std::int64_t{plan_.workers()} * (end - first);
}

/// `peer` has all sets of the layer up to `iteration`: nothing of them need be sent to it.
void SfbRoute::note_taken(Layer& layer, WorkerRank peer, Iteration iteration) {
  Iteration& taken = layer.taken[peer.value()];
  if (iteration <= taken) return;
  for (std::uint32_t s = 0; s < layer.slots.size(); ++s) {
    if (layer.slots[s].iteration > iteration) continue;
    const std::uint32_t first = layer.first_item + layer.parameter_pieces + s * layer.pieces;
    for (std::uint32_t piece = 0; piece < layer.pieces; ++piece) {
      outboxes_[peer.value()].sets[s].erase(ItemId(first + piece));
    }
  }
  taken = iteration;
}

/// No worker begins its backward before its forward has read all layers.
void SfbRoute::note_parameters_taken(WorkerRank peer) {
  if (has_parameters_[peer.value()]) return;
  has_parameters_[peer.value()] = true;
  for (const Layer& layer : layers_) {
    for (std::uint32_t piece = 0; piece < layer.parameter_pieces; ++piece) {
      outboxes_[peer.value()].parameters.erase(ItemId(layer.first_item + piece));
    }
  }
}

void SfbRoute::initialise_from_here() {
  for (Layer& layer : layers_) {
    layer.parameters_landed.assign(layer.parameter_pieces, true);
    layer.parameters_missing = 0;
    if (plan_.workers() > 1) queue_parameters(layer, WorkerRank(1));
  }
}

void SfbRoute::queue_pieces(Layer& layer, Iteration iteration, WorkerRank peer) {
  if (peer == rank_) return;
  const auto slot = static_cast<std::uint32_t>(iteration % 2);
  const auto [first, end] = wanted_pieces(layer, iteration);
  const std::uint32_t base = layer.first_item + layer.parameter_pieces + slot * layer.pieces;
  Outbox& outbox = outboxes_[peer.value()];
  outbox.iterations[slot] = iteration;
  for (std::uint32_t piece = first; piece < end; ++piece) {
    outbox.sets[slot].push(ItemId(base + piece));
  }
}

void SfbRoute::queue_parameters(const Layer& layer, WorkerRank peer) {
  for (std::uint32_t piece = 0; piece < layer.parameter_pieces; ++piece) {
    if (layer.parameters_landed[piece]) {
      outboxes_[peer.value()].parameters.push(ItemId(layer.first_item + piece));
    }
  }
}

FactorLanding SfbRoute::factors_ready(LayerIndex index, Iteration iteration, std::uint64_t digest) {
  Layer& layer = layer_of(index);
  POSEIDON_CHECK(iteration == layer.mine + 1 && iteration <= options_.iterations,
                 "one iteration after the other, up to the run's last");
  layer.mine = iteration;
  Slot& slot = slot_of(layer, iteration);
  if (slot.iteration != iteration) begin(layer, slot, iteration);
  const auto [first, end] = wanted_pieces(layer, iteration);
  const std::size_t base = std::size_t{rank_.value()} * layer.pieces;
  for (std::uint32_t piece = first; piece < end; ++piece) slot.landed[base + piece] = true;
  slot.digests[rank_.value()] = digest;
  slot.missing -= end - first;
  for (std::uint32_t peer = 0; peer < plan_.workers(); ++peer) {
    queue_pieces(layer, iteration, WorkerRank(peer));
  }
  FactorLanding landing;
  landing.layer = index;
  finish_if_complete(layer, slot, landing);
  return landing;
}

void SfbRoute::stream_opened(WorkerRank peer) {
  for (Layer& layer : layers_) {
    if (peer == rank_.next() && !has_parameters_[peer.value()]) queue_parameters(layer, peer);
    for (Iteration i = std::max(options_.first_iteration, layer.mine - 1); i <= layer.mine; ++i) {
      if (slot_of(layer, i).iteration == i && i > layer.taken[peer.value()]) {
        queue_pieces(layer, i, peer);
      }
    }
  }
}

std::span<float> SfbRoute::piece_of(const Layer& layer, FactorKind kind, Iteration iteration,
                                    WorkerRank rank, std::uint32_t piece) const {
  const std::span<float> whole = kind == FactorKind::kParameters
                                     ? layer.parameters
                                     : stacks_->part(layer.index, iteration, kind, rank);
  const std::size_t begin = piece * static_cast<std::size_t>(piece_elements_);
  return whole.subspan(begin,
                       std::min(static_cast<std::size_t>(piece_elements_), whole.size() - begin));
}

std::optional<SfbRoute::ItemId> SfbRoute::Outbox::pop() {
  if (!parameters.empty()) return parameters.pop();
  const std::size_t older = iterations[0] < iterations[1] ? 0 : 1;
  return sets[sets[older].empty() ? 1 - older : older].pop();
}

std::optional<SfbRoute::Outgoing> SfbRoute::next_message(WorkerRank peer) {
  const std::optional<ItemId> next = outboxes_[peer.value()].pop();
  if (!next) return std::nullopt;
  const Item& item = items_[next->value()];
  Layer& layer = layers_[item.layer];
  Slot& slot = layer.slots[item.slot];
  FactorHeader header;
  header.epoch = plan_.epoch;
  header.rank = rank_;
  header.layer = layer.index;
  header.iteration = item.of_parameters ? 0 : slot.iteration;
  std::uint32_t piece = item.piece;
  std::shared_ptr<const void> owner = layer.owner;
  if (item.of_parameters) {
    header.kind = FactorKind::kParameters;
  } else if (piece == 0) {
    header.kind = FactorKind::kDigest;
    header.digest = slot.digests[rank_.value()];
    return Outgoing{.message = {.prefix = encode_prefix(header, 0)},
                    .layer = layer.index,
                    .factor_of = std::nullopt};
  } else {
    const bool gradient = piece <= layer.gradient_pieces;
    header.kind = gradient ? FactorKind::kOutputGradient : FactorKind::kInput;
    header.rows = layer.shape.rows;
    piece -= gradient ? 1 : 1 + layer.gradient_pieces;
    owner = stacks_->owner(layer.index, slot.iteration, header.kind);
  }
  header.offset = piece * piece_elements_;
  header.element_type = ElementType::kFloat32;
  const std::span<const float> payload =
      piece_of(layer, header.kind, header.iteration, rank_, piece);
  return Outgoing{.message = {.prefix = encode_prefix(header, payload.size_bytes()),
                              .payload = as_payload(payload),
                              .payload_owner = std::move(owner)},
                  .layer = layer.index,
                  .factor_of = item.of_parameters ? std::nullopt : std::optional(header.iteration)};
}

Objection SfbRoute::judge_iteration(const Layer& layer, const FactorHeader& header) const {
  const auto wrong = [&](const std::string& why) {
    return object(DataRefusal::kIteration,
                  absl::StrCat("iteration ", header.iteration, " of layer ",
                               plan_.layers[layer.index.value()].name, ": ", why));
  };
  if (header.iteration < layer.mine - 1) {
    return object(DataRefusal::kDuplicate, "a set that was used long ago");
  }
  if (header.iteration > layer.mine + 1 || header.iteration > options_.iterations) {
    return wrong(absl::StrCat("this worker is at ", layer.mine, " of ", options_.iterations,
                              ", so no worker can be beyond ",
                              std::min(layer.mine + 1, options_.iterations)));
  }
  if (header.kind == FactorKind::kDigest && !options_.has_digest(header.iteration)) {
    return wrong("its set has no digest");
  }
  if (header.kind != FactorKind::kDigest && header.iteration == options_.iterations) {
    return wrong("after the last iteration only digests are sent");
  }
  if (header.kind == FactorKind::kDigest && header.digest == 0) {
    return object(DataRefusal::kMalformed, "a digest message without its digest");
  }
  return {};
}

Objection SfbRoute::judge(WorkerRank from, const DecodedFactor& message) const {
  const FactorHeader& header = message.header;
  if (Objection objection =
          check_against_plan(header, message.payload.size(), plan_, piece_elements_)) {
    return objection;
  }
  if (header.rank != from) {
    return object(DataRefusal::kRank, absl::StrCat("a message of worker ", header.rank.value(),
                                                   " on the stream of worker ", from.value()));
  }
  if (header.kind != FactorKind::kParameters)
    return judge_iteration(layer_of(header.layer), header);
  if (from.next() != rank_) {
    return object(DataRefusal::kKind,
                  absl::StrCat("initial parameters from worker ", from.value(), ", worker ",
                               rank_.value(), " takes them from the rank before its own"));
  }
  if (header.iteration != 0) {
    return object(DataRefusal::kIteration,
                  absl::StrCat("initial parameters of iteration ", header.iteration));
  }
  return {};
}

FactorLanding SfbRoute::land_parameters(Layer& layer, const DecodedFactor& message) {
  const auto piece = static_cast<std::uint32_t>(message.header.offset / piece_elements_);
  if (layer.parameters_landed[piece]) {
    return {.objection =
                object(DataRefusal::kDuplicate, "initial parameters that have arrived already")};
  }
  copy_payload(message.payload, piece_of(layer, FactorKind::kParameters, 0, rank_, piece));
  layer.parameters_landed[piece] = true;
  if (const WorkerRank next = rank_.next(); next.value() < plan_.workers()) {
    outboxes_[next.value()].parameters.push(ItemId(layer.first_item + piece));
  }
  FactorLanding landing{.payload_bytes = message.payload.size(), .layer = layer.index};
  if (--layer.parameters_missing == 0) landing.initialised = layer.index;
  return landing;
}

FactorLanding SfbRoute::on_message(WorkerRank from, const DecodedFactor& message) {
  if (Objection objection = judge(from, message)) return {.objection = std::move(objection)};
  const FactorHeader& header = message.header;
  Layer& layer = layer_of(header.layer);
  if (header.kind == FactorKind::kParameters) return land_parameters(layer, message);

  Slot& slot = slot_of(layer, header.iteration);
  if (slot.iteration > header.iteration) {
    return {.objection = object(DataRefusal::kDuplicate, "a set that all workers have")};
  }
  if (slot.iteration < header.iteration) begin(layer, slot, header.iteration);
  note_parameters_taken(from);
  note_taken(layer, from, header.iteration - 1);
  auto in_kind = static_cast<std::uint32_t>(header.offset / piece_elements_);
  std::uint32_t piece = 0;
  if (header.kind == FactorKind::kOutputGradient) piece = 1 + in_kind;
  if (header.kind == FactorKind::kInput) piece = 1 + layer.gradient_pieces + in_kind;
  const std::size_t place = std::size_t{from.value()} * layer.pieces + piece;
  if (slot.landed[place]) {
    return {.objection = object(DataRefusal::kDuplicate, "a piece that has arrived already")};
  }
  if (header.kind == FactorKind::kDigest) {
    slot.digests[from.value()] = header.digest;
  } else {
    const std::span<float> target = piece_of(layer, header.kind, header.iteration, from, in_kind);
    PayloadReader reader(message.payload);
    float* to = target.data();
    for (auto run = reader.next(); run.size > 0; run = reader.next()) {
      widen_payload(ElementType::kFloat32, run, to);
      to += run.size;
    }
    // After the copy, while it is in the cache; a refused piece has not landed, so it is not read.
    if (!all_finite(target)) {
      return {.objection = object(
                  DataRefusal::kNotFinite,
                  absl::StrCat("worker ", from.value(), "'s ",
                               header.kind == FactorKind::kInput ? "input" : "output gradient",
                               " of layer ", plan_.layers[header.layer.value()].name,
                               " in iteration ", header.iteration,
                               " holds a value that is no finite number: try a smaller "
                               "optimizer.learning_rate, or look at that machine"))};
    }
  }
  slot.landed[place] = true;
  --slot.missing;
  FactorLanding landing{.payload_bytes = message.payload.size(), .layer = layer.index};
  finish_if_complete(layer, slot, landing);
  return landing;
}

void SfbRoute::finish_if_complete(Layer& layer, Slot& slot, FactorLanding& landing) const {
  if (slot.missing != 0) return;
  landing.complete = layer.index;
  landing.iteration = slot.iteration;
  if (options_.has_digest(slot.iteration)) landing.divergence = divergence(slot);
}

std::string SfbRoute::divergence(const Slot& slot) const {
  const bool equal = std::all_of(slot.digests.begin(), slot.digests.end(),
                                 [&slot](std::uint64_t d) { return d == slot.digests[0]; });
  if (equal) return "";
  std::string digests;
  for (std::size_t rank = 0; rank < slot.digests.size(); ++rank) {
    absl::StrAppendFormat(&digests, "%sworker %d has %016x", rank == 0 ? "" : ", ", rank,
                          slot.digests[rank]);
  }
  return digests;
}

std::vector<LayerIndex> SfbRoute::layers() const {
  std::vector<LayerIndex> indices;
  for (const Layer& layer : layers_) indices.push_back(layer.index);
  return indices;
}

std::vector<WorkerRank> SfbRoute::awaited(LayerIndex index) const {
  const Layer& layer = layer_of(index);
  const Iteration iteration = awaited_iteration(index);
  const Slot& slot = layer.slots[static_cast<std::size_t>(iteration % 2)];
  if (layer.parameters_missing > 0) return {WorkerRank(rank_.value() - 1)};
  const auto [first, end] = wanted_pieces(layer, iteration);
  std::vector<WorkerRank> ranks;
  for (std::uint32_t rank = 0; rank < plan_.workers(); ++rank) {
    const auto begin = slot.landed.begin() + static_cast<std::ptrdiff_t>(rank) * layer.pieces;
    if (!std::all_of(begin + first, begin + end, [](bool landed) { return landed; })) {
      ranks.emplace_back(rank);
    }
  }
  return ranks;
}

}  // namespace poseidon
