#include "common/grpc/tls_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/grpc/tls_frames.h"
#include "poseidon/v1/stream.pb.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// An end that has sent nothing for this long sends a keepalive frame.
constexpr Nanoseconds kLongestSilence = std::chrono::seconds(1);
/// How often silences are looked at.
constexpr Nanoseconds kLookInterval = std::chrono::milliseconds(250);
/// From our end on, whatever the other says.
constexpr Nanoseconds kLongestEnd = std::chrono::minutes(10);
/// Of one stream, each way, before others have their turn.
constexpr std::size_t kTurnBytes = std::size_t{4} << 20;
/// Calls of OpenSSL for one stream before others have their turn: small messages.
constexpr int kTurns = 1024;
/// What OpenSSL may hold of a record that has not arrived whole.
constexpr std::size_t kPartialRecordBytes = std::size_t{17} << 10;
/// A frame that is slow to come is a sign of life, too.
constexpr std::size_t kSignOfLifeBytes = std::size_t{1} << 10;

using Outcome = TlsSession::Outcome;

absl::Status cut(const std::string& why) {
  return absl::UnavailableError(absl::StrCat("the connection was cut: ", why));
}
std::string words_of(int error) { return std::generic_category().message(error); }

/// "10.0.0.3:4711"
std::string peer_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket, generic, &size) != 0 ||
      ::getnameinfo(generic, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return address.ss_family == AF_INET6 ? absl::StrCat("[", host.data(), "]:", port.data())
                                       : absl::StrCat(host.data(), ":", port.data());
}

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::string encode_opening(const std::string& method, const std::string& join_token) {
  v1::StreamOpening opening;
  opening.set_method(method);
  opening.set_join_token(join_token);
  return opening.SerializeAsString();
}

absl::Status tampered(const std::string& peer, const std::string& what) {
  return absl::UnavailableError(
      absl::StrCat("from ", peer, ": ", what,
                   ": somebody between the two changes what passes, or memory is failing; the "
                   "stream ends"));
}

/// OpenSSL gives write() no MSG_NOSIGNAL.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

std::shared_ptr<const TlsContext> context_of(const Security& security, TlsContext::End end) {
  POSEIDON_CHECK(security.has_tls(), "streams in TLS are for processes that have it");
  auto context = TlsContext::make(*security.identity(), end);
  POSEIDON_CHECK(context.ok(), "OpenSSL takes the certificate that it has read before");
  return *std::move(context);
}

}  // namespace

// ---- one stream ----

class TlsSockets::Wire : public std::enable_shared_from_this<Wire> {
 public:
  /// Of a caller.
  Wire(TlsSockets* all, std::uint64_t id, Keepalive keepalive, std::string method,
       std::string address, StreamHandler* handler)
      : Wire(all, id, keepalive, FrameReader::End::kCaller) {
    method_ = std::move(method);
    address_ = std::move(address);
    handler_ = handler;
    deadline_ = now() + all_->options_.connect;
    frames_out_.send_opening(encode_opening(method_, all_->security_->join_token()));
  }
  /// Of one that came.
  Wire(TlsSockets* all, std::uint64_t id, Keepalive keepalive, Descriptor socket)
      : Wire(all, id, keepalive, FrameReader::End::kAnswerer) {
    socket_ = std::move(socket);
    begin_handshake();
  }

  // ---- for its user; none of these has an event before it returns ----

  /// A caller's is the method that it requested.
  const std::string& peer() const { return address_.empty() ? peer_ : address_; }
  const std::string& reached() const { return peer_.empty() ? address_ : peer_; }
  void write(OutgoingMessage message) {
    POSEIDON_CHECK(!is_writing_ && !is_closing_, "one write at a time, and none after close");
    is_writing_ = true;
    if (is_over_ || is_ending_) return;
    frames_out_.send(std::move(message));
    schedule();
  }
  void resume_reads() {
    if (!std::exchange(is_paused_, false) || is_over_) return;
    heard_ = now();
    schedule();
  }
  void close(const absl::Status& status) {
    if (std::exchange(is_closing_, true) || is_over_ || is_ending_) return;
    end(status);
    is_paused_ = false;  // so that it reads the other end's end of stream
    schedule();
  }
  void release() {
    handler_ = nullptr;
    if (is_over_ || is_ending_) return;  // pending frames are still sent
    finish(cut("by us"));
    schedule();
  }

