#include "sync/routes/ps_route.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/memory/aligned_buffer.h"
#include "common/plan/tensor_parts.h"
#include "common/wire/norm_wire.h"

namespace poseidon {
namespace {

Landing refused(DataRefusal reason, std::string message) {
  return Refused{{reason, std::move(message)}};
}

}  // namespace

PsRoute::PsRoute(Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
                 Iteration first_version, Team* team)
    : plan_(std::move(plan)),
      rank_(rank),
      layers_(std::move(layers)),
      team_(team),
      chunks_(plan_.chunks.size()),
      queues_(plan_.servers(), ChunkQueue(plan_.chunks.size(), plan_.send_order)),
      missing_chunks_(plan_.layers.size(), 0),
      of_layer_(plan_.layers.size()),
      leading_(plan_.layers.size(), 0) {
  POSEIDON_CHECK(layers_.size() == plan_.layers.size(), "memory for every layer of the plan");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (plan_.layers[i].scheme != Scheme::kPs) continue;
    POSEIDON_CHECK(
        static_cast<std::int64_t>(layers_[i].parameters.size()) == plan_.layers[i].parameters,
        "parameter memory as long as the layer");
    POSEIDON_CHECK(layers_[i].gradients.size() == layers_[i].parameters.size(),
                   "gradient memory as long as the layer");
  }
  for (std::uint32_t i = 0; i < plan_.chunks.size(); ++i) {
    of_layer_[plan_.chunks[i].layer.value()].push_back(ChunkId(i));
    chunks_[i].version = first_version - 1;
    if (plan_.wire_type == ElementType::kFloat32) continue;
    chunks_[i].rounded = PayloadBuffer::sendable(
        static_cast<std::size_t>(plan_.chunks[i].elements) * element_bytes(plan_.wire_type));
  }
  if (hears_norms(plan_, rank_)) book_.emplace(plan_, first_version);
}

void PsRoute::enqueue(ChunkId chunk, Request kind) {
  POSEIDON_CHECK(chunks_[chunk.value()].request == Request::kNone, "one request per chunk");
  chunks_[chunk.value()].request = kind;
  const PlanChunk& plan = plan_.chunks[chunk.value()];
  ++missing_chunks_[plan.layer.value()];
  queues_[plan.server.value()].push(chunk);
}

void PsRoute::initialise_from_here() {
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    enqueue(ChunkId(i), Request::kInitialise);
  }
}

void PsRoute::pull_initial() {
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) enqueue(ChunkId(i), Request::kPull);
}

void PsRoute::pull_exact() {
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    enqueue(ChunkId(i), Request::kPullExact);
  }
}

void PsRoute::gradient_ready(LayerIndex layer, Iteration iteration) {
  for (const ChunkId chunk : of_layer_[layer.value()]) push(chunk, iteration);
}

void PsRoute::request(const ChunkRequest& request) {
  switch (request.kind) {
    case ChunkRequest::Kind::kInitialise:
      enqueue(request.chunk, Request::kInitialise);
      break;
    case ChunkRequest::Kind::kPullExact:
      enqueue(request.chunk, Request::kPullExact);
      break;
    case ChunkRequest::Kind::kPush:
      push(request.chunk, request.iteration);
      break;
  }
}

void PsRoute::push(ChunkId chunk, Iteration iteration) {
  POSEIDON_CHECK(chunks_[chunk.value()].version == iteration,
                 "a gradient is computed on the parameters of its own iteration");
  chunks_[chunk.value()].rates_sent = false;
  enqueue(chunk, Request::kPush);
}

NormBook::Complete PsRoute::layer_measured(LayerIndex layer, Iteration iteration,
                                           std::vector<TensorSquares> tensors) {
  POSEIDON_CHECK(book_.has_value(), "a plan whose SFB layers wait for norms");
  NormBook::Complete complete = book_->add_layer(layer, iteration, std::move(tensors));
  release(complete);
  return complete;
}

void PsRoute::step_rates(Iteration iteration, ProgramRates rates) {
  POSEIDON_CHECK(plan_.norm_scope == NormScope::kProgram, "a plan whose steps wait for rates");
  rates_ = std::move(rates);
  rates_of_ = iteration;
  if (rates_.ahead || book_->network_known() != iteration) return;
  NormBook::Complete complete{.layers = {}, .iteration = iteration, .all_gradients = std::nullopt};
  for (std::uint32_t l = 0; l < of_layer_.size(); ++l) complete.layers.emplace_back(l);
  release(complete);
}

