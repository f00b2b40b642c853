#include "common/shared_memory_transport.h"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/wire.h"
#include "poseidon/v1/shared_memory.pb.h"

namespace poseidon {
namespace {

/// Larger payloads are worth a reference; smaller ones travel in the frame.
constexpr std::size_t kMinSharedBytes = 4096;

/// First bytes of a frame: the tag of SharedFrame.offer, 100 << 3 | 2, as a varint.
constexpr std::array<unsigned char, 2> kOfferTag = {0xA2, 0x06};

void flatten(const Bytes& bytes, std::string& text) {
  text.clear();
  for (const auto& piece : bytes.pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
}

bool begins_like_an_offer(const Bytes& bytes) {
  std::size_t matched = 0;
  for (const auto& piece : bytes.pieces) {
    for (const std::byte byte : piece) {
      if (static_cast<unsigned char>(byte) != kOfferTag[matched]) return false;
      if (++matched == kOfferTag.size()) return true;
    }
  }
  return false;
}

void to_proto(const ArenaAddress& address, v1::SharedMemoryOffer* offer) {
  offer->set_machine(address.machine);
  offer->set_process_id(address.process_id);
  offer->set_file_descriptor(address.file_descriptor);
  offer->set_nonce_low(address.nonce_low);
  offer->set_nonce_high(address.nonce_high);
  offer->set_bytes(address.bytes);
}

ArenaAddress from_proto(const v1::SharedMemoryOffer& offer) {
  return {.machine = offer.machine(),
          .process_id = offer.process_id(),
          .file_descriptor = offer.file_descriptor(),
          .nonce_low = offer.nonce_low(),
          .nonce_high = offer.nonce_high(),
          .bytes = offer.bytes()};
}

/// Messages whose payload nobody reads any more, until the next frame tells the sender. Locked
/// because a kept message may be let go anywhere.
class ReleasedList {
 public:
  void add(std::uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    sequences_.push_back(sequence);
  }
  void take(std::vector<std::uint64_t>& into) {
    const std::lock_guard lock(mutex_);
    into.assign(sequences_.begin(), sequences_.end());
    sequences_.clear();
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return sequences_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> sequences_;
};

/// Owner of a received message: its head, and the sender's memory until it is let go.
struct Received {
  std::string head;
  std::shared_ptr<const SharedArenaView> view;
  std::shared_ptr<ReleasedList> released;
  std::uint64_t sequence = 0;

  Received() = default;
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;
  ~Received() {
    if (released != nullptr) released->add(sequence);
  }
};

/// One end of a stream: Stream for its user, StreamHandler for the transport below. Loop only.
class SharedStream final : public Stream, public StreamHandler {
 public:
  enum class Role { kConnects, kAccepts };

  SharedStream(Role role, Transport* loop, SharedArena* arena, SharedMemoryTraffic* traffic)
      : loop_(loop),
        arena_(arena),
        traffic_(traffic),
        mode_(role == Role::kConnects ? Mode::kOffers : Mode::kWaits) {}
  ~SharedStream() override { *alive_ = false; }

  void attach(std::unique_ptr<Stream> inner, StreamHandler* handler) {
    inner_ = std::move(inner);
    handler_ = handler;
    if (mode_ == Mode::kOffers) send_offer();
  }
  void attach(StreamHandler* handler) { handler_ = handler; }
  /// Becomes false when the stream is destroyed, which any handler may do in any event.
  std::shared_ptr<const bool> alive() const { return alive_; }

  // Stream
  void write(OutgoingMessage message) override {
    POSEIDON_CHECK(!writing_ && !closing_, "one write at a time, and none after close");
    writing_ = true;
    if (refused_) return;  // the user hears of it by on_closed, and need not know before
    outgoing_ = std::move(message);
    if (mode_ == Mode::kWaits) mode_ = Mode::kPlain;  // speaks first: no time to agree
    pump();
  }
  void resume_reads() override {
    if (!paused_) return;
    paused_ = false;
    if (mode_ == Mode::kPlain) inner_->resume_reads();
    if (held_.empty()) return;
    loop_->post([this, alive = alive_] {  // a handler hears nothing before this call returns
      if (*alive) deliver_held();
    });
  }
  void close(const absl::Status& status) override {
    if (closing_) return;
    closing_ = true;
    close_status_ = status;
    if (!outgoing_ && !refused_) inner_->close(close_status_);
  }
  std::string peer() const override { return inner_->peer(); }

  // StreamHandler
  ReadNext on_message(Bytes message) override {
    if (refused_) return ReadNext::kContinue;
    if (mode_ == Mode::kPlain) return plain_message(std::move(message));
    const bool first = mode_ != Mode::kShared;
    if (first && !begins_like_an_offer(message)) {
      mode_ = Mode::kPlain;
      const std::shared_ptr<bool> alive = alive_;
      const ReadNext next = plain_message(std::move(message));
      if (*alive) pump();
      return next;
    }
    v1::SharedFrame& frame = incoming_;
    flatten(message, scratch_);
    if (!frame.ParseFromString(scratch_)) return refuse("the bytes are no frame");
    if (first) {
      agree(frame);
      pump();
      return ReadNext::kContinue;
    }
    return take(frame);
  }
  void on_written() override {
    inner_busy_ = false;
    const std::shared_ptr<bool> alive = alive_;
    report_written();
    if (*alive) pump();
  }
  void on_closed(const absl::Status& status) override {
    ended_ = true;
    in_flight_.clear();
    held_.clear();
    handler_->on_closed(status);
  }

 private:
  enum class Mode {
    kOffers,  ///< has sent its offer, waits for the answer
    kWaits,   ///< accepted, has heard nothing yet
    kPlain,
    kShared,
  };
  struct InFlight {
    std::uint64_t sequence;
    std::shared_ptr<const void> owner;
  };

  void send_offer() {
    v1::SharedFrame frame;
    to_proto(arena_->address(), frame.mutable_offer());
    send(frame);
  }

  void send(const v1::SharedFrame& frame) {
    inner_busy_ = true;
    inner_->write({.prefix = frame.SerializeAsString(), .payload = {}, .payload_owner = nullptr});
  }

  /// The first frame of the other end.
  void agree(const v1::SharedFrame& frame) {
    const bool asked = mode_ == Mode::kWaits;
    if (asked || frame.accepted()) {
      auto view = SharedArenaView::open(from_proto(frame.offer()));
      if (view.ok()) view_ = *std::move(view);
    }
    if (!asked) {
      // Frames even if we alone cannot read (another user's memory): ours say so, and the other
      // end then sends its payloads inline.
      peer_reads_ours_ = frame.accepted();
      mode_ = frame.accepted() ? Mode::kShared : Mode::kPlain;
      return;
    }
    mode_ = view_ != nullptr ? Mode::kShared : Mode::kPlain;
    if (closing_) return;  // an offer to an end that was turned away at the door
    v1::SharedFrame answer;
    to_proto(arena_->address(), answer.mutable_offer());
    answer.set_accepted(view_ != nullptr);
    send(answer);
  }

  ReadNext plain_message(Bytes message) {
    // An offer that crossed a plain message of ours: too late.
    if (!heard_plain_ && begins_like_an_offer(message)) return ReadNext::kContinue;
    heard_plain_ = true;
    const std::shared_ptr<bool> alive = alive_;
    const ReadNext next = handler_->on_message(std::move(message));
    if (*alive) paused_ = next == ReadNext::kPause;
    return next;
  }

  ReadNext refuse(const std::string& why) {
    refused_ = true;
    outgoing_.reset();
    inner_->close(absl::InvalidArgumentError(absl::StrCat("shared memory frame: ", why)));
    return ReadNext::kContinue;
  }

  ReadNext take(const v1::SharedFrame& frame) {
    if (closing_ || refused_) return ReadNext::kContinue;
    if (frame.has_offer()) return refuse("a second offer");
    if (frame.delivered() < delivered_by_peer_ || frame.delivered() > sent_) {
      return refuse(absl::StrCat(frame.delivered(), " messages taken, ", sent_, " were sent"));
    }
    delivered_by_peer_ = frame.delivered();
    peer_reads_ours_ = frame.accepted();
    for (const std::uint64_t sequence : frame.released()) {
      const auto released =
          std::find_if(in_flight_.begin(), in_flight_.end(),
                       [sequence](const InFlight& f) { return f.sequence == sequence; });
      if (released == in_flight_.end()) {
        return refuse(absl::StrCat("message ", sequence, " is released, but nobody holds it"));
      }
      in_flight_.erase(released);
    }
    const std::shared_ptr<bool> alive = alive_;
    if (!frame.message().empty()) {
      auto bytes = received_message(frame);
      if (!bytes.ok()) return refuse(std::string(bytes.status().message()));
      if (paused_ || !held_.empty()) {  // the held ones come first
        if (held_.size() >= kSharedMemoryWindow) return refuse("more messages than the window");
        held_.push_back(*std::move(bytes));
      } else {
        deliver(*std::move(bytes));
      }
    }
    if (*alive) report_written();
    if (*alive) pump();
    return ReadNext::kContinue;
  }

  absl::StatusOr<Bytes> received_message(const v1::SharedFrame& frame) {
    auto received = std::make_shared<Received>();
    received->head = frame.message();
    Bytes bytes;
    bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(received->head.data()),
                              received->head.size());
    const std::uint64_t sequence = received_++;
    if (frame.payload_bytes() > 0) {
      const auto payload = view_ == nullptr
                               ? std::nullopt
                               : view_->range(frame.payload_offset(), frame.payload_bytes());
      if (!payload) {
        return absl::InvalidArgumentError(absl::StrCat("a payload of ", frame.payload_bytes(),
                                                       " bytes at ", frame.payload_offset(),
                                                       " is outside of the sender's memory"));
      }
      received->view = view_;
      received->released = released_;
      received->sequence = sequence;
      bytes.pieces.push_back(*payload);
    }
    bytes.owner = std::move(received);
    return bytes;
  }

  void deliver(Bytes bytes) {
    ++delivered_;
    const std::shared_ptr<bool> alive = alive_;
    const ReadNext next = handler_->on_message(std::move(bytes));
    if (*alive) paused_ = next == ReadNext::kPause;
  }

  void deliver_held() {
    const std::shared_ptr<bool> alive = alive_;
    while (*alive && !ended_ && !closing_ && !refused_ && !paused_ && !held_.empty()) {
      Bytes bytes = std::move(held_.front());
      held_.pop_front();
      deliver(std::move(bytes));
    }
    if (*alive) pump();
  }

  /// The user may write again once the last message is below and the peer keeps up.
  void report_written() {
    if (!writing_ || outgoing_ || inner_busy_ || ended_ || closing_ || refused_) return;
    if (mode_ == Mode::kShared && sent_ - delivered_by_peer_ >= kSharedMemoryWindow) return;
    writing_ = false;
    handler_->on_written();
  }

  /// Gives the transport below what there is to say.
  void pump() {
    if (inner_busy_ || ended_ || refused_ || mode_ == Mode::kOffers || mode_ == Mode::kWaits)
      return;
    if (outgoing_) {
      OutgoingMessage message = *std::exchange(outgoing_, std::nullopt);
      inner_busy_ = true;
      inner_->write(mode_ == Mode::kShared ? framed(std::move(message)) : std::move(message));
      if (closing_) inner_->close(close_status_);
    } else if (mode_ == Mode::kShared && !closing_ && must_acknowledge()) {
      v1::SharedFrame& frame = outgoing_frame_;
      frame.Clear();
      acknowledge(frame);
      send(frame);
    }
  }

  /// Most acknowledgements ride on messages; these would come too late.
  bool must_acknowledge() const {
    return delivered_ - acknowledged_ >= kSharedMemoryWindow / 2 ||
           released_->size() >= kSharedMemoryWindow;
  }

  void acknowledge(v1::SharedFrame& frame) {
    frame.set_accepted(view_ != nullptr);
    acknowledged_ = delivered_;
    frame.set_delivered(delivered_);
    released_->take(released_now_);
    for (const std::uint64_t sequence : released_now_) frame.add_released(sequence);
  }

  OutgoingMessage framed(OutgoingMessage message) {
    v1::SharedFrame& frame = outgoing_frame_;
    frame.Clear();
    acknowledge(frame);
    const auto offset = peer_reads_ours_ && message.payload.size() >= kMinSharedBytes
                            ? arena_->offset_of(message.payload)
                            : std::nullopt;
    (offset ? traffic_->shared_bytes : traffic_->inline_bytes) += message.payload.size();
    frame.set_message(std::move(message.prefix));
    if (offset) {
      frame.set_payload_offset(*offset);
      frame.set_payload_bytes(message.payload.size());
      in_flight_.push_back({sent_, std::move(message.payload_owner)});
    } else {
      frame.mutable_message()->append(reinterpret_cast<const char*>(message.payload.data()),
                                      message.payload.size());
    }
    ++sent_;
    return {.prefix = frame.SerializeAsString(), .payload = {}, .payload_owner = nullptr};
  }

  Transport* const loop_;
  SharedArena* const arena_;
  SharedMemoryTraffic* const traffic_;
  StreamHandler* handler_ = nullptr;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mode mode_;
  bool inner_busy_ = false;  ///< a message of ours is being written below
  bool writing_ = false;     ///< the user waits for on_written
  bool paused_ = false, ended_ = false, heard_plain_ = false;
  bool closing_ = false;  ///< the user called close
  bool refused_ = false;  ///< the peer's frames made no sense: the stream ends
  absl::Status close_status_;
  std::optional<OutgoingMessage> outgoing_;  ///< the user's, not yet below

  // Sending, in messages since the stream began.
  std::uint64_t sent_ = 0, delivered_by_peer_ = 0;
  bool peer_reads_ours_ = false;
  std::vector<InFlight> in_flight_;

  // Receiving.
  std::shared_ptr<const SharedArenaView> view_;
  const std::shared_ptr<ReleasedList> released_ = std::make_shared<ReleasedList>();
  std::uint64_t received_ = 0, delivered_ = 0, acknowledged_ = 0;
  std::deque<Bytes> held_;  ///< came while paused

  // Kept for their memory.
  std::string scratch_;
  v1::SharedFrame incoming_, outgoing_frame_;
  std::vector<std::uint64_t> released_now_;
  std::unique_ptr<Stream> inner_;  ///< dies first: nothing is heard after it
};

}  // namespace

class SharedMemoryTransport::Wrapper final : public Acceptor {
 public:
  Wrapper(SharedMemoryTransport* transport, Acceptor* acceptor)
      : transport_(transport), acceptor_(acceptor) {}
  StreamHandler* on_accept(std::unique_ptr<Stream> inner) override {
    auto stream = std::make_unique<SharedStream>(SharedStream::Role::kAccepts, transport_,
                                                 transport_->arena_, &transport_->traffic_);
    SharedStream* handler = stream.get();
    const std::shared_ptr<const bool> alive = handler->alive();
    handler->attach(std::move(inner), nullptr);
    StreamHandler* user = acceptor_->on_accept(std::move(stream));
    if (!*alive) return nullptr;
    handler->attach(user);
    return handler;
  }

 private:
  SharedMemoryTransport* const transport_;
  Acceptor* const acceptor_;
};

SharedMemoryTransport::SharedMemoryTransport(Transport* inner, SharedArena* arena)
    : inner_(inner), arena_(arena) {}
SharedMemoryTransport::~SharedMemoryTransport() = default;

std::unique_ptr<Stream> SharedMemoryTransport::connect(const std::string& address,
                                                       StreamHandler* handler) {
  if (arena_ == nullptr) return inner_->connect(address, handler);
  auto stream =
      std::make_unique<SharedStream>(SharedStream::Role::kConnects, this, arena_, &traffic_);
  stream->attach(inner_->connect(address, stream.get()), handler);
  return stream;
}

absl::StatusOr<std::string> SharedMemoryTransport::listen(const std::string& address,
                                                          Acceptor* acceptor) {
  if (arena_ == nullptr) return inner_->listen(address, acceptor);
  wrapper_ = std::make_unique<Wrapper>(this, acceptor);
  return inner_->listen(address, wrapper_.get());
}

}  // namespace poseidon
