#include "server/store/store_service.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/wire.h"

namespace poseidon {
namespace {

std::span<const float> slot_of(const StoredChunk& chunk, std::uint32_t slot) {
  return slot == 0 ? chunk.parameters : slot == 1 ? chunk.state0 : chunk.state1;
}

bool is_request(StoreOperation operation) {
  return operation == StoreOperation::kRead || operation == StoreOperation::kWrite ||
         operation == StoreOperation::kHold || operation == StoreOperation::kReadHeld;
}

Objection object_to(const absl::StatusOr<DecodedStore>& message) {
  if (!message.ok()) {
    const bool is_version = absl::IsFailedPrecondition(message.status());
    return {is_version ? DataRefusal::kVersion : DataRefusal::kMalformed,
            std::string(message.status().message())};
  }
  if (is_request(message->header.operation)) return {};
  return {DataRefusal::kKind, "an answer where a request belongs"};
}

}  // namespace

class StoreService::Session final : public StreamHandler {
 public:
  Session(StoreService* service, std::uint64_t number, std::unique_ptr<Stream> stream)
      : service_(service), number_(number), stream_(std::move(stream)) {}

  ReadNext on_message(Bytes message) override { return service_->on_message(*this, message); }
  void on_written() override {
    writing_ = false;
    service_->pump(*this);
  }
  void on_closed(const absl::Status& /*status*/) override {
    service_->remove(*this);  // destroys this
  }
  void close() {
    closing_ = true;
    stream_->close(absl::UnavailableError(
        absl::StrCat("this store serves ", kMaxStoreSessions, " streams already, its maximum")));
  }

 private:
  friend class StoreService;
  StoreService* const service_;
  const std::uint64_t number_;
  std::unique_ptr<Stream> stream_;
  std::deque<OutgoingMessage> answers_;
  std::size_t unanswered_ = 0;  ///< requests whose answer is not written yet
  std::uint64_t heard_ = 0;     ///< StoreService::messages_ at its beginning or last message
  bool writing_ = false;
  bool paused_ = false;
  bool closing_ = false;
};

StoreService::StoreService(Transport* transport, CheckpointKeeper* keeper, RefusalCounts* refusals,
                           RefusalLog log)
    : transport_(transport), keeper_(keeper), refusals_(refusals), log_(std::move(log)) {}

StoreService::~StoreService() { *alive_ = false; }

StreamHandler* StoreService::on_accept(std::unique_ptr<Stream> stream) {
  const bool room = make_room();
  sessions_.push_back(std::make_unique<Session>(this, next_session_++, std::move(stream)));
  Session& session = *sessions_.back();
  session.heard_ = messages_;
  if (!room) session.close();
  return &session;
}

bool StoreService::make_room() {
  std::size_t open = 0;
  Session* silent = nullptr;
  for (const auto& session : sessions_) {
    if (session->closing_) continue;
    ++open;
    if (session->unanswered_ > 0 || session->writing_) continue;
    if (silent == nullptr || session->heard_ < silent->heard_) silent = session.get();
  }
  if (open < kMaxStoreSessions) return true;
  if (silent != nullptr) silent->close();
  return silent != nullptr;
}

ReadNext StoreService::on_message(Session& session, const Bytes& message) {
  if (session.closing_) return ReadNext::kContinue;
  session.heard_ = ++messages_;
  const absl::StatusOr<DecodedStore> decoded = decode_store(message);
  if (const Objection objection = object_to(decoded)) {
    refuse(session, objection);
    session.closing_ = true;
    session.stream_->close(absl::InvalidArgumentError(objection.message));
    return ReadNext::kContinue;
  }
  ++session.unanswered_;
  switch (decoded->header.operation) {
    case StoreOperation::kRead:
      read(session, decoded->header);
      break;
    case StoreOperation::kReadHeld:
      read_held(session, decoded->header);
      break;
    case StoreOperation::kHold:
      hold(session, *decoded);
      break;
    default:
      write(session, *decoded);
      break;
  }
  session.paused_ = session.unanswered_ >= kMaxStoreRequests;
  return session.paused_ ? ReadNext::kPause : ReadNext::kContinue;
}

void StoreService::read(Session& session, const StoreHeader& header) {
  keeper_->read(header.snapshot, header.piece,
                [this, transport = transport_, alive = alive_, header, number = session.number_](
                    absl::StatusOr<std::shared_ptr<const StoredChunk>> chunk) {
                  transport->post([this, alive, header, number, chunk = std::move(chunk)] {
                    if (!*alive) return;
                    if (!chunk.ok()) {
                      answer_error(number, header, chunk.status());
                      return;
                    }
                    StoreHeader data = header;
                    data.operation = StoreOperation::kData;
                    answer(number, data, as_payload(slot_of(**chunk, header.slot)), *chunk);
                  });
                });
}

void StoreService::write(Session& session, const DecodedStore& request) {
  const std::size_t slots = request.header.slot + 1;
  const std::size_t bytes = request.payload.size();
  if (bytes % (slots * sizeof(float)) != 0) {
    answer_refused(session, request.header,
                   {DataRefusal::kSize, absl::StrCat("a piece of ", bytes, " bytes with ", slots,
                                                     " slots of equal length")});
    return;
  }
  std::vector<float> all(bytes / sizeof(float));
  copy_payload(request.payload, all);
  const auto slot = [&all, slots](std::size_t index) {
    if (index >= slots) return std::vector<float>();
    const std::size_t elements = all.size() / slots;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index * elements);
    return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(elements));
  };
  StoredChunk piece{.piece = request.header.piece,
                    .version = snapshot_iteration(request.header.snapshot),
                    .parameters = slot(0),
                    .state0 = slot(1),
                    .state1 = slot(2)};
  keeper_->put(request.header.snapshot, std::move(piece),
               [this, transport = transport_, alive = alive_, header = request.header,
                number = session.number_](const absl::Status& status) {
                 transport->post([this, alive, header, number, status] {
                   if (!*alive) return;
                   if (!status.ok()) {
                     answer_error(number, header, status);
                     return;
                   }
                   StoreHeader stored = header;
                   stored.operation = StoreOperation::kStored;
                   answer(number, stored, {}, nullptr);
                 });
               });
}

