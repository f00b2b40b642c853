#include "worker/syncer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fan_out.h"

namespace poseidon {

/// One stream to one server, and what is needed to open it again.
class Syncer::Connection final : public StreamHandler {
 public:
  Connection(Syncer* syncer, ServerIndex server, std::string address)
      : syncer_(syncer),
        server_(server),
        address_(std::move(address)),
        queue_(syncer->traffic_->shared_node(), NodeGauge::kSendQueue),
        reconnect_(syncer->options_) {}

  ReadNext on_message(Bytes message) override {
    syncer_->on_message(*this, message);
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    reconnect_.written(syncer_->transport_->now());
    if (sending_) syncer_->sent(*std::exchange(sending_, std::nullopt));
    syncer_->pump(*this);
  }
  void on_closed(const absl::Status& status) override { syncer_->on_closed(*this, status); }

 private:
  friend class Syncer;
  Syncer* const syncer_;
  const ServerIndex server_;
  const std::string address_;
  std::unique_ptr<Stream> stream_;  ///< null while waiting to connect again
  bool writing_ = false;
  std::optional<TraceSpan> sending_;  ///< the gradient that is being written
  GaugePart queue_;                   ///< what waits to be sent to it
  Reconnect reconnect_;
};

namespace {

SyncerOptions complete(SyncerOptions options) {
  options.sfb.first_iteration = options.first_iteration;
  return options;
}

bool has_sfb_layers(const Plan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const PlanLayer& layer) { return layer.scheme == Scheme::kSfb; });
}

}  // namespace

Syncer::Syncer(Transport* transport, Plan plan, WorkerRank rank, std::vector<LayerMemory> layers,
               SyncerOptions options, SyncerEvents* events, TrafficProbe* traffic,
               RefusalCounts* refusals, PeerAccess peers)
    : transport_(transport),
      rank_(rank),
      options_(complete(options)),
      events_(events),
      traffic_(traffic),
      refusals_(refusals),
      factors_(has_sfb_layers(plan)
                   ? std::make_unique<FactorExchange>(plan, rank, layers, peers, options_, events,
                                                      traffic, refusals)
                   : nullptr),
      route_(std::move(plan), rank, std::move(layers), options.first_iteration),
      ready_since_(route_.plan().layers.size()) {
  // A server without chunks would wait in vain for a word.
  const Plan& ours = route_.plan();
  std::vector<bool> owns(ours.servers(), false);
  for (const PlanChunk& chunk : ours.chunks) owns[chunk.server.value()] = true;
  for (std::uint32_t i = 0; i < ours.servers(); ++i) {
    if (!owns[i]) continue;
    connections_.push_back(
        std::make_unique<Connection>(this, ServerIndex(i), ours.server_addresses[i]));
  }
}

Syncer::~Syncer() { *alive_ = false; }

void Syncer::start() {
  if (rank_ == WorkerRank(0) && options_.first_iteration == 0) {
    route_.initialise_from_here();
  } else {
    route_.pull_initial();
  }
  for (auto& connection : connections_) connect(*connection);
  if (factors_ != nullptr) factors_->start();
}

void Syncer::gradient_ready(LayerIndex layer, Iteration iteration) {
  if (failed_) return;
  ready_since_[layer.value()] = transport_->now();
  route_.gradient_ready(layer, iteration);
  pump_all();
}

void Syncer::layer_measured(LayerIndex layer, Iteration iteration,
                            std::vector<TensorSquares> tensors) {
  if (failed_) return;
  settle(route_.layer_measured(layer, iteration, std::move(tensors)));
}

void Syncer::settle(const NormBook::Complete& norms) {
  if (!norms.layers.empty()) pump_all();
  if (norms.all_gradients) events_->norms_complete(norms.iteration, *norms.all_gradients);
}

void Syncer::fetch_exact() {
  if (failed_) return;
  route_.pull_exact();
  pump_all();
}

void Syncer::pump_all() {
  for (std::size_t turn = 0; turn < connections_.size(); ++turn) {
    pump(*connections_[receiver_in_turn(rank_.value(), turn, connections_.size())]);
  }
}

