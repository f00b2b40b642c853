#include "sync/chunks/chunk_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/wire/fan_out.h"

namespace poseidon {

namespace {

/// What the other end of a refused stream reads.
absl::Status refusal_status(const Objection& objection, absl::StatusCode code) {
  return {code,
          absl::StrCat("refused (", data_refusal_name(objection.reason), "): ", objection.message)};
}

}  // namespace

/// One worker's stream. Belongs to a rank from its first valid message on.
class ChunkService::Session final : public StreamHandler {
 public:
  Session(ChunkService* service, std::uint64_t number, std::unique_ptr<Stream> stream)
      : service_(service),
        number_(number),
        stream_(std::move(stream)),
        norms_(0),
        queue_(0),
        exact_(0) {}

  ReadNext on_message(Bytes message) override { return service_->on_message(*this, message); }
  void on_written() override {
    writing_ = false;
    if (sending_) service_->sent(*std::exchange(sending_, std::nullopt));
    service_->pump(*this);
  }
  void on_closed(const absl::Status& /*status*/) override {
    service_->remove(*this);  // destroys this
  }

 private:
  friend class ChunkService;
  ChunkService* const service_;
  const std::uint64_t number_;
  std::unique_ptr<Stream> stream_;
  std::optional<WorkerRank> rank_;
  ChunkQueue norms_;  ///< chunks whose norms wait to be sent: small, and all workers wait for them
  std::vector<Iteration>
      norms_sent_;    ///< by ChunkId, when this worker gets norms: the newest iteration sent
  ChunkQueue queue_;  ///< chunks whose parameters wait to be sent ...
  ChunkQueue exact_;  ///< ... and those to be sent in float32, when nothing else waits
  bool writing_ = false;
  std::optional<TraceSpan> sending_;  ///< the parameters that are being written
  bool paused_ = false;
  bool closing_ = false;
  GaugePart streams_, paused_streams_, waiting_;  ///< this one's, while it belongs to a rank