  // ---- for the sockets ----

  const std::uint64_t id_;
  std::optional<std::uint32_t> interest_;  ///< events registered with the kernel
  bool is_stirred_ = false;
  int socket() const { return socket_.get(); }
  bool is_over() const { return is_over_; }
  const std::string& address() const { return address_; }
  std::uint32_t interest() const {
    if (stage_ == Stage::kConnecting) return EPOLLOUT;
    if (stage_ == Stage::kHandshake) return handshake_writes_ ? EPOLLOUT : EPOLLIN;
    return (is_paused_ ? 0U : std::uint32_t{EPOLLIN}) |
           (is_blocked_ ? std::uint32_t{EPOLLOUT} : 0U);
  }

  /// Of a caller: where to connect to.
  void connect(Addresses addresses) {
    if (is_over_) return;
    if (!addresses.ok()) return finish(addresses.status());
    addresses_ = *std::move(addresses);
    connect_next(words_of(EADDRNOTAVAIL));
  }
  /// What its user has asked for, or a turn has left.
  void go_on() {
    if (stage_ == Stage::kHandshake) shake_hands();
    if (!is_connected()) return;
    send_some();
    if (!is_paused_) receive_some();
  }
  void on_events(std::uint32_t events) {
    if (stage_ == Stage::kConnecting) return on_connected();
    if (stage_ == Stage::kHandshake) return go_on();
    if ((events & EPOLLOUT) != 0) send_some();
    if ((events & EPOLLIN) != 0) receive_some();
    if ((events & (EPOLLERR | EPOLLHUP)) == 0 || is_over_) return;
    receive_some();  // why
    if (!is_over_ && is_paused_) finish(cut("it failed while nothing was read"));
  }
  void look_at_clock() {
    if (is_over_) return;
    if (stage_ != Stage::kOpen && now() > deadline_) return be_late();
    // An end that does not read now, but sends keepalives, still reads everything before the end of
    // stream.
    if (is_ending_ &&
        (now() - std::max(moved_, heard_) > end_patience_ || now() - ended_ > kLongestEnd)) {
      return finish(cut("the other end does not end it"));
    }
    if (!is_connected()) return;
    if (!is_blocked_ && !is_ending_ && now() - said_ >= beat_) {
      frames_out_.send_alive();
      send_some();
    }
    if (is_paused_ || now() - heard_ <= most_silence_) return;
    receive_some();  // perhaps this process stood still
    if (is_over_ || is_paused_ || now() - heard_ <= most_silence_) return;
    const auto silence = std::chrono::duration_cast<Milliseconds>(most_silence_);
    finish(cut(absl::StrCat("nothing was heard for ", silence.count(), " ms")));
  }
  /// How long this process stood still and therefore received nothing.
  void extend_deadlines(Nanoseconds duration) { heard_ = std::min(heard_ + duration, now()); }
  /// Sends pending frames as far as the connection takes them, and closes it.
  void stop() {
    handler_ = nullptr;
    if (is_connected()) send_some();
    finish(cut("this process is stopping"));
  }
  /// Closes the connection, and tells the user.
  void finish(const absl::Status& why) {
    if (std::exchange(is_over_, true)) return;
    if (tls_ != nullptr && is_connected() && why.ok()) tls_->close_notify();
    tls_.reset();
    socket_.close();
    StreamHandler* const handler = std::exchange(handler_, nullptr);
    if (handler == nullptr) return;
    // A stream that breaks after it has worked does not have a problem with certificates.
    const bool is_answered = address_.empty() || frames_in_.frames() > 0;
    handler->on_closed(is_answered ? why : all_->security_->explain(why));
  }

 private:
  enum class Stage : std::uint8_t {
    kLookingUp,   ///< a caller's: its addresses are not known
    kConnecting,  ///< a caller's
    kHandshake,
    kOpening,  ///< an answerer's: the handshake is done, the opening has not come
    kOpen
  };

  Wire(TlsSockets* all, std::uint64_t id, Keepalive keepalive, FrameReader::End end)
      : id_(id),
        all_(all),
        most_silence_(keepalive.interval + keepalive.timeout),
        beat_(std::min<Nanoseconds>(kLongestSilence, keepalive.interval / 2)),
        end_patience_(keepalive.end),
        frames_in_(end, all_->options_.max_message_bytes),
        heard_(now()),
        said_(heard_) {}

