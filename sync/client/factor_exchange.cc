#include "sync/client/factor_exchange.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/unreachable.h"
#include "common/wire/fan_out.h"

namespace poseidon {

FactorExchange::FactorExchange(Plan plan, WorkerRank rank, const std::vector<LayerMemory>& layers,
                               FactorStacks* stacks, PeerAccess peers, const SyncerOptions& options,
                               SyncerEvents* events, TrafficProbe* traffic, RefusalCounts* refusals)
    : peers_access_(peers),
      options_(options),
      events_(events),
      traffic_(traffic),
      refusals_(refusals),
      route_(std::move(plan), rank, layers, stacks, options.factor_options()),
      ready_since_(route_.plan().layers.size()) {
  const std::uint32_t workers = route_.plan().workers();
  POSEIDON_CHECK(workers == 1 || (peers.transport != nullptr && peers.door != nullptr),
                 "a plan with SFB layers needs a way to the other workers");
  for (std::uint32_t r = 0; r < workers; ++r) {
    peers_.push_back({.rank = WorkerRank(r),
                      .reconnect = Reconnect(options_),
                      .queue = GaugePart(traffic_->shared_node(), NodeGauge::kSendQueue),
                      .sending = std::nullopt});
  }
}

FactorExchange::~FactorExchange() {
  *alive_ = false;
  if (peers_access_.door != nullptr) peers_access_.door->shut(this);
}

std::string FactorExchange::name(WorkerRank rank) const {
  const std::string& address = route_.plan().worker_addresses[rank.value()];
  return absl::StrCat("worker ", rank.value(), address.empty() ? "" : " at ", address);
}

std::vector<AwaitedData> FactorExchange::awaited_data(LayerIndex layer) const {
  std::vector<WorkerRank> ranks = route_.awaited(layer);
  if (ranks.empty()) return {};
  return {{.layer = layer,
           .chunk = std::nullopt,
           .iteration = route_.awaited_iteration(layer),
           .ranks = std::move(ranks),
           .server = std::nullopt}};
}

std::string FactorExchange::awaited(LayerIndex layer) const {
  std::string names;
  for (const WorkerRank rank : route_.awaited(layer)) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", name(rank));
  }
  return names;
}

void FactorExchange::start() {
  if (peers_access_.door != nullptr) peers_access_.door->open(this);
  for (Peer& peer : peers_) {
    if (failed_) return;
    if (peer.rank <= route_.rank()) continue;
    if (route_.plan().worker_addresses[peer.rank.value()].empty()) {
      fail(absl::FailedPreconditionError(
          absl::StrCat(name(peer.rank),
                       " listens nowhere, but layers go from worker to worker (SFB): start it "
                       "with --listen, or set sync.scheme to \"ps\"")));
      return;
    }
    connect(peer);
  }
  const Iteration first = route_.options().first_iteration;
  if (first == 0) {
    if (route_.rank() != WorkerRank(0)) return;
    route_.initialise_from_here();
  }
  for (const LayerIndex layer : route_.layers()) events_->layer_initialised(layer, first);
  pump_all();
}

void FactorExchange::factors_ready(LayerIndex layer, Iteration iteration, std::uint64_t digest) {
  if (failed_) return;
  if (peers_access_.transport != nullptr) {
    ready_since_[layer.value()] = peers_access_.transport->now();
  }
  settle(route_.factors_ready(layer, iteration, digest));
  pump_all();
}

// ---- streams ----

void FactorExchange::connect(Peer& peer) {
  peer.stream = std::make_unique<PeerStream>(this, PeerStreamOrigin::kConnected);
  peer.stream->give_to(this, peer.rank);
  peer.greeted = false;
  peer.reconnect.attempt(peers_access_.transport->now());
  peer.stream->attach(peers_access_.transport->connect(
      route_.plan().worker_addresses[peer.rank.value()], peer.stream.get()));
  greet(peer);
}

void FactorExchange::greet(Peer& peer) {
  FactorHeader hello;
  hello.epoch = route_.plan().epoch;
  hello.rank = route_.rank();
  hello.proof = proof_at(route_.plan().proofs.to_workers, peer.rank.value());
  peer.stream->write({.prefix = encode_prefix(hello, 0)});
}

