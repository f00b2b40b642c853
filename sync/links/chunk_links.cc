#include "sync/links/chunk_links.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/unreachable.h"
#include "common/wire/fan_out.h"
#include "sync/links/outage_log.h"

namespace poseidon {

/// One stream, with the state to open it again.
class ChunkLinks::Link final : public StreamHandler {
 public:
  Link(ChunkLinks* links, ServerIndex server, std::string address)
      : links_(links),
        server_(server),
        address_(std::move(address)),
        queue_(links->traffic_->shared_node(), NodeGauge::kSendQueue),
        reconnect_(links->options_) {}

  ReadNext on_message(Bytes message) override {
    links_->on_message(*this, message);
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    reconnect_.written(links_->transport_->now());
    if (sending_) links_->sent(*std::exchange(sending_, std::nullopt));
    links_->pump(*this);
  }
  void on_closed(const absl::Status& status) override { links_->on_closed(*this, status); }

  std::string name() const {
    if (links_->towards_ == Towards::kRelay) {
      return absl::StrCat("the relay of worker ", peer_number(), " at ", address_);
    }
    return absl::StrCat("server ", server_.value(), " at ", address_);
  }
  std::uint32_t peer_number() const {
    return links_->towards_ == Towards::kServers
               ? server_.value()
               : leader_of(links_->route_.plan(), links_->route_.rank()).value();
  }