void Syncer::connect(Connection& connection) {
  connection.writing_ = false;
  connection.sending_.reset();
  connection.stream_ = transport_->connect(connection.address_, &connection);
  route_.stream_opened(connection.server_);
  pump(connection);
}

void Syncer::pump(Connection& connection) {
  connection.queue_.set(static_cast<std::int64_t>(route_.waiting(connection.server_)));
  if (connection.stream_ == nullptr || connection.writing_) return;
  std::optional<PsRoute::Outgoing> next = route_.next_message(connection.server_);
  if (!next) return;
  connection.writing_ = true;
  traffic_->sent(next->layer, next->message.payload.size());
  if (next->gradient_of) {
    TraceSpan span{.stage = Stage::kQueue,
                   .begin = ready_since_[next->layer.value()],
                   .end = transport_->now(),
                   .iteration = *next->gradient_of,
                   .layer = next->layer,
                   .chunk = next->chunk,
                   .peer = connection.server_.value(),
                   .bytes = next->message.payload.size()};
    traffic_->node().took(span);
    span.stage = Stage::kSend;
    span.begin = span.end;
    connection.sending_ = span;
  }
  connection.stream_->write(std::move(next->message));
}

void Syncer::sent(TraceSpan span) {
  span.end = transport_->now();
  traffic_->node().took(span);
}

void Syncer::on_message(Connection& connection, const Bytes& message) {
  const Nanoseconds since = transport_->now();
  const Landing landing = route_.on_message(connection.server_, message);
  connection.reconnect_.in_order();
  if (landing.objection) {
    refusals_->add(landing.objection.reason);
    // A repetition or a message of an earlier epoch is harmless. Anything else means that server
    // and worker disagree about the plan: going on would train something else.
    const DataRefusal reason = landing.objection.reason;
    if (reason == DataRefusal::kDuplicate || reason == DataRefusal::kEpoch) return;
    fail(absl::DataLossError(absl::StrCat("server ", connection.server_.value(), " at ",
                                          connection.address_, " sent what does not fit the plan (",
                                          data_refusal_name(reason),
                                          "): ", landing.objection.message)));
    return;
  }
  traffic_->received(landing.chunk_layer, landing.payload_bytes);
  if (landing.chunk_version >= 0) {
    traffic_->node().took({.stage = Stage::kCopy,
                           .begin = since,
                           .end = transport_->now(),
                           .iteration = landing.chunk_version - 1,  // whose step made them
                           .layer = landing.chunk_layer,
                           .chunk = landing.chunk,
                           .peer = connection.server_.value(),
                           .bytes = landing.payload_bytes});
  }
  settle(landing.norms);
  pump(connection);  // parameters that came before their norms are asked for again
  if (!landing.layer) return;
  if (landing.exact) {
    events_->exact_parameters_ready(*landing.layer);
  } else {
    events_->parameters_ready(*landing.layer, landing.version);
  }
}

void Syncer::on_closed(Connection& connection, const absl::Status& status) {
  connection.stream_.reset();
  if (failed_) return;
  const std::string who =
      absl::StrCat("server ", connection.server_.value(), " at ", connection.address_);
  if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status)) {
    fail(absl::Status(status.code(), absl::StrCat(who, " refused worker ", rank_.value(), ": ",
                                                  status.message())));
    return;
  }
  const Reconnect::Decision decision =
      connection.reconnect_.cut(transport_->now(), absl::IsAborted(status));
  if (decision.give_up) {
    fail(absl::UnavailableError(absl::StrCat(
        who, " could not be reached for ",
        std::chrono::duration_cast<Milliseconds>(decision.silent).count(), " ms (",
        status.message(), "): is its poseidon-server running, and is its port open?")));
    return;
  }
  traffic_->node().count(NodeCount::kRetriesServer);
  transport_->post_after(decision.pause, [this, alive = alive_, &connection] {
    if (*alive && !failed_ && connection.stream_ == nullptr) connect(connection);
  });
}

void Syncer::fail(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  for (auto& connection : connections_) connection->stream_.reset();
  events_->sync_failed(status);
}

}  // namespace poseidon