  Nanoseconds now() const { return all_->clock_.now(); }
  void schedule() { all_->schedule(shared_from_this()); }
  bool is_caller() const { return !address_.empty(); }
  bool is_connected() const {
    return !is_over_ && (stage_ == Stage::kOpening || stage_ == Stage::kOpen);
  }
  void finish_unconnected(const std::string& why) {
    finish(absl::UnavailableError(
        is_caller() ? absl::StrCat("cannot connect to ", address_, ": ", why) : why));
  }

  // ---- until the stream is open ----

  void connect_next(std::string why) {
    stage_ = Stage::kConnecting;
    while (!addresses_.empty()) {
      const SocketAddress address = addresses_.front();
      addresses_.erase(addresses_.begin());
      interest_.reset();
      socket_ = begin_to_connect(address);
      if (socket_.is_open()) return;
      why = words_of(errno);
    }
    finish_unconnected(why);
  }
  void on_connected() {
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    // The first bytes of a connection always find room.
    if (error == 0 && ::send(socket_.get(), kGreeting.data(), kGreeting.size(), MSG_NOSIGNAL) !=
                          static_cast<ssize_t>(kGreeting.size())) {
      error = errno;
    }
    if (error != 0) return connect_next(words_of(error));
    begin_handshake();
    go_on();
  }
  void begin_handshake() {
    // A peer that reads nothing for a while is not dead: its signs of life tell. The kernel would
    // cut it after TCP_USER_TIMEOUT (connection_door.cc) all the same.
    constexpr unsigned kNever = 0;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kNever, sizeof(kNever));
    peer_ = peer_of(socket_.get());
    stage_ = Stage::kHandshake;
    deadline_ = now() + all_->options_.handshake;
    const auto judge = [this](const std::string& certificate, const std::string& chain) {
      Security& security = *all_->security_;
      return is_caller() ? security.judge_answerer(certificate, chain, method_, host_of(address_))
                         : security.judge_caller(certificate, chain, peer_);
    };
    tls_ = std::make_unique<TlsSession>(is_caller() ? *all_->calls_ : *all_->answers_,
                                        socket_.get(), judge);
  }
  void shake_hands() {
    const TlsSession::Result result = tls_->handshake();
    handshake_writes_ = result.outcome == Outcome::kWantsWrite;
    if (handshake_writes_ || result.outcome == Outcome::kWantsRead) return;
    if (result.outcome == Outcome::kDone) {
      stage_ = is_caller() ? Stage::kOpen : Stage::kOpening;
      heard_ = said_ = now();
      spdlog::debug("a stream in TLS with {}: {}", peer_, tls_->description());
      return;
    }
    if (result.outcome == Outcome::kJudged) {
      return finish_unconnected(absl::StrCat("its certificate is refused: ", result.what));
    }
    fail_handshake(result.what);
  }
  void fail_handshake(const std::string& what) {
    const std::string message = absl::StrCat("the TLS handshake failed: ", what);
    if (!is_caller()) all_->security_->refuse(PeerRefusal::kHandshake, peer_, message);
    finish_unconnected(message);
  }
  void be_late() {
    if (stage_ == Stage::kHandshake) return fail_handshake("the other side is silent");
    if (stage_ != Stage::kOpening) return finish_unconnected(words_of(ETIMEDOUT));
    all_->security_->refuse(PeerRefusal::kHandshake, peer_, "it opens no stream");
    finish(cut("no stream was opened"));
  }
  void open(const std::string& text) {
    stage_ = Stage::kOpen;
    v1::StreamOpening opening;
    if (!opening.ParseFromString(text)) {
      return turn_away(absl::InvalidArgumentError("an opening that cannot be read"));
    }
    MethodCaller caller{.peer = peer_,
                        .method = opening.method(),
                        .certificate = tls_->peer_certificate(),
                        .join_token = std::nullopt};
    if (!opening.join_token().empty()) caller.join_token = opening.join_token();
    const absl::StatusOr<Acceptor*> acceptor = all_->admit_(caller);
    if (!acceptor.ok()) return turn_away(acceptor.status());
    StreamHandler* const handler = (*acceptor)->on_accept(make_handle());
    if (!is_over_) handler_ = handler;
  }
  std::unique_ptr<Stream> make_handle();

  // ---- once it is open ----

  void hear_sign_of_life() {
    heard_ = now();
    heard_bytes_ = 0;
  }
  void end(const absl::Status& status) {
    is_ending_ = true;
    moved_ = ended_ = now();
    frames_out_.send_end(status);
  }

  void send_some() {
    is_blocked_ = false;
    std::size_t turn_bytes = 0;
    for (int turn = 0; turn < kTurns && turn_bytes < kTurnBytes; ++turn) {
      if (is_over_) return;
      const absl::Span<const std::byte> bytes = frames_out_.to_send();
      if (bytes.empty()) return;
      const TlsSession::Result result = tls_->write(bytes);
      if (result.outcome != Outcome::kDone) {
        is_blocked_ = result.outcome == Outcome::kWantsWrite;
        // A write that waits for received bytes continues when some have arrived.
        if (is_blocked_ || result.outcome == Outcome::kWantsRead) return;
        receive_some();  // the other end's last frames may still be unread here
        finish(cut(result.what));
        return;
      }
      turn_bytes += result.bytes;
      frames_out_.sent(result.bytes);
      moved_ = said_ = now();
      if (frames_out_.has_sent_end()) {
        if (is_answer_) finish(absl::OkStatus());  // nothing is left to be read
        return;
      }
      if (is_writing_ && !frames_out_.has_message() && !is_closing_) {
        is_writing_ = false;
        if (handler_ != nullptr) handler_->on_written();
      }
    }
    schedule();
  }

  void receive_some() {
    std::size_t turn_bytes = 0;
    for (int turn = 0; turn < kTurns && turn_bytes < kTurnBytes; ++turn) {
      if (is_over_ || is_paused_) return;
      const absl::Span<std::byte> room = frames_in_.room();
      const TlsSession::Result result = tls_->read(room);
      if (result.outcome == Outcome::kWantsRead) return wait_for_enough();
      if (result.outcome == Outcome::kWantsWrite) {
        is_blocked_ = true;
        return;
      }
      if (result.outcome != Outcome::kDone) return fail(result);
      turn_bytes += result.bytes;
      frames_in_.received(result.bytes);
      heard_bytes_ += result.bytes;
      if (heard_bytes_ >= kSignOfLifeBytes) hear_sign_of_life();
      hear();
    }
    if (!is_over_) schedule();  // OpenSSL may hold bytes that the kernel does not tell of
  }
  void fail(const TlsSession::Result& result) {
    if (result.outcome != Outcome::kBroken) {
      const bool is_alert = result.outcome == Outcome::kAlert;
      return finish(
          cut(is_alert ? absl::StrCat("the other end says: ", result.what) : result.what));
    }
    all_->security_->refuse(PeerRefusal::kBrokenMessage, peer_, result.what);
    finish(tampered(peer_, result.what));
  }

  /// Of a large frame we are woken once for most of it, not for each packet.
  void wait_for_enough() {
    const std::size_t lacks = frames_in_.lacks();
    const int enough =
        lacks > 2 * kPartialRecordBytes ? static_cast<int>(lacks - kPartialRecordBytes) : 1;
    if (std::exchange(enough_, enough) == enough) return;
    // Where it fails we are woken more often.
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof(enough));
  }

  /// What the received bytes say.
  void hear() {
    if (std::exchange(frames_, frames_in_.frames()) != frames_) hear_sign_of_life();
    std::optional<FrameReader::Incoming> incoming = frames_in_.next();
    if (!incoming) return;
    if (auto* message = std::get_if<Bytes>(&*incoming)) {
      if (is_ending_ || handler_ == nullptr) return;
      const bool pauses = handler_->on_message(std::move(*message)) == ReadNext::kPause;
      is_paused_ = pauses && handler_ != nullptr && !is_ending_;
    } else if (const auto* opening = std::get_if<FrameReader::Opening>(&*incoming)) {
      open(opening->text);
    } else if (const auto* end = std::get_if<FrameReader::Ended>(&*incoming)) {
      if (is_ending_ && frames_out_.has_sent_end()) {
        finish(end->why);  // OK, unless the stream ended on its own
      } else {
        answer(end->why);
      }
    } else if (const auto* broken = std::get_if<FrameReader::Broken>(&*incoming)) {
      all_->security_->refuse(PeerRefusal::kBrokenMessage, peer_, broken->what);
      finish(tampered(peer_, broken->what));
    } else {
      turn_away(absl::ResourceExhaustedError(
          absl::StrCat("a message of ", std::get<FrameReader::TooLarge>(*incoming).bytes,
                       " bytes is larger than is accepted, ", all_->options_.max_message_bytes)));
    }
  }

  /// The other end has ended the stream. Our answer tells it that we received the end, so it does
  /// not take this for a cut. An end of our own that waits to be sent is an answer, too.
  void answer(const absl::Status& why) {
    is_answer_ = true;
    frames_out_.drop_message();
    end(absl::OkStatus());
    schedule();
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
  }

  /// Sends the reason to the other end, and then reads nothing but its end.
  void turn_away(const absl::Status& why) {
    frames_out_.drop_message();
    end(why);
    schedule();
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
  }

  TlsSockets* const all_;
  Descriptor socket_;
  std::unique_ptr<TlsSession> tls_;       ///< from the handshake on
  std::string method_, address_;          ///< a caller's; "" of one that came
  std::string peer_;                      ///< by number, once connected
  std::vector<SocketAddress> addresses_;  ///< that are still to be tried
  const Nanoseconds most_silence_, beat_, end_patience_;
  Stage stage_ = Stage::kLookingUp;
  Nanoseconds deadline_{0};  ///< of the stages before kOpen
  FrameWriter frames_out_;
  FrameReader frames_in_;
  StreamHandler* handler_ = nullptr;  ///< null once it was told the end, or its user is gone
  bool handshake_writes_ = false;     ///< it waits until the connection takes bytes
  bool is_writing_ = false;           ///< the user waits for on_written
  bool is_closing_ = false;           ///< the user called close
  bool is_ending_ = false;            ///< our end is said, or waits to be
  bool is_answer_ = false;            ///< to the other's
  bool is_paused_ = false;            ///< the user reads nothing
  bool is_blocked_ = false;           ///< the connection takes nothing at the moment
  bool is_over_ = false;              ///< the socket is closed
  int enough_ = 1;                    ///< bytes that wake us
  std::uint64_t frames_ = 0;          ///< that were heard
  Nanoseconds heard_, said_;          ///< when, last
  std::size_t heard_bytes_ = 0;       ///< since then
  Nanoseconds moved_{0};              ///< when the connection took something last
  Nanoseconds ended_{0};              ///< when we ended it
};