absl::Status FactorExchange::admit(const PeerStream& stream, const FactorHeader& hello,
                                   std::size_t payload_bytes) {
  const Plan& plan = route_.plan();
  Objection objection = check_against_plan(hello, payload_bytes, plan, route_.piece_elements());
  if (objection.reason == DataRefusal::kEpoch && hello.epoch > plan.epoch) {
    // The other worker has its new assignment before we have ours.
    return absl::AbortedError(absl::StrCat("this worker is still at epoch ", plan.epoch.value()));
  }
  if (!objection && hello.rank >= route_.rank()) {
    objection = {DataRefusal::kRank,
                 absl::StrCat("worker ", hello.rank.value(), " does not connect to worker ",
                              route_.rank().value(), ": the lower rank does")};
  }
  if (!objection) objection = check_proof(plan, hello.rank, hello.proof);
  if (!objection && failed_) return absl::AbortedError("this worker's run has failed");
  if (!objection) return absl::OkStatus();
  peers_access_.door->count_refusal(stream, objection);
  return absl::InvalidArgumentError(
      absl::StrCat("refused (", data_refusal_name(objection.reason), "): ", objection.message));
}

void FactorExchange::adopt(std::unique_ptr<PeerStream> stream, WorkerRank rank) {
  Peer& peer = peers_[rank.value()];
  stream->give_to(this, rank);
  peer.stream = std::move(stream);  // an older stream is cut: the other side has given it up
  greet(peer);
  greeted(peer);
}

void FactorExchange::greeted(Peer& peer) {
  peer.greeted = true;
  peer.sending.reset();
  peer.reconnect.written(peers_access_.transport->now());
  ++peer.losses;
  route_.stream_opened(peer.rank);
  pump(peer);
}

void FactorExchange::pump(Peer& peer) {
  peer.queue.set(static_cast<std::int64_t>(route_.waiting(peer.rank)));
  if (peer.stream == nullptr || !peer.greeted || !peer.stream->may_write()) return;
  std::optional<SfbRoute::Outgoing> next = route_.next_message(peer.rank);
  if (!next) return;
  traffic_->sent(next->layer, next->message.payload.size());
  if (next->factor_of) {
    TraceSpan span{.stage = Stage::kQueue,
                   .begin = ready_since_[next->layer.value()],
                   .end = peers_access_.transport->now(),
                   .iteration = *next->factor_of,
                   .layer = next->layer,
                   .peer = peer.rank.value(),
                   .bytes = next->message.payload.size()};
    traffic_->node().took(span);
    span.stage = Stage::kSend;
    span.begin = span.end;
    peer.sending = span;
  }
  peer.stream->write(std::move(next->message));
}

void FactorExchange::pump_all() {
  for (std::size_t turn = 0; turn < peers_.size(); ++turn) {
    pump(peers_[receiver_in_turn(route_.rank().value(), turn, peers_.size())]);
  }
}

void FactorExchange::on_written(PeerStream& stream) {
  Peer& peer = peers_[stream.peer().value()];
  if (peer.stream.get() == &stream && peer.sending) {
    TraceSpan span = *std::exchange(peer.sending, std::nullopt);
    span.end = peers_access_.transport->now();
    traffic_->node().took(span);
  }
  pump(peer);
}

void FactorExchange::on_message(PeerStream& stream, const Bytes& message) {
  Peer& peer = peers_[stream.peer().value()];
  const absl::StatusOr<DecodedFactor> decoded = decode_factor(message);
  if (!decoded.ok()) {
    refuse(peer, {DataRefusal::kMalformed, std::string(decoded.status().message())});
    return;
  }
  const Nanoseconds since = peers_access_.transport->now();
  FactorLanding landing;
  if (decoded->header.kind == FactorKind::kHello) {
    landing.objection = check_against_plan(decoded->header, decoded->payload.size(), route_.plan(),
                                           route_.piece_elements());
    if (!landing.objection && decoded->header.rank != peer.rank) {
      landing.objection = {DataRefusal::kRank,
                           absl::StrCat("a HELLO of worker ", decoded->header.rank.value(),
                                        " on the stream of worker ", peer.rank.value())};
    }
    if (!landing.objection) {
      landing.objection = check_proof(route_.plan(), peer.rank, decoded->header.proof);
    }
  } else {
    landing = route_.on_message(peer.rank, *decoded);
  }
  if (landing.objection.reason == DataRefusal::kDuplicate) {
    refusals_->add(DataRefusal::kDuplicate);  // harmless: repeated after a cut
  } else if (landing.objection) {
    refuse(peer, landing.objection);
    return;
  }
  if (!peer.greeted) greeted(peer);
  if (landing.objection || decoded->header.kind == FactorKind::kHello) return;
  peer.reconnect.in_order();
  if (peer.outage.is_out()) peer.outage.over(name(peer.rank), since, options_.log);
  traffic_->received(landing.layer, landing.payload_bytes);
  if (decoded->header.kind == FactorKind::kOutputGradient ||
      decoded->header.kind == FactorKind::kInput) {
    traffic_->node().took({.stage = Stage::kCopy,
                           .begin = since,
                           .end = peers_access_.transport->now(),
                           .iteration = decoded->header.iteration,
                           .layer = landing.layer,
                           .peer = peer.rank.value(),
                           .bytes = landing.payload_bytes});
  }
  settle(landing);
  // Passes received parameters on to the next rank.
  if (decoded->header.kind == FactorKind::kParameters) pump_all();
}

