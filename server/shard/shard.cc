#include "server/shard/shard.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/tensor/scan.h"

namespace poseidon {
namespace {

ChunkDecision refuse(DataRefusal reason, std::string message) {
  return {.objection = {reason, std::move(message)}, .delivery = std::nullopt};
}

ChunkDecision deliver(ChunkId chunk, std::optional<WorkerRank> only) {
  return {.objection = {}, .delivery = Delivery{chunk, only}};
}

/// Whether workers get 16-bit copies of the parameters.
bool rounds(const Plan& plan) { return plan.wire_type != ElementType::kFloat32; }

std::size_t wire_bytes(const Plan& plan, const PlanChunk& chunk) {
  return static_cast<std::size_t>(chunk.elements) * element_bytes(plan.wire_type);
}

/// Of one element.
bool is_finite(GradientTerms gradient, std::size_t i) {
  float value;
  std::memcpy(&value, gradient.last + i * sizeof value, sizeof value);
  return std::isfinite(gradient.sum == nullptr ? value : gradient.sum[i] + value);
}

/// What to do about values that `wire_type` cannot carry.
const char* remedy(ElementType wire_type) {
  return wire_type == ElementType::kFloat16
             ? "fp16 carries magnitudes up to 65504; set sync.wire_dtype to \"bf16\" (the range of "
               "float32) or \"fp32\", or try a smaller optimizer.learning_rate"
             : "try a smaller optimizer.learning_rate, or check the data and its scale";
}

std::size_t chunks_of(const Plan& plan, ServerIndex server) {
  return static_cast<std::size_t>(std::ranges::count_if(
      plan.chunks, [&](const auto& chunk) { return chunk.server == server; }));
}

}  // namespace

Shard::Shard(Plan plan, ServerIndex self, OptimizerSpec optimizer, const ConsistencyPolicy* policy,
             std::int64_t pending_limit_bytes, Team* team)
    : plan_(std::move(plan)),
      self_(self),
      optimizer_(std::move(optimizer)),
      policy_(policy),
      team_(team),
      contributors_(contributors(plan_)),
      place_of_(plan_.workers(), -1),
      slot_of_chunk_(plan_.chunks.size(), -1),
      early_(contributors_.size(), chunks_of(plan_, self_), pending_limit_bytes) {
  for (std::size_t i = 0; i < contributors_.size(); ++i) {
    place_of_[contributors_[i].value()] = static_cast<std::int32_t>(i);
  }
  const int state_slots = optimizer_state_slots(optimizer_);
  for (std::size_t i = 0; i < plan_.chunks.size(); ++i) {
    const PlanChunk& chunk = plan_.chunks[i];
    if (chunk.server != self_) continue;
    slot_of_chunk_[i] = static_cast<std::int32_t>(slots_.size());
    slots_.push_back(
        {.id = ChunkId(static_cast<std::uint32_t>(i)),
         .current = {.parameters = FloatBuffer::sendable(chunk.elements),
                     .state0 = FloatBuffer(state_slots > 0 ? chunk.elements : 0),
                     .state1 = FloatBuffer(state_slots > 1 ? chunk.elements : 0)},
         .rounded =
             rounds(plan_) ? PayloadBuffer::sendable(wire_bytes(plan_, chunk)) : PayloadBuffer(),
         .sum = Aggregator(chunk.elements, contributors_.size(), plan_.wire_type,
                           plan_.norm_scope != NormScope::kNone, team_),
         .parts = tensor_parts(plan_.layers[chunk.layer.value()], chunk.offset, chunk.elements)});
  }
}

Shard::Slot* Shard::find(ChunkId chunk) {
  return const_cast<Slot*>(std::as_const(*this).find(chunk));
}

const Shard::Slot* Shard::find(ChunkId chunk) const {
  if (chunk.value() >= slot_of_chunk_.size()) return nullptr;
  const std::int32_t slot = slot_of_chunk_[chunk.value()];
  return slot < 0 ? nullptr : &slots_[static_cast<std::size_t>(slot)];
}

ChunkDecision Shard::on_message(const DecodedChunk& message) {
  const ChunkHeader& header = message.header;
  if (Objection objection = check_against_plan(header, message.payload.size(), plan_)) {
    return {.objection = std::move(objection), .delivery = std::nullopt};
  }
  Slot* slot = find(header.chunk);
  if (slot == nullptr) {
    return refuse(DataRefusal::kChunk,
                  absl::StrCat("chunk ", header.chunk.value(), " belongs to server ",
                               plan_.chunks[header.chunk.value()].server.value(),
                               ", this is server ", self_.value()));
  }
  if (place_of_[header.rank.value()] < 0) {
    return refuse(DataRefusal::kRank,
                  absl::StrCat("a message of worker ", header.rank.value(),
                               ", which the plan sends to worker ",
                               leader_of(plan_, header.rank).value(), " (local aggregation)"));
  }
  if (stopped_) return {.objection = stopped_, .delivery = std::nullopt};
  switch (header.kind) {
    case ChunkKind::kPushGradient:
      return on_push(*slot, message);
    case ChunkKind::kInitialise:
      return on_initialise(*slot, message);
    case ChunkKind::kPull:
      return on_pull(*slot, header);
    case ChunkKind::kTotals:
      return on_totals(*slot, message);
    case ChunkKind::kNorms:
    case ChunkKind::kParameters:
      break;
  }
  return refuse(DataRefusal::kKind, absl::StrCat("kind ", static_cast<std::uint32_t>(header.kind),
                                                 " is not for a server"));
}

ChunkDecision Shard::on_initialise(Slot& slot, const DecodedChunk& message) {
  if (message.header.rank != WorkerRank(0) || message.header.iteration != 0) {
    return refuse(DataRefusal::kRank,
                  absl::StrCat("initial parameters from worker ", message.header.rank.value(),
                               " at iteration ", message.header.iteration,
                               ", only worker 0 gives them, at iteration 0"));
  }
  if (slot.version >= 0) {
    // Worker 0 repeats itself when it lost the answer with its stream: it gets it.
    ChunkDecision decision = deliver(slot.id, message.header.rank);
    decision.objection = {DataRefusal::kDuplicate,
                          absl::StrCat("chunk ", slot.id.value(), " is initialised already")};
    return decision;
  }
  copy_payload(message.payload, slot.current.parameters.floats(), ElementType::kFloat32, *team_);
  if (!round_parameters(slot)) {
    return {.objection = stop(slot, "the initial parameters"), .delivery = std::nullopt};
  }
  slot.version = 0;
  return deliver(slot.id, std::nullopt);
}

/// False when the wire type cannot carry them.
bool Shard::round_parameters(Slot& slot) {
  if (!rounds(plan_)) return true;
  const std::span<std::byte> rounded = slot.rounded.writable();
  encode_payload(plan_.wire_type, std::as_const(slot.current.parameters).floats(), rounded, *team_);
  return all_finite_16(plan_.wire_type, rounded);
}

ChunkDecision Shard::on_pull(const Slot& slot, const ChunkHeader& header) const {
  const bool exact = rounds(plan_) && header.element_type == ElementType::kFloat32;
  if (header.iteration <= slot.version) {
    ChunkDecision decision = deliver(slot.id, header.rank);
    decision.delivery->exact = exact;
    return decision;
  }
  // Answered when the chunk reaches that version, with the delivery to all workers.
  if (header.iteration == slot.version + 1 && !exact) return {};
  return refuse(DataRefusal::kIteration,
                absl::StrCat("pull of chunk ", slot.id.value(), " at version ", header.iteration,
                             ", it is at version ", slot.version));
}

ChunkDecision Shard::on_push(Slot& slot, const DecodedChunk& message) {
  const ChunkHeader& header = message.header;
  if (slot.version < 0) {
    return refuse(DataRefusal::kNotInitialised,
                  absl::StrCat("gradient for chunk ", slot.id.value(), " before its parameters"));
  }
  switch (policy_->judge_push(slot.version, header.iteration)) {
    case ConsistencyPolicy::Push::kFuture:
      return refuse(DataRefusal::kIteration,
                    absl::StrCat("gradient of iteration ", header.iteration, " for chunk ",
                                 slot.id.value(), ", which is at version ", slot.version));
    case ConsistencyPolicy::Push::kTooOld:
      return refuse(
          DataRefusal::kDuplicate,
          absl::StrCat("gradient of iteration ", header.iteration, " was counted long ago"));
    case ConsistencyPolicy::Push::kAlreadyComplete: {
      // Either a repetition in flight or a worker that lost the answer with its stream: it gets it.
      ChunkDecision decision = deliver(slot.id, header.rank);
      decision.objection = {
          DataRefusal::kDuplicate,
          absl::StrCat("gradient of iteration ", header.iteration, " is in already")};
      return decision;
    }
    case ConsistencyPolicy::Push::kCounts:
      break;
  }
  const auto place = static_cast<std::size_t>(place_of_[header.rank.value()]);
  if (slot.sum.has(place)) {
    ChunkDecision decision =
        refuse(DataRefusal::kDuplicate,
               absl::StrCat("worker ", header.rank.value(), " gave its gradient of iteration ",
                            header.iteration, " for chunk ", slot.id.value(), " already"));
    // It may have lost the norms with its stream.
    if (!slot.settled.empty()) decision.delivery = {slot.id, header.rank, false, /*norms=*/true};
    return decision;
  }
  const bool held_back = plan_.norm_scope != NormScope::kNone;
  bool complete = false;
  Objection failure;
  early_.contribute(slot.sum, place, [&] {
    slot.sum.add(place, message.payload);
    complete = policy_->is_complete(slot.sum.contributed(),
                                    static_cast<std::uint32_t>(contributors_.size()));
    if (complete) failure = held_back ? settle(slot) : step(slot, nullptr);
  });
  const bool has_rates = slot.rates_ahead && slot.rates_of == slot.version;
  if (complete && !failure && has_rates) failure = step(slot, &*slot.rates_ahead);
  if (failure) return {.objection = std::move(failure), .delivery = std::nullopt};
  if (!complete) return {};
  ChunkDecision decision = deliver(slot.id, std::nullopt);
  decision.delivery->norms = held_back && !has_rates;
  return decision;
}

// ---- steps that are held back ----

Objection Shard::settle(Slot& slot) {
  slot.settled = slot.sum.settle();
  const double scale = static_cast<double>(1.0f / static_cast<float>(plan_.workers()));
  const bool asks_parameters = optimizer_.type == OptimizerType::kLars;
  const std::span<const float> parameters = std::as_const(slot.current.parameters).floats();
  slot.squares.assign(slot.parts.size(), {});
  for (std::size_t i = 0; i < slot.parts.size(); ++i) {
    const TensorPart& part = slot.parts[i];
    if (part.multipliers.frozen()) continue;
    slot.squares[i].gradient =
        square_sum(slot.settled.subspan(part.begin, part.size)) * scale * scale;
    if (asks_parameters) {
      slot.squares[i].parameters = square_sum(parameters.subspan(part.begin, part.size));
    }
  }
  slot.squares_of = slot.version;
  const bool finite = std::all_of(slot.squares.begin(), slot.squares.end(), [](const auto& part) {
    return std::isfinite(part.gradient) && std::isfinite(part.parameters);
  });
  if (finite) return {};
  const PlanChunk& chunk = plan_.chunks[slot.id.value()];
  stopped_ = {
      DataRefusal::kNotFinite,
      absl::StrCat("the norm of the gradients of iteration ", slot.version,
                   " is no finite number: layer ", plan_.layers[chunk.layer.value()].name,
                   " (chunk ", slot.id.value(),
                   ") holds values that are infinite or not a number: ", remedy(plan_.wire_type))};
  return stopped_;
}

/// Totals that are smaller than this chunk's own part belong to another step.
Objection Shard::judge_totals(const Slot& slot, const StepTotals& totals) const {
  const auto too_small = [&slot](double total, double part) {
    return Objection{DataRefusal::kNorm,
                     absl::StrCat("totals of chunk ", slot.id.value(), " with a sum of squares of ",
                                  total, ", of which this chunk alone has ", part)};
  };
  for (std::size_t i = 0; i < slot.squares.size(); ++i) {
    const TensorSquares& part = slot.squares[i];
    const TensorSquares& total = totals.tensors[i];
    if (total.gradient < part.gradient) return too_small(total.gradient, part.gradient);
    if (total.parameters < part.parameters) return too_small(total.parameters, part.parameters);
    if (plan_.norm_scope != NormScope::kLayer && totals.all_gradients < part.gradient) {
      return too_small(totals.all_gradients, part.gradient);
    }
  }
  return {};
}

ChunkDecision Shard::on_totals(Slot& slot, const DecodedChunk& message) {
  const ChunkHeader& header = message.header;
  if (header.rank != WorkerRank(0)) {
    return refuse(DataRefusal::kRank, absl::StrCat("totals from worker ", header.rank.value(),
                                                   ", only worker 0 gives them"));
  }
  const absl::StatusOr<StepTotals> totals = decode_totals(message.payload, plan_.norm_scope);
  if (!totals.ok()) return refuse(DataRefusal::kNorm, std::string(totals.status().message()));
  if (header.iteration == slot.version - 1) {
    // It lost the answer with its stream.
    ChunkDecision decision = deliver(slot.id, header.rank);
    decision.objection = {
        DataRefusal::kDuplicate,
        absl::StrCat("the step of iteration ", header.iteration, " was made already")};
    return decision;
  }
  if (header.iteration < slot.version) {
    return refuse(DataRefusal::kDuplicate, "totals of a step that was made long ago");
  }
  if (plan_.norm_scope == NormScope::kProgram && slot.version >= 0 &&
      header.iteration == slot.version && slot.settled.empty()) {
    slot.rates_ahead = *totals;
    slot.rates_of = slot.version;
    return {};
  }
  if (header.iteration != slot.version || slot.settled.empty()) {
    return refuse(DataRefusal::kIteration,
                  absl::StrCat("totals of iteration ", header.iteration, " for chunk ",
                               slot.id.value(), ", which is at version ", slot.version,
                               slot.settled.empty() ? " and waits for gradients" : ""));
  }
  if (Objection objection = judge_totals(slot, *totals)) {
    return {.objection = std::move(objection), .delivery = std::nullopt};
  }
  if (Objection failure = step(slot, &*totals)) {
    return {.objection = std::move(failure), .delivery = std::nullopt};
  }
  return deliver(slot.id, std::nullopt);
}

// ---- steps ----

Objection Shard::stop(const Slot& slot, const std::string& what) {
  const PlanChunk& chunk = plan_.chunks[slot.id.value()];
  const std::string wire_name(wire_dtype_name(plan_.wire_type));
  stopped_ = {
      DataRefusal::kNotFinite,
      absl::StrCat(what, " of layer ", plan_.layers[chunk.layer.value()].name, " hold values that ",
                   wire_name, " carries as infinite or not a number (chunk ", slot.id.value(),
                   "): ", remedy(plan_.wire_type))};
  return stopped_;
}

/// Memory for the next version: that of the version before the last, unless it still has readers.
Shard::Values Shard::fresh_values(Slot& slot) {
  Values next = std::exchange(slot.previous, {});
  const auto prepare = [](FloatBuffer& buffer, const FloatBuffer& like, bool sendable) {
    if (like.size_bytes() == 0) return;
    if (buffer.size_bytes() > 0 && buffer.exclusive()) return;
    const auto elements = static_cast<std::int64_t>(like.floats().size());
    buffer = sendable ? FloatBuffer::sendable(elements) : FloatBuffer(elements);
  };
  prepare(next.parameters, slot.current.parameters, /*sendable=*/true);
  prepare(next.state0, slot.current.state0, /*sendable=*/false);
  prepare(next.state1, slot.current.state1, /*sendable=*/false);
  return next;
}

Objection Shard::step(Slot& slot, const StepTotals* totals) {
  const float scale = 1.0f / static_cast<float>(plan_.workers());
  absl::InlinedVector<OptimizerStep, 4> steps;  // one per part
  for (std::size_t i = 0; i < slot.parts.size(); ++i) {
    if (plan_.norm_scope == NormScope::kProgram) {
      const auto scaled = static_cast<float>(scale * totals->gradient_scale);
      steps.push_back(optimizer_step_at(totals->rates[i], optimizer_, slot.version, scaled));
      continue;
    }
    StepNorms norms;
    if (totals != nullptr) norms = {totals->all_gradients, totals->tensors[i]};
    steps.push_back(
        make_optimizer_step(optimizer_, slot.version, scale, slot.parts[i].multipliers, norms));
  }
  // Only the version before the last is overwritten, and only when it has no readers.
  Values next = fresh_values(slot);
  const std::span<const float> old = std::as_const(slot.current.parameters).floats();
  const std::span<const float> old0 = std::as_const(slot.current.state0).floats();
  const std::span<const float> old1 = std::as_const(slot.current.state1).floats();
  const std::span<float> fresh = next.parameters.floats();
  const std::span<float> state0 = next.state0.floats(), state1 = next.state1.floats();
  const std::span<std::byte> rounded = slot.rounded.writable();
  const bool freezes = freezes_at(slot.version + 1);
  // Decided element by element, so that the result does not depend on how a chunk is split. Threads
  // only clear them.
  std::atomic<bool> parameters_fit = true, gradients_fit = true, parameters_finite = true;
  const auto step_run = [&](std::size_t first, std::size_t size, GradientTerms gradient) {
    for_each_part(slot.parts, first, size, [&](std::size_t part, std::size_t begin, std::size_t n) {
      const auto run = [&](auto all) { return all.empty() ? all : all.subspan(begin, n); };
      std::ranges::copy(run(old0), run(state0).begin());  // in ranges, which stay in the cache
      std::ranges::copy(run(old1), run(state1).begin());
      apply_optimizer(steps[part], gradient.from(begin - first), run(old), run(fresh), run(state0),
                      run(state1));
    });
    const std::span<const float> stepped = fresh.subspan(first, size);
    if (freezes && !all_finite(stepped)) parameters_finite = false;
    if (rounded.empty()) return;
    const std::size_t width = element_bytes(plan_.wire_type);
    const auto out = rounded.subspan(first * width, size * width);
    encode_payload(plan_.wire_type, stepped, out);
    if (all_finite_16(plan_.wire_type, out)) return;
    parameters_fit = false;
    for (std::size_t i = 0; i < size; ++i) {  // a gradient that is not finite leads here too
      const bool fits = all_finite_16(plan_.wire_type, out.subspan(i * width, width));
      if (!fits && !is_finite(gradient, i)) gradients_fit = false;
    }
  };
  if (totals == nullptr) {
    slot.sum.drain(step_run);
  } else {
    const GradientTerms settled{.last = as_payload(slot.settled).data()};
    team_->for_ranges(slot.settled.size(), [&](std::size_t first, std::size_t size) {
      step_run(first, size, settled.from(first));
    });
    slot.settled = {};
    slot.sum.next_round();
  }
  if (!parameters_fit) {
    return stop(slot, gradients_fit ? absl::StrCat("the parameters after iteration ", slot.version)
                                    : absl::StrCat("the gradients of iteration ", slot.version));
  }
  // The iteration's loss was finite and does not show it.
  if (!parameters_finite) {
    return stop(slot, absl::StrCat("the parameters after iteration ", slot.version));
  }
  slot.previous = std::exchange(slot.current, std::move(next));
  ++slot.version;
  freeze_if_due(slot);
  early_.chunk_done();
  return {};
}

bool Shard::may_read(WorkerRank rank) const {
  return early_.may_read(static_cast<std::size_t>(place_of_[rank.value()]));
}

FloatBuffer Shard::parameters(ChunkId chunk) const {
  const Slot* slot = find(chunk);
  POSEIDON_CHECK(slot != nullptr && slot->version >= 0, "an owned, initialised chunk");
  return slot->current.parameters;
}

ChunkPayload Shard::payload(ChunkId chunk, bool exact) const {
  const Slot* slot = find(chunk);
  POSEIDON_CHECK(slot != nullptr && slot->version >= 0, "an owned, initialised chunk");
  if (!exact && rounds(plan_)) {
    return {
        .type = plan_.wire_type, .bytes = slot->rounded.bytes(), .owner = slot->rounded.owner()};
  }
  return {.type = ElementType::kFloat32,
          .bytes = as_payload(slot->current.parameters.floats()),
          .owner = slot->current.parameters.owner()};
}

Iteration Shard::version(ChunkId chunk) const {
  const Slot* slot = find(chunk);
  POSEIDON_CHECK(slot != nullptr, "an owned chunk");
  return slot->version;
}

ChunkHolder::Norms Shard::norms(ChunkId chunk) const {
  const Slot* slot = find(chunk);
  POSEIDON_CHECK(slot != nullptr, "an owned chunk");
  return {.iteration = slot->squares_of, .parts = &slot->squares};
}

std::vector<ChunkId> Shard::owned_chunks() const {
  std::vector<ChunkId> owned;
  owned.reserve(slots_.size());
  for (const Slot& slot : slots_) owned.push_back(slot.id);
  return owned;
}

std::optional<WorkerRank> Shard::awaited(ChunkId chunk) const {
  const Slot* slot = find(chunk);
  POSEIDON_CHECK(slot != nullptr, "an owned chunk");
  for (std::size_t place = 0; place < contributors_.size(); ++place) {
    if (!slot->sum.has(place)) return contributors_[place];
  }
  return std::nullopt;
}

/// A chunk that no worker has sent anything of is not named: its workers may well compute.
std::vector<AwaitedData> Shard::awaited() const {
  std::vector<AwaitedData> awaited;
  for (const Slot& slot : slots_) {
    AwaitedData data{.layer = plan_.chunks[slot.id.value()].layer,
                     .chunk = slot.id,
                     .iteration = std::max<Iteration>(slot.version, 0),
                     .ranks = {},
                     .server = self_};
    const bool awaits_worker_0 = slot.version < 0 || !slot.settled.empty();
    if (awaits_worker_0) {
      data.ranks.emplace_back(0);
    } else if (slot.sum.contributed() > 0) {
      for (std::size_t place = 0; place < contributors_.size(); ++place) {
        if (!slot.sum.has(place)) data.ranks.push_back(contributors_[place]);
      }
    }
    if (!data.ranks.empty()) awaited.push_back(std::move(data));
    if (awaited.size() == kMostAwaited) break;
  }
  return awaited;
}

std::int64_t Shard::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    for (const Values* values : {&slot.current, &slot.previous}) {
      bytes += values->parameters.size_bytes() + values->state0.size_bytes() +
               values->state1.size_bytes();
    }
    bytes += slot.rounded.size_bytes() + slot.sum.memory_bytes();
  }
  return bytes;
}

}  // namespace poseidon