/// What the user holds.
class TlsSockets::Handle final : public Stream {
 public:
  explicit Handle(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~Handle() override { wire_->release(); }
  void write(OutgoingMessage message) override { wire_->write(std::move(message)); }
  void resume_reads() override { wire_->resume_reads(); }
  void close(const absl::Status& status) override { wire_->close(status); }
  std::string peer() const override { return wire_->peer(); }
  std::string reached() const override { return wire_->reached(); }

 private:
  const std::shared_ptr<Wire> wire_;
};

std::unique_ptr<Stream> TlsSockets::Wire::make_handle() {
  return std::make_unique<Handle>(shared_from_this());
}

// ---- all of them ----

TlsSockets::TlsSockets(std::shared_ptr<Security> security, TlsSocketOptions options, Admit admit)
    : security_(std::move(security)),
      options_(options),
      admit_(std::move(admit)),
      calls_(context_of(*security_, TlsContext::End::kCalls)),
      answers_(context_of(*security_, TlsContext::End::kAnswers)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  ignore_broken_pipes();
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  POSEIDON_CHECK(epoll_.is_open() && event_.is_open() &&
                     ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) == 0,
                 "a process that starts has files for its sockets");
}
TlsSockets::~TlsSockets() { stop(); }

std::unique_ptr<Stream> TlsSockets::connect(const std::string& method, const std::string& address,
                                            Keepalive keepalive, StreamHandler* handler) {
  auto wire = add(std::make_shared<Wire>(this, next_id_++, keepalive, method, address, handler));
  look_up(address, wire->id_);
  return std::make_unique<Handle>(std::move(wire));
}

