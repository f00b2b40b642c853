#include "common/grpc/sealed_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// Who has sent nothing for so long says that it is well.
constexpr Nanoseconds kLongestSilence = std::chrono::seconds(1);
/// How often it is looked who was silent for too long.
constexpr Nanoseconds kLookInterval = std::chrono::milliseconds(250);
/// From our end on, whatever the other says.
constexpr Nanoseconds kLongestEnd = std::chrono::minutes(10);
/// System calls for one stream before others have their turn: a chunk or two.
constexpr int kTurns = 16;
/// What is waited for of a large message at a time. The fewer wake-ups the better (with BBR they
/// cost as much again as encryption does), while the whole of it still is in the second cache.
constexpr std::size_t kMostAtOnceBytes = std::size_t{512} << 10;
/// A record that is slow to come is a sign of life, too; somebody's bytes that make none are not.
constexpr std::size_t kSignOfLifeBytes = std::size_t{1} << 10;

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

}  // namespace

// ---- one stream ----

class SealedSockets::Wire : public std::enable_shared_from_this<Wire> {
 public:
  Wire(SealedSockets* all, std::uint64_t id, Descriptor socket, Keepalive keepalive,
       const SealEnds& secrets)
      : id_(id),
        all_(all),
        socket_(std::move(socket)),
        peer_(peer_of(socket_.get())),
        most_silence_(keepalive.interval + keepalive.timeout),
        beat_(std::min<Nanoseconds>(kLongestSilence, keepalive.interval / 2)),
        end_patience_(keepalive.end),
        pipe_(secrets, all_->max_message_bytes_),
        heard_(now()),
        said_(heard_) {
    // A peer that reads nothing for a while is not dead: its signs of life tell. The kernel would
    // cut it after TCP_USER_TIMEOUT (connection_door.cc) all the same.
    constexpr unsigned kNever = 0;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kNever, sizeof(kNever));
  }

  // ---- for its user; none of these has an event before it returns ----

  const std::string& peer() const { return peer_; }
  void attach(StreamHandler* handler) {
    if (!is_over_) handler_ = handler;
  }
  void write(OutgoingMessage message) {
    POSEIDON_CHECK(!is_writing_ && !is_closing_, "one write at a time, and none after close");
    is_writing_ = true;
    if (is_over_ || is_ending_) return;
    pipe_.send(std::move(message));
    stir();
  }
  void resume_reads() {
    if (!std::exchange(is_paused_, false) || is_over_) return;
    heard_ = now();
    stir();
  }
  void close(const absl::Status& status) {
    if (std::exchange(is_closing_, true) || is_over_ || is_ending_) return;
    end(status);
    is_paused_ = false;  // so that it hears of the other end's
    stir();
  }
  void release() {
    handler_ = nullptr;
    if (is_over_ || is_ending_) return;  // what there is to say still goes out
    finish(cut("by us"));
    stir();
  }

  // ---- for the sockets ----

  const std::uint64_t id_;
  std::optional<std::uint32_t> interest_;  ///< what the kernel was asked for
  bool is_stirred_ = false;
  int socket() const { return socket_.get(); }
  bool is_over() const { return is_over_; }
  std::uint32_t interest() const {
    return (is_paused_ ? 0U : std::uint32_t{EPOLLIN}) |
           (is_blocked_ ? std::uint32_t{EPOLLOUT} : 0U);
  }

  /// What its user has asked for, or a turn has left.
  void go_on() {
    send_some();
    if (!is_paused_) receive_some();
  }
  void on_events(std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) send_some();
    if ((events & EPOLLIN) != 0) receive_some();
    if ((events & (EPOLLERR | EPOLLHUP)) == 0 || is_over_) return;
    receive_some();  // why
    if (!is_over_ && is_paused_) finish(cut("it failed while nothing was read"));
  }
  void look_at_clock() {
    if (is_over_) return;
    // Who takes nothing, but says that it is well, still reads what comes before the end.
    if (is_ending_ &&
        (now() - std::max(moved_, heard_) > end_patience_ || now() - ended_ > kLongestEnd)) {
      finish(cut("the other end does not end it"));
      return;
    }
    if (!is_blocked_ && !is_ending_ && now() - said_ >= beat_) {
      pipe_.send_alive();
      send_some();
    }
    if (is_paused_ || now() - heard_ <= most_silence_) return;
    receive_some();  // perhaps it is us who stood still
    if (is_over_ || is_paused_ || now() - heard_ <= most_silence_) return;
    const auto silence = std::chrono::duration_cast<Milliseconds>(most_silence_);
    finish(cut(absl::StrCat("nothing was heard for ", silence.count(), " ms")));
  }
  /// So long this process stood still, and heard nothing because of that.
  void forgive(Nanoseconds duration) { heard_ = std::min(heard_ + duration, now()); }
  /// Says what there is to say as far as the connection takes it, and closes it.
  void stop() {
    handler_ = nullptr;
    send_some();
    finish(cut("this process is stopping"));
  }
  /// Closes the connection, and tells the user.
  void finish(const absl::Status& why) {
    if (std::exchange(is_over_, true)) return;
    socket_.close();
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
  }

 private:
  Nanoseconds now() const { return all_->clock_.now(); }
  void stir() { all_->stir(shared_from_this()); }

  void hear_sign_of_life() {
    heard_ = now();
    heard_bytes_ = 0;
  }
  void end(const absl::Status& status) {
    is_ending_ = true;
    moved_ = ended_ = now();
    pipe_.send_end(status);
  }

  void send_some() {
    is_blocked_ = false;
    for (int turn = 0; turn < kTurns; ++turn) {
      if (is_over_) return;
      const absl::Span<const std::byte> bytes = pipe_.to_send();
      if (bytes.empty()) return;
      const ssize_t sent =
          ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        is_blocked_ = true;
        return;
      }
      if (sent < 0) {
        const int error = errno;
        receive_some();  // what the other end said before it went may lie here yet
        finish(cut(words_of(error)));
        return;
      }
      pipe_.sent(static_cast<std::size_t>(sent));
      moved_ = said_ = now();
      if (pipe_.has_sent_end()) {
        if (is_answer_) finish(absl::OkStatus());  // nothing is left to be heard
        return;
      }
      if (is_writing_ && !pipe_.has_message() && !is_closing_) {
        is_writing_ = false;
        if (handler_ != nullptr) handler_->on_written();
      }
    }
    stir();
  }

  void receive_some() {
    for (int turn = 0; turn < kTurns; ++turn) {
      if (!hear()) return;
      const absl::Span<std::byte> room = pipe_.room();
      const ssize_t count = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (count <= 0) {
        finish(cut(count == 0 ? "its end is not sealed" : words_of(errno)));
        return;
      }
      pipe_.received(static_cast<std::size_t>(count));
      heard_bytes_ += static_cast<std::size_t>(count);
      if (heard_bytes_ >= kSignOfLifeBytes) hear_sign_of_life();
      if (static_cast<std::size_t>(count) < room.size()) break;  // that was all
    }
    if (hear()) wait_for_enough();
  }

  /// Of a large message we are woken for the next part, not for each packet.
  void wait_for_enough() {
    const int enough = static_cast<int>(std::min(pipe_.lacks(), kMostAtOnceBytes));
    if (std::exchange(enough_, enough) == enough) return;
    // Where it fails we are woken more often.
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof(enough));
  }

  /// What the received bytes say. False when nothing more is to be read.
  bool hear() {
    while (!is_over_ && !is_paused_) {
      const std::uint64_t opened = pipe_.opened();
      std::optional<SealedPipe::Incoming> incoming = pipe_.next();
      if (pipe_.opened() != opened) hear_sign_of_life();
      if (!incoming) return true;
      if (auto* message = std::get_if<Bytes>(&*incoming)) {
        if (is_ending_ || handler_ == nullptr) continue;
        const bool pauses = handler_->on_message(std::move(*message)) == ReadNext::kPause;
        is_paused_ = pauses && handler_ != nullptr && !is_ending_;
      } else if (const auto* end = std::get_if<SealedPipe::End>(&*incoming)) {
        if (is_ending_) {
          finish(end->why);  // OK, unless it ended by itself
        } else {
          answer(end->why);
        }
      } else if (const auto* broken = std::get_if<SealedPipe::Broken>(&*incoming)) {
        all_->broken_(peer_, broken->what);
        finish(absl::UnavailableError(
            absl::StrCat("from ", peer_, ": ", broken->what,
                         ": somebody between the two changes what passes, or memory is failing; "
                         "the stream ends")));
      } else {
        refuse(std::get<SealedPipe::TooLarge>(*incoming).bytes);
      }
    }
    return false;
  }

  /// The other end has ended the stream: it hears that we know, and that nobody else has cut it.
  void answer(const absl::Status& why) {
    is_answer_ = true;
    pipe_.drop_message();
    end(absl::OkStatus());
    stir();
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
  }

  /// Tells the other end, and hears no more than its end.
  void refuse(std::size_t bytes) {
    const absl::Status why = absl::ResourceExhaustedError(absl::StrCat(
        "a message of ", bytes, " bytes is larger than is accepted, ", all_->max_message_bytes_));
    end(why);
    stir();
    if (StreamHandler* handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
  }

  SealedSockets* const all_;
  Descriptor socket_;
  const std::string peer_;
  const Nanoseconds most_silence_, beat_, end_patience_;
  SealedPipe pipe_;
  StreamHandler* handler_ = nullptr;  ///< none once it has heard the end, or its user is gone
  bool is_writing_ = false;           ///< the user waits for on_written
  bool is_closing_ = false;           ///< the user called close
  bool is_ending_ = false;            ///< our end is said, or waits to be
  bool is_answer_ = false;            ///< to the other's
  bool is_paused_ = false;            ///< the user reads nothing
  bool is_blocked_ = false;           ///< the connection takes nothing at the moment
  bool is_over_ = false;              ///< the socket is closed
  int enough_ = 1;                    ///< bytes that wake us
  Nanoseconds heard_, said_;          ///< when, last
  std::size_t heard_bytes_ = 0;       ///< since then
  Nanoseconds moved_{0};              ///< when the connection took something last
  Nanoseconds ended_{0};              ///< when we ended it
};