  void pause(bool paused) {
    paused_ = paused;
    paused_streams_.set(paused ? 1 : 0);
  }
};

ChunkService::ChunkService(Transport* transport, RefusalCounts* refusals, RelayEnd end,
                           RefusalLog log, std::function<void()> taken)
    : transport_(transport),
      refusals_(refusals),
      end_(end),
      who_(end == RelayEnd::kRelay ? "relay" : "server"),
      log_(std::move(log)),
      taken_(std::move(taken)) {}

ChunkService::~ChunkService() { *alive_ = false; }

void ChunkService::open(ChunkHolder* holder, TrafficProbe* traffic) {
  POSEIDON_CHECK(holder_ == nullptr, "one holder at a time");
  by_rank_.assign(holder->plan().workers(), nullptr);
  made_at_.assign(holder->plan().chunks.size(), Nanoseconds{0});
  holder_ = holder;
  traffic_ = traffic;
}

void ChunkService::close(const absl::Status& why) {
  close_all(why);
  by_rank_.clear();
  if (traffic_ != nullptr) traffic_->node().set(NodeGauge::kEarlyGradientBytes, 0);
  halted_ = false;
  holder_ = nullptr;
  traffic_ = nullptr;
}

void ChunkService::deliver(const Delivery& delivery) {
  made_at_[delivery.chunk.value()] = transport_->now();
  enqueue(delivery);
}

StreamHandler* ChunkService::on_accept(std::unique_ptr<Stream> stream) {
  sessions_.push_back(std::make_unique<Session>(this, next_session_++, std::move(stream)));
  Session& session = *sessions_.back();
  if (sessions_.size() > kMaxSessions) {
    // Temporary: silent streams are closed, so a worker should try again.
    close(session, absl::UnavailableError(absl::StrCat("this ", who_, " serves ", kMaxSessions,
                                                       " streams already, its maximum")));
  }
  transport_->post_after(kFirstMessageTimeout, [this, alive = alive_, number = session.number_] {
    if (*alive) close_if_still_unbound(number);
  });
  return &session;
}

void ChunkService::close_if_still_unbound(std::uint64_t session_number) {
  for (auto& session : sessions_) {
    if (session->number_ != session_number || session->rank_ || session->closing_) continue;
    // A worker whose message is still on its way comes again.
    close(*session, absl::UnavailableError(absl::StrCat("no valid message within ",
                                                        kFirstMessageTimeout.count(), " ms")));
  }
}

ReadNext ChunkService::on_message(Session& session, const Bytes& message) {
  if (session.closing_ || halted_) return ReadNext::kContinue;
  const absl::StatusOr<DecodedChunk> decoded = decode_chunk(message);
  if (!decoded.ok()) {
    refuse(session, {DataRefusal::kMalformed, std::string(decoded.status().message())},
           absl::StatusCode::kInvalidArgument);
    return ReadNext::kContinue;
  }
  if (holder_ == nullptr) {
    // Worth another try: workers may reconnect before a returned server gets its assignment. Of a
    // leader that gets ready later than its group it is no news.
    if (end_ == RelayEnd::kRelay) {
      close(session, absl::AbortedError("this worker's relay is not open yet"));
      return ReadNext::kContinue;
    }
    refuse(session,
           {DataRefusal::kNoAssignment, absl::StrCat("this ", who_, " has no job at present")},
           absl::StatusCode::kAborted);
    return ReadNext::kContinue;
  }
  if (session.rank_ && *session.rank_ != decoded->header.rank) {
    refuse(session,
           {DataRefusal::kRank, absl::StrCat("a message of worker ", decoded->header.rank.value(),
                                             " on the stream of worker ", session.rank_->value())},
           absl::StatusCode::kInvalidArgument);
    return ReadNext::kContinue;
  }
  if (!session.rank_) {
    // Of another epoch or rank, the holder refuses it.
    const Plan& plan = holder_->plan();
    const ChunkHeader& header = decoded->header;
    if (header.epoch == plan.epoch && header.rank.value() < plan.workers()) {
      if (const Objection objection = check_proof(plan, header.rank, header.proof)) {
        refuse(session, objection, absl::StatusCode::kInvalidArgument);
        return ReadNext::kContinue;
      }
    }
  }
  const ChunkDecision decision = take(*decoded);
  const bool harmless = decision.objection.reason == DataRefusal::kDuplicate;
  if (decision.objection && !harmless) {
    const bool stops = decision.objection.reason == DataRefusal::kNotFinite;
    // Of another epoch: one of the two will be told that its epoch has ended.
    const bool may_pass = decision.objection.reason == DataRefusal::kEpoch;
    if (stops) traffic_->node().count(NodeCount::kNotFinite);
    refuse(session, decision.objection,
           may_pass ? absl::StatusCode::kAborted : absl::StatusCode::kInvalidArgument);
    if (stops) close_all(refusal_status(decision.objection, absl::StatusCode::kInvalidArgument));
    return ReadNext::kContinue;
  }
  if (harmless) refusals_->add(DataRefusal::kDuplicate);
  if (!session.rank_) bind(session, decoded->header.rank);
  if (!harmless) {
    traffic_->received(holder_->plan().chunks[decoded->header.chunk.value()].layer,
                       decoded->payload.size());
  }
  if (decision.delivery) enqueue(*decision.delivery);
  if (taken_) taken_();
  resume_paused();
  session.pause(!holder_->may_read(decoded->header.rank));
  return session.paused_ ? ReadNext::kPause : ReadNext::kContinue;
}

/// The holder's answer, timed where it is about a gradient: most of a server's work.
ChunkDecision ChunkService::take(const DecodedChunk& message) {
  const Nanoseconds since = transport_->now();
  ChunkDecision decision = holder_->on_message(message);
  NodeProbe& node = traffic_->node();
  const ChunkKind kind = message.header.kind;
  if (!decision.objection && (kind == ChunkKind::kPushGradient || kind == ChunkKind::kTotals)) {
    const bool stepped = decision.delivery && !decision.delivery->norms;
    const Nanoseconds now = transport_->now();
    const LayerIndex layer = holder_->plan().chunks[message.header.chunk.value()].layer;
    traffic_->aggregated(layer, now - since);
    node.took({.stage = stepped ? Stage::kStep : Stage::kSum,
               .relay_end = end_,
               .begin = since,
               .end = now,
               .iteration = message.header.iteration,
               .layer = layer,
               .chunk = message.header.chunk,
               .peer = message.header.rank.value(),
               .bytes = message.payload.size()});
    if (stepped) made_at_[message.header.chunk.value()] = now;
  }
  node.set(NodeGauge::kEarlyGradientBytes, holder_->pending_bytes());
  return decision;
}

void ChunkService::bind(Session& session, WorkerRank rank) {
  Session*& owner = by_rank_[rank.value()];
  if (owner != nullptr) {
    close(*owner, absl::AbortedError(
                      absl::StrCat("a newer stream of worker ", rank.value(), " took its place")));
  }
  owner = &session;
  session.rank_ = rank;
  const auto queue = [this] {
    return ChunkQueue(holder_->plan().chunks.size(), holder_->plan().send_order);
  };
  session.norms_ = queue();
  if (hears_norms(holder_->plan(), rank)) {
    session.norms_sent_.assign(holder_->plan().chunks.size(), -1);
  }
  session.queue_ = queue();
  session.exact_ = queue();
  session.streams_ = GaugePart(traffic_->shared_node(), NodeGauge::kStreams);
  session.streams_.set(1);
  session.paused_streams_ = GaugePart(traffic_->shared_node(), NodeGauge::kPausedStreams);
  session.waiting_ = GaugePart(traffic_->shared_node(), NodeGauge::kSendQueue);
}

void ChunkService::refuse(Session& session, const Objection& objection, absl::StatusCode code) {
  refusals_->add(objection.reason);
  if (log_) log_(session.stream_->peer(), objection);
  close(session, refusal_status(objection, code));
}

void ChunkService::close(Session& session, const absl::Status& why) {
  if (session.rank_) by_rank_[session.rank_->value()] = nullptr;
  session.rank_.reset();
  session.closing_ = true;
  session.sending_.reset();
  for (GaugePart* part : {&session.streams_, &session.paused_streams_, &session.waiting_}) {
    *part = {};
  }
  session.stream_->close(why);
}

void ChunkService::enqueue(const Delivery& delivery) {
  for (std::size_t turn = 0; turn < by_rank_.size(); ++turn) {
    const std::size_t rank = receiver_in_turn(holder_->fan_out_start(), turn, by_rank_.size());
    if (delivery.only && delivery.only->value() != rank) continue;
    // A worker without a stream asks again when it has one.
    if (by_rank_[rank] == nullptr) continue;
    Session& session = *by_rank_[rank];
    offer_norms(session, delivery);
    if (!delivery.norms) (delivery.exact ? session.exact_ : session.queue_).push(delivery.chunk);
    pump(session);
  }
}

/// Norms that this stream's worker must have: those asked for, and those of the step that it is
/// about to get, in case an earlier stream took them along.
void ChunkService::offer_norms(Session& session, const Delivery& delivery) {
  if (session.norms_sent_.empty()) return;
  const Iteration newest = holder_->norms(delivery.chunk).iteration;
  const bool sent = session.norms_sent_[delivery.chunk.value()] >= newest;
  const bool asked = delivery.norms && delivery.only.has_value();
  if (newest >= 0 && (asked || !sent)) session.norms_.push(delivery.chunk);
}

void ChunkService::send_norms(Session& session, ChunkId chunk) {
  const PlanChunk& place = holder_->plan().chunks[chunk.value()];
  const ChunkHolder::Norms norms = holder_->norms(chunk);
  ChunkHeader header;
  header.kind = ChunkKind::kNorms;
  header.epoch = holder_->plan().epoch;
  header.iteration = norms.iteration;
  header.rank = *session.rank_;
  header.chunk = chunk;
  header.offset = place.offset;
  const std::string payload = encode_norms(*norms.parts);
  MessagePrefix message = encode_prefix(header, payload.size());
  message.append(payload);
  session.norms_sent_[chunk.value()] = norms.iteration;
  session.writing_ = true;
  traffic_->sent(place.layer, payload.size());
  session.stream_->write({.prefix = std::move(message)});
}

void ChunkService::pump(Session& session) {
  session.waiting_.set(static_cast<std::int64_t>(session.norms_.size() + session.queue_.size() +
                                                 session.exact_.size()));
  if (session.writing_ || session.closing_ || !session.rank_ || holder_ == nullptr) return;
  if (const std::optional<ChunkId> norms = session.norms_.pop()) {
    send_norms(session, *norms);
    return;
  }
  std::optional<ChunkId> chunk = session.queue_.pop();
  const bool exact = !chunk;
  if (exact) chunk = session.exact_.pop();
  if (!chunk) return;
  const PlanChunk& place = holder_->plan().chunks[chunk->value()];
  ChunkPayload payload = holder_->payload(*chunk, exact);
  ChunkHeader header;
  header.kind = ChunkKind::kParameters;
  header.epoch = holder_->plan().epoch;
  header.iteration = holder_->version(*chunk);
  header.rank = *session.rank_;
  header.chunk = *chunk;
  header.offset = place.offset;
  header.element_type = payload.type;
  session.writing_ = true;
  traffic_->sent(place.layer, payload.bytes.size());
  if (const Nanoseconds stepped = made_at_[chunk->value()]; stepped > Nanoseconds{0}) {
    TraceSpan span{.stage = Stage::kQueue,
                   .relay_end = end_,
                   .begin = stepped,
                   .end = transport_->now(),
                   .iteration = header.iteration - 1,  // whose step made them
                   .layer = place.layer,
                   .chunk = *chunk,
                   .peer = session.rank_->value(),
                   .bytes = payload.bytes.size()};
    traffic_->node().took(span);
    span.stage = Stage::kSend;
    span.begin = span.end;
    session.sending_ = span;
  }
  session.stream_->write({.prefix = encode_prefix(header, payload.bytes.size()),
                          .payload = payload.bytes,
                          .payload_owner = std::move(payload.owner)});
}

void ChunkService::sent(TraceSpan span) {
  if (traffic_ == nullptr) return;
  span.end = transport_->now();
  traffic_->node().took(span);
}

void ChunkService::resume_paused() {
  for (Session* session : by_rank_) {
    if (session == nullptr || !session->paused_ || !holder_->may_read(*session->rank_)) continue;
    session->pause(false);
    session->stream_->resume_reads();
  }
}

void ChunkService::remove(Session& session) {
  if (session.rank_) by_rank_[session.rank_->value()] = nullptr;
  std::erase_if(sessions_, [&session](const auto& owned) { return owned.get() == &session; });
}

void ChunkService::close_all(const absl::Status& why) {
  for (auto& session : sessions_) {
    if (!session->closing_) close(*session, why);
  }
}

}  // namespace poseidon