void TlsSockets::accept(Descriptor socket, Keepalive keepalive) {
  add(std::make_shared<Wire>(this, next_id_++, keepalive, std::move(socket)));
}

std::shared_ptr<TlsSockets::Wire> TlsSockets::add(std::shared_ptr<Wire> wire) {
  POSEIDON_CHECK(!is_stopped_, "streams begin while the loop runs");
  wires_.emplace(wire->id_, wire);
  schedule(wire);
  return wire;
}

/// The result is delivered in the next poll(), because a stream must not have an event before the
/// call that opens it has returned.
void TlsSockets::look_up(const std::string& address, std::uint64_t wire) {
  const auto tell = [this, wire](Addresses addresses) {
    {
      const MutexLock lock(mutex_);
      looked_up_.emplace_back(wire, std::move(addresses));
    }
    wake();
  };
  Addresses numbers = look_up_address(address, LookUp::kNumbersOnly);
  if (!absl::IsUnavailable(numbers.status())) return tell(std::move(numbers));
  if (resolver_ == nullptr) resolver_ = std::make_unique<BackgroundThread>();
  resolver_->enqueue([tell, address] { tell(look_up_address(address, LookUp::kNames)); });
}

void TlsSockets::take_looked_up() {
  std::vector<std::pair<std::uint64_t, Addresses>> all;
  {
    const MutexLock lock(mutex_);
    all.swap(looked_up_);
  }
  for (auto& [id, addresses] : all) {
    const auto found = wires_.find(id);
    if (found == wires_.end()) continue;
    const std::shared_ptr<Wire> wire = found->second;
    wire->connect(std::move(addresses));
    settle(*wire);
  }
}