/// What the user holds.
class SealedSockets::Handle final : public Stream {
 public:
  explicit Handle(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~Handle() override { wire_->release(); }
  void write(OutgoingMessage message) override { wire_->write(std::move(message)); }
  void resume_reads() override { wire_->resume_reads(); }
  void close(const absl::Status& status) override { wire_->close(status); }
  std::string peer() const override { return wire_->peer(); }

 private:
  const std::shared_ptr<Wire> wire_;
};

class SealedSockets::Connection final : public SealedConnection {
 public:
  Connection(SealedSockets* all, Descriptor socket, Keepalive keepalive)
      : all_(all), socket_(std::move(socket)), keepalive_(keepalive) {}
  std::unique_ptr<Stream> open(const SealEnds& secrets, StreamHandler* handler) override {
    const std::shared_ptr<Wire> wire = all_->open(std::move(socket_), keepalive_, secrets);
    wire->attach(handler);
    return std::make_unique<Handle>(wire);
  }
  void offer(const SealEnds& secrets, Acceptor* acceptor) override {
    const std::shared_ptr<Wire> wire = all_->open(std::move(socket_), keepalive_, secrets);
    wire->attach(acceptor->on_accept(std::make_unique<Handle>(wire)));
  }

 private:
  SealedSockets* const all_;
  Descriptor socket_;
  const Keepalive keepalive_;
};

// ---- all of them ----

SealedSockets::SealedSockets(std::size_t max_message_bytes, Broken broken)
    : max_message_bytes_(max_message_bytes),
      broken_(std::move(broken)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  POSEIDON_CHECK(epoll_.is_open() && event_.is_open() &&
                     ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) == 0,
                 "a process that starts has files for its sockets");
}
SealedSockets::~SealedSockets() { stop(); }