void StoreService::hold(const Session& session, const DecodedStore& request) {
  const std::size_t bytes = request.payload.size();
  if (bytes % sizeof(float) != 0) {
    answer_refused(session, request.header,
                   {DataRefusal::kSize, absl::StrCat("a state of ", bytes, " bytes")});
    return;
  }
  std::vector<float> state(bytes / sizeof(float));
  copy_payload(request.payload, state);
  if (const absl::Status held = keeper_->hold_state(request.header.snapshot, std::move(state));
      !held.ok()) {
    answer_error(session.number_, request.header, held);
    return;
  }
  StoreHeader stored = request.header;
  stored.operation = StoreOperation::kStored;
  answer(session.number_, stored, {}, nullptr);
}

void StoreService::read_held(const Session& session, const StoreHeader& header) {
  const HeldStates::State state = keeper_->held_state(header.snapshot);
  if (state == nullptr) {
    answer_error(session.number_, header,
                 absl::NotFoundError(absl::StrCat("worker 0's own state of ",
                                                  snapshot_name(header.snapshot), " is not held")));
    return;
  }
  StoreHeader data = header;
  data.operation = StoreOperation::kData;
  answer(session.number_, data, as_payload(*state), state);
}

void StoreService::refuse(const Session& session, const Objection& objection) {
  refusals_->add(objection.reason);
  if (log_) log_(session.stream_->peer(), objection);
}

void StoreService::answer_refused(const Session& session, const StoreHeader& header,
                                  const Objection& objection) {
  refuse(session, objection);
  answer_error(session.number_, header, absl::InvalidArgumentError(objection.message));
}

void StoreService::answer_error(std::uint64_t session, StoreHeader header,
                                const absl::Status& status) {
  header.operation = StoreOperation::kError;
  header.error_code = static_cast<std::uint32_t>(status.code());
  auto text = std::make_shared<const std::string>(status.message());
  answer(session, header, {reinterpret_cast<const std::byte*>(text->data()), text->size()}, text);
}

void StoreService::answer(std::uint64_t session, StoreHeader header,
                          absl::Span<const std::byte> payload, std::shared_ptr<const void> owner) {
  const auto found =
      std::find_if(sessions_.begin(), sessions_.end(),
                   [session](const auto& candidate) { return candidate->number_ == session; });
  if (found == sessions_.end()) return;  // cut meanwhile
  (*found)->answers_.push_back({.prefix = encode_prefix(header, payload.size()),
                                .payload = payload,
                                .payload_owner = std::move(owner)});
  pump(**found);
}

void StoreService::pump(Session& session) {
  if (session.writing_ || session.closing_ || session.answers_.empty()) return;
  OutgoingMessage next = std::move(session.answers_.front());
  session.answers_.pop_front();
  --session.unanswered_;
  session.writing_ = true;
  session.stream_->write(std::move(next));
  if (std::exchange(session.paused_, false)) session.stream_->resume_reads();
}

void StoreService::remove(Session& session) {
  std::erase_if(sessions_, [&](const auto& candidate) { return candidate.get() == &session; });
}

}  // namespace poseidon
