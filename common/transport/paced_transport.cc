#include "common/transport/paced_transport.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/threads/mutex.h"
#include "common/transport/stream_header.h"
#include "poseidon/v1/stream.pb.h"

namespace poseidon {
namespace {

/// Larger payloads are worth a reference; smaller ones travel with the message.
constexpr std::size_t kMinSharedBytes = 4096;

void remove_prefix(Bytes& bytes, std::size_t count) {
  for (auto& piece : bytes.pieces) {
    const std::size_t here = std::min(count, piece.size());
    piece.remove_prefix(here);
    count -= here;
    if (count == 0) return;
  }
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

/// Messages whose payload is no longer read, until the next header tells the sender. Locked because
/// a kept message may be let go anywhere.
class ReleasedList {
 public:
  void add(std::uint64_t sequence) {
    const MutexLock lock(mutex_);
    sequences_.push_back(sequence);
  }
  /// As many as one header holds.
  void move_to(StreamHeader& header) {
    const MutexLock lock(mutex_);
    header.released_count = std::min(sequences_.size(), StreamHeader::kMaxReleased);
    const auto end = sequences_.begin() + static_cast<std::ptrdiff_t>(header.released_count);
    std::copy(sequences_.begin(), end, header.released.begin());
    sequences_.erase(sequences_.begin(), end);
  }
  std::size_t size() const {
    const MutexLock lock(mutex_);
    return sequences_.size();
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::uint64_t> sequences_ ABSL_GUARDED_BY(mutex_);
};

/// Owner of a message whose payload lies in the sender's memory: that memory, and the rest as it
/// came.
struct Received {
  std::shared_ptr<const void> head;
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

/// How many of the sent messages and bytes the other end has not acknowledged.
class Window {
 public:
  /// Whether another message may go through a window of `share` bytes: two always may, however
  /// large, as one is on the wire while the other is taken.
  bool open(std::uint64_t share = kWindowBytes) const {
    return messages() < 2 || (messages() < kWindowMessages && bytes_ < share);
  }
  void add(std::size_t message_bytes) {
    sizes_[end_++ % kWindowMessages] = message_bytes;
    bytes_ += message_bytes;
  }
  void remove_until(std::uint64_t sequence) {
    while (begin_ < sequence) bytes_ -= sizes_[begin_++ % kWindowMessages];
  }
  bool empty() const { return begin_ == end_; }
  std::uint64_t begin() const { return begin_; }
  std::uint64_t end() const { return end_; }

 private:
  std::uint64_t messages() const { return end_ - begin_; }
  std::array<std::size_t, kWindowMessages> sizes_{};  ///< by sequence, modulo
  std::uint64_t begin_ = 0, end_ = 0;                 ///< sequence numbers
  std::uint64_t bytes_ = 0;
};

/// One end of a stream: Stream for its user, StreamHandler for the transport below. Loop only.
class PacedStream final : public Stream, public StreamHandler {
 public:
  enum class Role { kConnects, kAccepts };

  PacedStream(Role role, Transport* loop, SharedArena* arena, PacedTraffic* traffic,
              SharedWindow* window)
      : loop_(loop),
        arena_(arena),
        traffic_(traffic),
        window_(window),
        mode_(role == Role::kConnects ? Mode::kOffers : Mode::kWaits) {}
  ~PacedStream() override {
    forget_sent();
    *alive_ = false;
  }

  void attach(std::unique_ptr<Stream> inner, StreamHandler* handler) {
    inner_ = std::move(inner);
    handler_ = handler;
    if (mode_ == Mode::kOffers) send_offer(/*accepted=*/false);
  }
  void attach(StreamHandler* handler) { handler_ = handler; }
  /// Becomes false when the stream is destroyed, which any handler may do in any event.
  std::shared_ptr<const bool> alive() const { return alive_; }

  // Stream
  void write(OutgoingMessage message) override {
    POSEIDON_CHECK(!writing_ && !closing_, "one write at a time, and none after close");
    writing_ = true;
    if (refused_) return;  // on_closed reports it to the user
    outgoing_ = std::move(message);
    if (mode_ == Mode::kWaits) mode_ = Mode::kPlain;  // speaks first: no time to agree
    pump();
  }
  void resume_reads() override {
    if (!paused_) return;
    paused_ = false;
    if (mode_ == Mode::kPlain) inner_->resume_reads();
    if (held_.empty()) return;
    loop_->post([this, alive = alive_] {  // a handler gets no event before this call returns
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
    if (mode_ == Mode::kPaced) return paced_message(std::move(message));
    const std::shared_ptr<bool> alive = alive_;
    ReadNext next = ReadNext::kContinue;
    if (begins_with_offer(message)) {
      agree(message);
    } else {
      mode_ = Mode::kPlain;
      next = plain_message(std::move(message));
    }
    if (*alive) pump();
    return next;
  }
  void on_written() override {
    inner_busy_ = false;
    const std::shared_ptr<bool> alive = alive_;
    report_written();
    if (*alive) pump();
  }
  void on_closed(const absl::Status& status) override {
    ended_ = true;
    forget_sent();
    in_flight_.clear();
    held_.clear();
    handler_->on_closed(status);
  }

 private:
  enum class Mode {
    kOffers,  ///< has sent its offer, waits for the answer
    kWaits,   ///< accepted; has received nothing yet
    kPlain,   ///< the other end is not ours
    kPaced,
  };
  /// A payload in shared memory that the other end may read.
  struct InFlight {
    std::uint64_t sequence;
    std::shared_ptr<const void> owner;
  };

  void send_offer(bool accepted) {
    v1::StreamHeader header;
    to_proto(arena_ == nullptr ? ArenaAddress{} : arena_->address(), header.mutable_offer());
    header.set_accepted(accepted);
    send({.prefix = header.SerializeAsString(), .payload = {}, .payload_owner = nullptr});
  }

  void send(OutgoingMessage message) {
    inner_busy_ = true;
    inner_->write(std::move(message));
  }

  /// The first message of the other end.
  void agree(const Bytes& message) {
    v1::StreamHeader header;
    if (!header.ParseFromString(joined(message))) {
      refuse("the offer is malformed");
      return;
    }
    const bool asked = mode_ == Mode::kWaits;
    mode_ = Mode::kPaced;
    peer_reads_ours_ = header.accepted() && arena_ != nullptr;
    if (arena_ != nullptr && header.offer().bytes() > 0) {
      auto view = SharedArenaView::open(from_proto(header.offer()));
      if (view.ok()) view_ = *std::move(view);
    }
    if (!asked) {
      tell_accepted_ = view_ != nullptr;
    } else if (!closing_) {  // an end that was turned away at the door gets no answer
      send_offer(view_ != nullptr);
    }
  }

  ReadNext plain_message(Bytes message) {
    // An offer that crossed a plain message of ours: too late.
    if (!heard_plain_ && begins_with_offer(message)) return ReadNext::kContinue;
    heard_plain_ = true;
    const std::shared_ptr<bool> alive = alive_;
    const ReadNext next = handler_->on_message(std::move(message));
    if (*alive) paused_ = next == ReadNext::kPause;
    return next;
  }

  ReadNext refuse(const absl::Status& why) {
    refused_ = true;
    outgoing_.reset();
    inner_->close(why);
    return ReadNext::kContinue;
  }
  ReadNext refuse(const std::string& why) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("stream header: ", why)));
  }

  ReadNext paced_message(Bytes message) {
    if (closing_) return ReadNext::kContinue;
    const auto decoded = decode_stream_header(message);
    if (!decoded.ok()) return refuse(decoded.status());
    if (absl::Status status = heed(decoded->header); !status.ok()) return refuse(status);
    const std::shared_ptr<bool> alive = alive_;
    const bool is_empty = decoded->bytes == message.size();
    if (!is_empty) {
      if (!arrived_.open()) return refuse("more messages than the window lets through");
      remove_prefix(message, decoded->bytes);
      if (absl::Status status = attach_payload(decoded->header, message); !status.ok()) {
        return refuse(status);
      }
      arrived_.add(message.size());
    }
    if (decoded->header.asks) asked_ = arrived_.end();
    if (!is_empty && (paused_ || !held_.empty())) {  // the held ones come first
      held_.push_back(std::move(message));
    } else if (!is_empty) {
      deliver(std::move(message));
    }
    if (*alive) report_written();
    if (*alive) pump();
    return ReadNext::kContinue;
  }

  /// What the other end tells of our messages.
  absl::Status heed(const StreamHeader& header) {
    if (header.accepted) peer_reads_ours_ = arena_ != nullptr;
    if (header.delivered) {
      if (*header.delivered < sent_.begin() || *header.delivered > sent_.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "stream header: ", *header.delivered, " messages taken, ", sent_.end(), " were sent"));
      }
      count_off(*header.delivered);
    }
    for (const std::uint64_t sequence : header.released_messages()) {
      const auto released =
          std::find_if(in_flight_.begin(), in_flight_.end(),
                       [sequence](const InFlight& f) { return f.sequence == sequence; });
      if (released == in_flight_.end()) {
        return absl::InvalidArgumentError(absl::StrCat("stream header: message ", sequence,
                                                       " is released, but it is not under way"));
      }
      in_flight_.erase(released);
    }
    return absl::OkStatus();
  }

  /// Adds the payload that stayed in the sender's memory to the message.
  absl::Status attach_payload(const StreamHeader& header, Bytes& message) {
    if (header.payload_bytes == 0) return absl::OkStatus();
    const auto payload =
        view_ == nullptr ? std::nullopt : view_->range(header.payload_offset, header.payload_bytes);
    if (!payload) {
      return absl::InvalidArgumentError(
          absl::StrCat("stream header: a payload of ", header.payload_bytes, " bytes at ",
                       header.payload_offset, " is outside of the sender's memory"));
    }
    auto received = std::make_shared<Received>();
    received->head = std::move(message.owner);
    received->view = view_;
    received->released = released_;
    received->sequence = arrived_.end();
    message.pieces.push_back(*payload);
    message.owner = std::move(received);
    return absl::OkStatus();
  }

  void deliver(Bytes message) {
    arrived_.remove_until(arrived_.begin() + 1);
    const std::shared_ptr<bool> alive = alive_;
    const ReadNext next = handler_->on_message(std::move(message));
    if (*alive) paused_ = next == ReadNext::kPause;
  }

  void deliver_held() {
    const std::shared_ptr<bool> alive = alive_;
    while (*alive && !ended_ && !closing_ && !refused_ && !paused_ && !held_.empty()) {
      Bytes message = std::move(held_.front());
      held_.pop_front();
      deliver(std::move(message));
    }
    if (*alive) pump();
  }

  /// The user may write again once the last message is below and the peer keeps up.
  void report_written() {
    if (!writing_ || outgoing_ || inner_busy_ || ended_ || closing_ || refused_) return;
    if (mode_ == Mode::kPaced && !may_send()) return;
    writing_ = false;
    handler_->on_written();
  }

  bool may_send() const { return sent_.open(window_->share()); }

  void count_on(std::size_t bytes) {
    if (sent_.empty()) window_->begin_stream();
    sent_.add(bytes);
    unasked_bytes_ += bytes;
  }
  void count_off(std::uint64_t sequence) {
    if (sent_.empty()) return;
    sent_.remove_until(sequence);
    if (sent_.empty()) window_->end_stream();
  }
  void forget_sent() { count_off(sent_.end()); }

  /// Passes pending messages to the transport below.
  void pump() {
    if (inner_busy_ || ended_ || refused_ || mode_ == Mode::kOffers || mode_ == Mode::kWaits)
      return;
    if (outgoing_) {
      OutgoingMessage message = *std::exchange(outgoing_, std::nullopt);
      send(mode_ == Mode::kPaced ? with_header(std::move(message)) : std::move(message));
      if (closing_) inner_->close(close_status_);
    } else if (mode_ == Mode::kPaced && !closing_ && (must_tell() || must_ask())) {
      StreamHeader header;
      tell_progress(header);
      if (must_ask()) ask(header);
      OutgoingMessage message;
      append_stream_header(header, message.prefix);
      send(std::move(message));
    }
  }

  /// Most progress is told with a message; this would come too late.
  bool must_tell() const {
    return (told_ < asked_ && arrived_.begin() >= asked_) ||
           released_->size() >= StreamHeader::kMaxReleased;
  }

  /// The window has become smaller since the last message, which did not ask.
  bool must_ask() const { return writing_ && !may_send() && unasked() > 0; }

  /// Early enough for the answer to come while the window's other half is under way.
  bool should_ask() const {
    return unasked_bytes_ >= window_->share() / 2 || unasked() >= kWindowMessages / 2 ||
           !may_send();
  }
  std::uint64_t unasked() const { return sent_.end() - asks_; }

  void ask(StreamHeader& header) {
    header.asks = true;
    asks_ = sent_.end();
    unasked_bytes_ = 0;
  }

  void tell_progress(StreamHeader& header) {
    header.accepted = std::exchange(tell_accepted_, false);
    if (told_ != arrived_.begin()) {
      told_ = arrived_.begin();
      header.delivered = told_;
    }
    released_->move_to(header);
  }

  OutgoingMessage with_header(OutgoingMessage message) {
    StreamHeader header;
    tell_progress(header);
    const std::size_t payload_bytes = message.payload.size();
    count_on(message.prefix.size() + payload_bytes);
    if (should_ask()) ask(header);
    const auto offset = peer_reads_ours_ && payload_bytes >= kMinSharedBytes
                            ? arena_->offset_of(message.payload)
                            : std::nullopt;
    (offset ? traffic_->shared_bytes : traffic_->sent_bytes) += payload_bytes;
    if (offset) {
      header.payload_offset = *offset;
      header.payload_bytes = payload_bytes;
      in_flight_.push_back({sent_.end() - 1, std::move(message.payload_owner)});
      message.payload = {};
      message.payload_owner = nullptr;
    }
    MessagePrefix prefix;
    append_stream_header(header, prefix);
    prefix.append(message.prefix.view());
    message.prefix = prefix;
    return message;
  }

  Transport* const loop_;
  SharedArena* const arena_;
  PacedTraffic* const traffic_;
  SharedWindow* const window_;
  StreamHandler* handler_ = nullptr;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mode mode_;
  bool inner_busy_ = false;  ///< a message of ours is being written below
  bool writing_ = false;     ///< the user waits for on_written
  bool paused_ = false, ended_ = false, heard_plain_ = false;
  bool closing_ = false;  ///< the user called close
  bool refused_ = false;  ///< the peer's headers made no sense: the stream ends
  absl::Status close_status_;
  std::optional<OutgoingMessage> outgoing_;  ///< the user's, not yet below

  // Sending.
  Window sent_;                      ///< not yet taken by the other end's handler
  std::uint64_t asks_ = 0;           ///< up to which message the other end was asked to tell
  std::uint64_t unasked_bytes_ = 0;  ///< of the messages from there on
  bool peer_reads_ours_ = false;
  std::vector<InFlight> in_flight_;

  // Receiving.
  std::shared_ptr<const SharedArenaView> view_;
  bool tell_accepted_ = false;  ///< the next header says that we read the other end's memory
  const std::shared_ptr<ReleasedList> released_ = std::make_shared<ReleasedList>();
  Window arrived_;           ///< not yet taken by our handler
  std::uint64_t told_ = 0;   ///< how many of them taken the other end knows of
  std::uint64_t asked_ = 0;  ///< once so many are taken the other end wants to know
  std::deque<Bytes> held_;   ///< came while paused

  std::unique_ptr<Stream> inner_;  ///< destroyed first: no event comes after that
};

}  // namespace

class PacedTransport::Wrapper final : public Acceptor {
 public:
  Wrapper(PacedTransport* transport, Acceptor* acceptor)
      : transport_(transport), acceptor_(acceptor) {}
  StreamHandler* on_accept(std::unique_ptr<Stream> inner) override {
    auto stream =
        std::make_unique<PacedStream>(PacedStream::Role::kAccepts, transport_, transport_->arena_,
                                      &transport_->traffic_, &transport_->window_);
    PacedStream* handler = stream.get();
    const std::shared_ptr<const bool> alive = handler->alive();
    handler->attach(std::move(inner), nullptr);
    StreamHandler* user = acceptor_->on_accept(std::move(stream));
    if (!*alive) return nullptr;
    handler->attach(user);
    return handler;
  }

 private:
  PacedTransport* const transport_;
  Acceptor* const acceptor_;
};

PacedTransport::PacedTransport(Transport* inner, SharedArena* arena, std::int64_t window_bytes)
    : inner_(inner), arena_(arena), window_(window_bytes) {}
PacedTransport::~PacedTransport() = default;

std::unique_ptr<Stream> PacedTransport::connect(const std::string& address,
                                                StreamHandler* handler) {
  auto stream = std::make_unique<PacedStream>(PacedStream::Role::kConnects, this, arena_, &traffic_,
                                              &window_);
  stream->attach(inner_->connect(address, stream.get()), handler);
  return stream;
}

absl::StatusOr<std::string> PacedTransport::listen(const std::string& address, Acceptor* acceptor) {
  wrapper_ = std::make_unique<Wrapper>(this, acceptor);
  return inner_->listen(address, wrapper_.get());
}

}  // namespace poseidon