/// Worker 0 lets the servers make the steps whose norms are complete.
void PsRoute::release(const NormBook::Complete& complete) {
  if (rank_ != WorkerRank(0)) return;
  const bool has_rates = rates_of_ == complete.iteration;
  if (plan_.norm_scope == NormScope::kProgram && (!has_rates || rates_.ahead)) return;
  for (const LayerIndex layer : complete.layers) {
    for (const ChunkId id : of_layer_[layer.value()]) {
      POSEIDON_CHECK(chunks_[id.value()].request == Request::kPush, "no step before its totals");
      chunks_[id.value()].request = Request::kTotals;
      queues_[plan_.chunks[id.value()].server.value()].push(id);
    }
  }
}

/// Where worker 0 has the rates of a step before its gradients, they travel ahead of these.
bool PsRoute::sends_rates_ahead(const Chunk& chunk) const {
  return rank_ == WorkerRank(0) && chunk.request == Request::kPush && rates_.ahead &&
         rates_of_ == chunk.version;
}

std::string PsRoute::totals_of(ChunkId id) const {
  const PlanChunk& place = plan_.chunks[id.value()];
  const bool ahead = sends_rates_ahead(chunks_[id.value()]);
  StepTotals totals{.all_gradients = ahead ? 0.0 : book_->all_gradients(),
                    .tensors = {},
                    .gradient_scale = rates_.gradient_scale,
                    .rates = {}};
  const std::vector<TensorSquares>& layer = book_->totals(place.layer);
  for (const TensorPart& part :
       tensor_parts(plan_.layers[place.layer.value()], place.offset, place.elements)) {
    totals.tensors.push_back(ahead ? TensorSquares{} : layer[part.tensor]);
    if (plan_.norm_scope != NormScope::kProgram) continue;
    totals.rates.push_back(rates_.tensors[place.layer.value()][part.tensor]);
  }
  return encode_totals(totals);
}

void PsRoute::stream_opened(ServerIndex server) {
  const std::vector<ChunkId> chunks = unanswered(server);
  for (const ChunkId chunk : chunks) {
    chunks_[chunk.value()].rates_sent = false;
    queues_[server.value()].push(chunk);
  }
  if (!chunks.empty()) return;
  std::optional<ChunkId> smallest;
  for (std::uint32_t i = 0; i < plan_.chunks.size(); ++i) {
    const PlanChunk& chunk = plan_.chunks[i];
    if (chunk.server != server || chunks_[i].version < 0) continue;
    if (!smallest || chunk.elements < plan_.chunks[smallest->value()].elements) {
      smallest = ChunkId(i);
    }
  }
  if (!smallest) return;
  chunks_[smallest->value()].greets = true;
  queues_[server.value()].push(*smallest);
}

std::optional<PsRoute::Outgoing> PsRoute::next_message(ServerIndex server) {
  const std::optional<ChunkId> next = queues_[server.value()].pop();
  if (!next) return std::nullopt;
  const PlanChunk& place = plan_.chunks[next->value()];
  Chunk& chunk = chunks_[next->value()];
  const LayerMemory& memory = layers_[place.layer.value()];
  ChunkHeader header;
  header.epoch = plan_.epoch;
  header.rank = rank_;
  header.chunk = *next;
  header.offset = place.offset;
  header.proof = proof_at(plan_.proofs.to_servers, server.value());
  OutgoingMessage message;
  const auto part = [&place](std::span<const float> whole) {
    return whole.subspan(static_cast<std::size_t>(place.offset),
                         static_cast<std::size_t>(place.elements));
  };
  const bool greets = std::exchange(chunk.greets, false);
  if (sends_rates_ahead(chunk) && !std::exchange(chunk.rates_sent, true)) {
    queues_[server.value()].push(*next);  // the gradient follows
    return totals_message(*next, header);
  }
  switch (chunk.request) {
    case Request::kPush:
      header.kind = ChunkKind::kPushGradient;
      header.iteration = chunk.version;
      header.element_type = plan_.wire_type;
      if (plan_.wire_type == ElementType::kFloat32) {
        message.payload = as_payload(part(memory.gradients));
        message.payload_owner = memory.owner;
      } else {
        round_gradient(chunk, part(memory.gradients));
        message.payload = std::as_const(chunk.rounded).bytes();
        message.payload_owner = chunk.rounded.owner();
      }
      break;
    case Request::kInitialise:
      header.kind = ChunkKind::kInitialise;
      header.element_type = ElementType::kFloat32;
      message.payload = as_payload(part(memory.parameters));
      message.payload_owner = memory.owner;
      break;
    case Request::kPull:
      header.kind = ChunkKind::kPull;
      header.iteration = chunk.version + 1;
      break;
    case Request::kPullExact:
      header.kind = ChunkKind::kPull;
      header.iteration = chunk.version;
      header.element_type = ElementType::kFloat32;
      break;
    case Request::kTotals:
      return totals_message(*next, header);
    case Request::kNone:
      POSEIDON_CHECK(greets, "only requested chunks wait in a queue");
      header.kind = ChunkKind::kPull;
      header.iteration = chunk.version;
      break;
  }
  message.prefix = encode_prefix(header, message.payload.size());
  const bool pushes = header.kind == ChunkKind::kPushGradient;
  return Outgoing{.message = std::move(message),
                  .layer = place.layer,
                  .chunk = *next,
                  .gradient_of = pushes ? std::optional(header.iteration) : std::nullopt};
}