void FactorExchange::settle(const FactorLanding& landing) {
  if (landing.initialised) events_->layer_initialised(*landing.initialised, 0);
  if (!landing.complete) return;
  if (!landing.divergence.empty()) {
    traffic_->node().count(NodeCount::kReplicasDiffer);
    fail(absl::DataLossError(absl::StrCat(
        "the workers' copies of layer ", route_.plan().layers[landing.complete->value()].name,
        " differ after ", landing.iteration, " iterations (digests: ", landing.divergence,
        "): copies stay equal only on machines that compute alike; look for another CPU model or "
        "version of Poseidon or oneDNN, or faulty memory, or set sync.scheme to \"ps\"; "
        "checkpoints made after iteration ",
        route_.options().compared_before(landing.iteration),
        " may have it, too: restore one of that iteration or before")));
    return;
  }
  events_->factors_complete(*landing.complete, landing.iteration);
}

// ---- errors ----

/// The sender of an invalid message gets the reason, and its run fails. One that we connected to
/// can only be cut; its address is the plan's, so it is no stranger, and the run fails here.
void FactorExchange::refuse(Peer& peer, const Objection& objection) {
  peers_access_.door->count_refusal(*peer.stream, objection);
  if (peer.stream->origin() == PeerStreamOrigin::kAccepted) {
    peer.stream->close(absl::InvalidArgumentError(
        absl::StrCat("refused (", data_refusal_name(objection.reason), "): ", objection.message)));
    return;
  }
  fail(absl::DataLossError(absl::StrCat(name(peer.rank), " sent what does not fit the plan (",
                                        data_refusal_name(objection.reason),
                                        "): ", objection.message)));
}

void FactorExchange::on_closed(PeerStream& stream, const absl::Status& status) {
  Peer& peer = peers_[stream.peer().value()];
  if (peer.stream.get() != &stream) return;
  const std::unique_ptr<PeerStream> gone = std::move(peer.stream);  // until `status` is read
  peer.greeted = false;
  if (!failed_) lost(peer, status);
}

void FactorExchange::lost(Peer& peer, const absl::Status& status) {
  const bool we_connect = peer.rank > route_.rank();
  if (we_connect && !status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status)) {
    fail(absl::Status(status.code(), absl::StrCat(name(peer.rank), " refused worker ",
                                                  route_.rank().value(), ": ", status.message())));
    return;
  }
  // The other worker is alive, but not ready yet: the coordinator limits how long that may take.
  if (absl::IsAborted(status)) peer.reconnect.alive();
  const Nanoseconds now = peers_access_.transport->now();
  const Reconnect::Decision decision = peer.reconnect.cut(now);
  const std::uint64_t loss = ++peer.losses;
  const auto unreachable = [this](const Peer& who, Nanoseconds silent, const std::string& why) {
    fail(unreachable_error(
        route_.plan().worker_addresses[who.rank.value()],
        absl::StrCat(
            name(who.rank), " could not be reached for ",
            std::chrono::duration_cast<Milliseconds>(silent).count(), " ms (", why,
            "): is its poseidon-worker running, and is its port open to the other workers?")));
  };
  if (decision.give_up) {
    unreachable(peer, decision.silent, std::string(status.message()));
    return;
  }
  if (!absl::IsAborted(status)) {
    peer.outage.cut(name(peer.rank), status, now - decision.silent, now, options_.give_up_after,
                    options_.log);
  }
  traffic_->node().count(NodeCount::kRetriesWorker);
  // We reconnect after a pause; or the other worker does, until we give up.
  const Nanoseconds delay = we_connect ? decision.pause : options_.give_up_after;
  peers_access_.transport->post_after(
      delay, [this, alive = alive_, &peer, loss, we_connect, delay, unreachable] {
        if (!*alive || failed_ || peer.losses != loss) return;
        if (we_connect) {
          connect(peer);
        } else {
          unreachable(peer, delay, "its stream ended and it opened no other");
        }
      });
}

void FactorExchange::fail(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  for (Peer& peer : peers_) peer.stream.reset();
  events_->sync_failed(status);
}

}  // namespace poseidon