void TlsSockets::poll(Nanoseconds patience) {
  if (!wires_.empty()) patience = std::min(patience, kLookInterval);
  if (!stirred_.empty()) patience = Nanoseconds(0);
  const auto patience_ms = std::chrono::ceil<Milliseconds>(std::max(patience, Nanoseconds(0)));
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(),
                                 static_cast<int>(patience_ms.count()));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t id = event.data.u64;  // it lies packed there: no reference to it
    if (id == 0) {
      std::uint64_t wakes = 0;
      (void)!::read(event_.get(), &wakes, sizeof(wakes));
      take_looked_up();
      continue;
    }
    const auto found = wires_.find(id);
    if (found == wires_.end()) continue;
    const std::shared_ptr<Wire> wire = found->second;
    wire->on_events(event.events);
    settle(*wire);
  }
  for (const std::shared_ptr<Wire>& wire : std::exchange(stirred_, {})) {
    wire->is_stirred_ = false;
    if (!wire->is_over()) wire->go_on();
    settle(*wire);
  }
  if (clock_.now() - looked_ >= kLookInterval) look_at_clocks();
}

void TlsSockets::look_at_clocks() {
  const Nanoseconds now = clock_.now(), late = now - looked_ - kLookInterval;
  looked_ = now;
  std::vector<std::shared_ptr<Wire>> all;
  all.reserve(wires_.size());
  for (const auto& [id, wire] : wires_) all.push_back(wire);
  for (const std::shared_ptr<Wire>& wire : all) {
    if (late > kLookInterval) wire->extend_deadlines(late);
    wire->look_at_clock();
    settle(*wire);
  }
}

void TlsSockets::schedule(const std::shared_ptr<Wire>& wire) {
  if (!is_stopped_ && !std::exchange(wire->is_stirred_, true)) stirred_.push_back(wire);
}

/// After each turn of a stream: registers the events that it waits for with the kernel, or removes
/// the stream when it is over.
void TlsSockets::settle(Wire& wire) {
  if (!wire.is_over() && wire.socket() >= 0 && wire.interest_ != wire.interest()) {
    epoll_event event{.events = wire.interest(), .data = {.u64 = wire.id_}};
    const int operation = wire.interest_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    wire.interest_ = wire.interest();
    if (::epoll_ctl(epoll_.get(), operation, wire.socket(), &event) != 0) {
      wire.finish(cut(words_of(errno)));
    }
  }
  if (wire.is_over()) wires_.erase(wire.id_);
}

void TlsSockets::wake() {
  const std::uint64_t one = 1;
  POSEIDON_CHECK(::write(event_.get(), &one, sizeof(one)) == sizeof(one),
                 "an eventfd takes a count");
}

void TlsSockets::stop() {
  is_stopped_ = true;
  resolver_.reset();
  stirred_.clear();
  for (const auto& [id, wire] : std::exchange(wires_, {})) wire->stop();
}

}  // namespace poseidon