PsRoute::Outgoing PsRoute::totals_message(ChunkId id, ChunkHeader header) const {
  header.kind = ChunkKind::kTotals;
  header.iteration = chunks_[id.value()].version;
  const std::string totals = totals_of(id);
  OutgoingMessage message;
  message.prefix = encode_prefix(header, totals.size());
  message.prefix.append(totals);
  return Outgoing{.message = std::move(message),
                  .layer = plan_.chunks[id.value()].layer,
                  .chunk = id,
                  .gradient_of = std::nullopt};
}

void PsRoute::round_gradient(Chunk& chunk, std::span<const float> gradient) {
  if (chunk.rounded_of == chunk.version) return;  // sent again after a cut
  encode_payload(plan_.wire_type, gradient, chunk.rounded.writable(), *team_);
  chunk.rounded_of = chunk.version;
}

Objection PsRoute::judge(ServerIndex from, const DecodedChunk& decoded) const {
  const ChunkHeader& header = decoded.header;
  if (Objection objection = check_against_plan(header, decoded.payload.size(), plan_)) {
    return objection;
  }
  const bool of_norms = header.kind == ChunkKind::kNorms && book_.has_value();
  if (header.kind != ChunkKind::kParameters && !of_norms) {
    return {DataRefusal::kKind,
            absl::StrCat("kind ", static_cast<std::uint32_t>(header.kind), " is not for a worker")};
  }
  if (header.rank != rank_) {
    return {DataRefusal::kRank, absl::StrCat("a message for worker ", header.rank.value(),
                                             ", this is worker ", rank_.value())};
  }
  if (plan_.chunks[header.chunk.value()].server != from) {
    return {DataRefusal::kChunk, absl::StrCat("chunk ", header.chunk.value(), " from server ",
                                              from.value(), ", the plan gives it to server ",
                                              plan_.chunks[header.chunk.value()].server.value())};
  }
  if (of_norms) return judge_norms(header);
  const Chunk& chunk = chunks_[header.chunk.value()];
  const bool exact = header.element_type != plan_.wire_type;
  if (chunk.request == Request::kPullExact && header.iteration == chunk.version &&
      header.element_type == ElementType::kFloat32) {
    return {};
  }
  if (header.iteration <= chunk.version) {
    return {DataRefusal::kDuplicate, absl::StrCat("version ", header.iteration, " of chunk ",
                                                  header.chunk.value(), " is here already")};
  }
  if (exact) {
    return {DataRefusal::kElementType,
            absl::StrCat("exact parameters of chunk ", header.chunk.value(), " at version ",
                         header.iteration, ", for which this worker did not ask")};
  }
  const bool asked = chunk.request != Request::kNone &&
                     chunk.request != Request::kPullExact;  // of the present version
  if (header.iteration != chunk.version + 1 || !asked) {
    return {
        DataRefusal::kIteration,
        absl::StrCat("version ", header.iteration, " of chunk ", header.chunk.value(),
                     ", this worker has ", chunk.version, asked ? "" : " and did not ask for it")};
  }
  if (rank_ == WorkerRank(0) && book_.has_value() && chunk.request == Request::kPush &&
      !sends_rates_ahead(chunk) && book_->known(header.chunk) >= chunk.version) {
    return {DataRefusal::kIteration,
            absl::StrCat("version ", header.iteration, " of chunk ", header.chunk.value(),
                         ", but this worker has not sent the norms of its step yet")};
  }
  return {};
}