std::unique_ptr<SealedConnection> SealedSockets::adopt(Descriptor socket, Keepalive keepalive) {
  return std::make_unique<Connection>(this, std::move(socket), keepalive);
}

std::shared_ptr<SealedSockets::Wire> SealedSockets::open(Descriptor socket, Keepalive keepalive,
                                                         const SealEnds& secrets) {
  POSEIDON_CHECK(socket.is_open() && !is_stopped_, "opened once, while the loop runs");
  auto wire = std::make_shared<Wire>(this, next_id_++, std::move(socket), keepalive, secrets);
  wires_.emplace(wire->id_, wire);
  stir(wire);
  return wire;
}

void SealedSockets::poll(Nanoseconds patience) {
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

void SealedSockets::look_at_clocks() {
  const Nanoseconds now = clock_.now(), late = now - looked_ - kLookInterval;
  looked_ = now;
  std::vector<std::shared_ptr<Wire>> all;
  all.reserve(wires_.size());
  for (const auto& [id, wire] : wires_) all.push_back(wire);
  for (const std::shared_ptr<Wire>& wire : all) {
    if (late > kLookInterval) wire->forgive(late);
    wire->look_at_clock();
    settle(*wire);
  }
}

void SealedSockets::stir(const std::shared_ptr<Wire>& wire) {
  if (!is_stopped_ && !std::exchange(wire->is_stirred_, true)) stirred_.push_back(wire);
}

/// After each turn of a stream: asks the kernel for what it waits for, or forgets it when it is
/// over.
void SealedSockets::settle(Wire& wire) {
  if (!wire.is_over() && wire.interest_ != wire.interest()) {
    epoll_event event{.events = wire.interest(), .data = {.u64 = wire.id_}};
    const int operation = wire.interest_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    wire.interest_ = wire.interest();
    if (::epoll_ctl(epoll_.get(), operation, wire.socket(), &event) != 0) {
      wire.finish(cut(words_of(errno)));
    }
  }
  if (wire.is_over()) wires_.erase(wire.id_);
}

void SealedSockets::wake() {
  const std::uint64_t one = 1;
  POSEIDON_CHECK(::write(event_.get(), &one, sizeof(one)) == sizeof(one),
                 "an eventfd takes a count");
}

void SealedSockets::stop() {
  is_stopped_ = true;
  stirred_.clear();
  for (const auto& [id, wire] : std::exchange(wires_, {})) wire->stop();
}

}  // namespace poseidon