 private:
  friend class ChunkLinks;
  ChunkLinks* const links_;
  const ServerIndex server_;
  const std::string address_;
  std::unique_ptr<Stream> stream_;  ///< null while waiting to connect again
  bool writing_ = false;
  std::optional<TraceSpan> sending_;  ///< the gradient that is being written
  GaugePart queue_;                   ///< messages that wait to be sent to it
  Reconnect reconnect_;
  OutageLog outage_;
};

ChunkLinks::ChunkLinks(Transport* transport, PsRoute route, Towards towards,
                       const SyncerOptions& options, ChunkEvents* events, TrafficProbe* traffic,
                       RefusalCounts* refusals)
    : transport_(transport),
      towards_(towards),
      options_(options),
      events_(events),
      traffic_(traffic),
      refusals_(refusals),
      route_(std::move(route)),
      ready_since_(route_.plan().layers.size()) {
  // A server without chunks would get no message and close the stream.
  const Plan& plan = route_.plan();
  std::vector<bool> owns(plan.servers(), false);
  for (const PlanChunk& chunk : plan.chunks) owns[chunk.server.value()] = true;
  for (std::uint32_t i = 0; i < plan.servers(); ++i) {
    if (!owns[i]) continue;
    links_.push_back(std::make_unique<Link>(this, ServerIndex(i), plan.server_addresses[i]));
  }
}

ChunkLinks::~ChunkLinks() { *alive_ = false; }

void ChunkLinks::start(FirstParameters first) {
  switch (first) {
    case FirstParameters::kGiven:
      route_.initialise_from_here();
      break;
    case FirstParameters::kFetched:
      route_.pull_initial();
      break;
    case FirstParameters::kRequested:
      break;
  }
  for (auto& link : links_) connect(*link);
}

void ChunkLinks::gradient_ready(LayerIndex layer, Iteration iteration) {
  if (failed_) return;
  ready_since_[layer.value()] = transport_->now();
  route_.gradient_ready(layer, iteration);
  pump_all();
}

void ChunkLinks::request(std::span<const ChunkRequest> requests) {
  if (failed_ || requests.empty()) return;
  for (const ChunkRequest& request : requests) {
    if (request.kind == ChunkRequest::Kind::kPush) {
      const LayerIndex layer = route_.plan().chunks[request.chunk.value()].layer;
      ready_since_[layer.value()] = transport_->now();
    }
    route_.request(request);
  }
  pump_all();
}

void ChunkLinks::layer_measured(LayerIndex layer, Iteration iteration,
                                std::vector<TensorSquares> tensors) {
  if (failed_) return;
  settle(route_.layer_measured(layer, iteration, std::move(tensors)));
}

void ChunkLinks::step_rates(Iteration iteration, ProgramRates rates) {
  if (failed_) return;
  route_.step_rates(iteration, std::move(rates));
  pump_all();
}

void ChunkLinks::settle(const NormBook::Complete& norms) {
  if (!norms.layers.empty()) pump_all();
  if (norms.all_gradients) events_->norms_complete(norms.iteration, *norms.all_gradients);
}

void ChunkLinks::fetch_exact() {
  if (failed_) return;
  route_.pull_exact();
  pump_all();
}

std::vector<AwaitedData> ChunkLinks::awaited(LayerIndex layer) const {
  std::vector<AwaitedData> awaited = route_.awaited(layer);
  if (towards_ == Towards::kServers) return awaited;
  for (AwaitedData& data : awaited) {
    data.server.reset();
    data.ranks = {leader_of(route_.plan(), route_.rank())};
  }
  return awaited;
}

void ChunkLinks::pump_all() {
  if (failed_) return;
  for (std::size_t turn = 0; turn < links_.size(); ++turn) {
    pump(*links_[receiver_in_turn(route_.rank().value(), turn, links_.size())]);
  }
}

void ChunkLinks::connect(Link& link) {
  link.writing_ = false;
  link.sending_.reset();
  link.reconnect_.attempt(transport_->now());
  link.stream_ = transport_->connect(link.address_, &link);
  route_.stream_opened(link.server_);
  pump(link);
}

void ChunkLinks::pump(Link& link) {
  link.queue_.set(static_cast<std::int64_t>(route_.waiting(link.server_)));
  if (link.stream_ == nullptr || link.writing_) return;
  std::optional<PsRoute::Outgoing> next = route_.next_message(link.server_);
  if (!next) return;
  link.writing_ = true;
  traffic_->sent(next->layer, next->message.payload.size());
  if (next->gradient_of) {
    TraceSpan span{.stage = Stage::kQueue,
                   .relay_end = relay_end(),
                   .begin = ready_since_[next->layer.value()],
                   .end = transport_->now(),
                   .iteration = *next->gradient_of,
                   .layer = next->layer,
                   .chunk = next->chunk,
                   .peer = link.peer_number(),
                   .bytes = next->message.payload.size()};
    traffic_->node().took(span);
    span.stage = Stage::kSend;
    span.begin = span.end;
    link.sending_ = span;
  }
  link.stream_->write(std::move(next->message));
}

void ChunkLinks::sent(TraceSpan span) {
  span.end = transport_->now();
  traffic_->node().took(span);
}

void ChunkLinks::on_message(Link& link, const Bytes& message) {
  const Nanoseconds since = transport_->now();
  const Landing landing = route_.on_message(link.server_, message);
  link.reconnect_.in_order();
  if (link.outage_.is_out()) link.outage_.over(link.name(), since, options_.log);
  if (const auto* refused = std::get_if<Refused>(&landing)) {
    refuse(link, refused->objection);
    return;
  }
  if (const auto* norms = std::get_if<NormsLanded>(&landing)) {
    traffic_->received(norms->layer, norms->payload_bytes);
    settle(norms->complete);
  } else if (const auto* layer = std::get_if<LayerLanded>(&landing)) {
    count_landed(link, *layer, since);
    events_->layer_landed(*layer);
  } else {
    const auto& chunk = std::get<ChunkLanded>(landing);
    count_landed(link, chunk, since);
    events_->chunk_landed(chunk);
  }
  if (!failed_) pump(link);  // parameters that came before their norms are asked for again
}

void ChunkLinks::refuse(const Link& link, const Objection& objection) {
  refusals_->add(objection.reason);
  // A repetition or a message of an earlier epoch is harmless. Anything else means that server
  // and worker disagree about the plan: going on would train something else.
  if (objection.reason == DataRefusal::kDuplicate || objection.reason == DataRefusal::kEpoch) {
    return;
  }
  fail(absl::DataLossError(absl::StrCat(link.name(), " sent what does not fit the plan (",
                                        data_refusal_name(objection.reason),
                                        "): ", objection.message)));
}

void ChunkLinks::count_landed(const Link& link, const ChunkLanded& chunk, Nanoseconds since) {
  traffic_->received(chunk.layer, chunk.payload_bytes);
  traffic_->node().took({.stage = Stage::kCopy,
                         .relay_end = relay_end(),
                         .begin = since,
                         .end = transport_->now(),
                         .iteration = chunk.version - 1,  // whose step made them
                         .layer = chunk.layer,
                         .chunk = chunk.chunk,
                         .peer = link.peer_number(),
                         .bytes = chunk.payload_bytes});
}

void ChunkLinks::on_closed(Link& link, const absl::Status& status) {
  link.stream_.reset();
  if (failed_) return;
  const std::string who = link.name();
  if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status)) {
    fail(absl::Status(status.code(), absl::StrCat(who, " refused worker ", route_.rank().value(),
                                                  ": ", status.message())));
    return;
  }
  // A leader may get ready long after its group, and says so; servers are ready before all workers.
  if (towards_ == Towards::kRelay && absl::IsAborted(status)) link.reconnect_.alive();
  const Reconnect::Decision decision =
      link.reconnect_.cut(transport_->now(), absl::IsAborted(status));
  if (decision.give_up) {
    fail(unreachable_error(
        link.address_,
        absl::StrCat(who, " could not be reached for ",
                     std::chrono::duration_cast<Milliseconds>(decision.silent).count(), " ms (",
                     status.message(), "): is its ",
                     towards_ == Towards::kServers ? "poseidon-server" : "poseidon-worker",
                     " running, and is its port open?")));
    return;
  }
  if (!absl::IsAborted(status)) {
    link.outage_.cut(who, status, transport_->now() - decision.silent, transport_->now(),
                     options_.give_up_after, options_.log);
  }
  traffic_->node().count(towards_ == Towards::kServers ? NodeCount::kRetriesServer
                                                       : NodeCount::kRetriesWorker);
  transport_->post_after(decision.pause, [this, alive = alive_, &link] {
    if (*alive && !failed_ && link.stream_ == nullptr) connect(link);
  });
}

void ChunkLinks::fail(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  for (auto& link : links_) link->stream_.reset();
  events_->sync_failed(status);
}

}  // namespace poseidon