Objection PsRoute::judge_norms(const ChunkHeader& header) const {
  const Chunk& chunk = chunks_[header.chunk.value()];
  if (header.iteration < 0 || header.iteration <= book_->known(header.chunk)) {
    return {DataRefusal::kDuplicate, absl::StrCat("norms of chunk ", header.chunk.value(),
                                                  " in iteration ", header.iteration, " are here")};
  }
  if (header.iteration != chunk.version || chunk.request != Request::kPush) {
    return {
        DataRefusal::kIteration,
        absl::StrCat("norms of chunk ", header.chunk.value(), " in iteration ", header.iteration,
                     ", of which this worker at version ", chunk.version, " sent no gradient")};
  }
  return {};
}

Landing PsRoute::land_norms(const DecodedChunk& decoded) {
  absl::StatusOr<std::vector<TensorSquares>> squares = decode_norms(decoded.payload);
  if (!squares.ok()) return refused(DataRefusal::kNorm, std::string(squares.status().message()));
  const ChunkId id = decoded.header.chunk;
  const PlanChunk& place = plan_.chunks[id.value()];
  NormsLanded landed{
      .layer = place.layer,
      .payload_bytes = decoded.payload.size(),
      .complete = book_->add_chunk(id, decoded.header.iteration, *std::move(squares))};
  if (std::exchange(chunks_[id.value()].early, false)) queues_[place.server.value()].push(id);
  release(landed.complete);
  return landed;
}

Landing PsRoute::on_message(ServerIndex from, const Bytes& message) {
  const absl::StatusOr<DecodedChunk> decoded = decode_chunk(message);
  if (!decoded.ok()) {
    return refused(DataRefusal::kMalformed, std::string(decoded.status().message()));
  }
  if (Objection objection = judge(from, *decoded)) return Refused{std::move(objection)};
  if (decoded->header.kind == ChunkKind::kNorms) return land_norms(*decoded);
  const ChunkId id = decoded->header.chunk;
  const PlanChunk& place = plan_.chunks[id.value()];
  const Iteration norms_wanted = decoded->header.iteration - 1;
  if (book_.has_value() && book_->known(id) < norms_wanted) {
    // They overtook the norms of their step. Accepting them would end the request that repeats
    // those norms after a cut. So they are requested again once the norms have arrived.
    chunks_[id.value()].early = true;
    return refused(DataRefusal::kDuplicate,
                   absl::StrCat("version ", norms_wanted + 1, " of chunk ", id.value(),
                                " before the norms of its step"));
  }
  copy_payload(
      decoded->payload,
      layers_[place.layer.value()].parameters.subspan(static_cast<std::size_t>(place.offset),
                                                      static_cast<std::size_t>(place.elements)),
      decoded->header.element_type, *team_);
  Chunk& chunk = chunks_[id.value()];
  const bool exact = chunk.request == Request::kPullExact;
  chunk.version = decoded->header.iteration;
  chunk.request = Request::kNone;
  queues_[place.server.value()].erase(id);  // answered before a repetition was sent
  const ChunkLanded landed{.chunk = id,
                           .layer = place.layer,
                           .version = chunk.version,
                           .exact = exact,
                           .payload_bytes = decoded->payload.size(),
                           .leading_elements = leading_elements(place.layer, chunk.version)};
  if (--missing_chunks_[place.layer.value()] > 0) return landed;
  leading_[place.layer.value()] = 0;
  return LayerLanded{landed};
}

std::int64_t PsRoute::leading_elements(LayerIndex layer, Iteration version) {
  const std::vector<ChunkId>& chunks = of_layer_[layer.value()];
  std::size_t& leading = leading_[layer.value()];
  while (leading < chunks.size() && chunks_[chunks[leading].value()].version >= version) ++leading;
  if (leading == 0) return 0;
  const PlanChunk& last = plan_.chunks[chunks[leading - 1].value()];
  return last.offset + last.elements;
}

std::vector<AwaitedData> PsRoute::awaited(LayerIndex layer) const {
  std::vector<AwaitedData> awaited;
  for (const ChunkId chunk : of_layer_[layer.value()]) {
    if (chunks_[chunk.value()].request == Request::kNone) continue;
    awaited.push_back({.layer = layer,
                       .chunk = chunk,
                       .iteration = std::max<Iteration>(chunks_[chunk.value()].version, 0),
                       .ranks = {},
                       .server = plan_.chunks[chunk.value()].server});
    if (awaited.size() == kMostAwaited) break;
  }
  return awaited;
}

std::vector<ChunkId> PsRoute::unanswered(ServerIndex server) const {
  std::vector<ChunkId> chunks;
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    if (plan_.chunks[i].server == server && chunks_[i].request != Request::kNone) {
      chunks.emplace_back(i);
    }
  }
  return chunks;
}

}  // namespace poseidon
