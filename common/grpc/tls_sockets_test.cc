// Streams in TLS on TCP connections of this machine: both ends in one thread, or one of them played
// by hand.

#include "common/grpc/tls_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/grpc/tls_frames.h"
#include "common/wire/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/messages.h"
#include "tests/support/test_security.h"

namespace poseidon::tls_sockets_test {
namespace {

using testing_support::message_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kMaxMessage = std::size_t{8} << 20;
constexpr std::chrono::seconds kPatience{20};

/// One end's user.
class User final : public StreamHandler {
 public:
  ReadNext on_message(Bytes message) override {
    heard_.push_back(joined(message));
    if (on_message_) on_message_();
    return pauses_ ? ReadNext::kPause : ReadNext::kContinue;
  }
  void on_written() override {
    ++written_;
    if (!to_say_.empty()) {
      stream_->write(message_of("", to_say_.front()));
      to_say_.pop_front();
    }
  }
  void on_closed(const absl::Status& status) override {
    EXPECT_FALSE(closed_) << "the last event";
    closed_ = status;
    if (drops_) stream_.reset();
  }

  std::unique_ptr<Stream> stream_;
  std::list<std::string> to_say_;  ///< after what is being written
  std::vector<std::string> heard_;
  int written_ = 0;
  bool pauses_ = false;
  bool drops_ = false;  ///< its stream, once that is closed
  std::function<void()> on_message_;
  std::optional<absl::Status> closed_;
};

class OneUser final : public Acceptor {
 public:
  explicit OneUser(User* user) : user_(user) {}
  void now_for(User* user) { user_ = user; }
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    user_->stream_ = std::move(stream);
    return user_;
  }

 private:
  User* user_;
};

/// A port of this machine.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), generic, size), 0);
    EXPECT_EQ(::listen(socket_.get(), 64), 0);
    EXPECT_EQ(::getsockname(socket_.get(), generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Descriptor connect() const {
    Descriptor caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port_);
    EXPECT_EQ(::connect(caller.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::fcntl(caller.get(), F_SETFL, ::fcntl(caller.get(), F_GETFL) | O_NONBLOCK), 0);
    return caller;
  }
  Descriptor accept() const {
    return Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }

 private:
  Descriptor socket_;
  std::uint16_t port_ = 0;
};

/// An end of a connection that a test plays by hand.
struct ByHand {
  Descriptor socket;
  std::unique_ptr<TlsSession> tls;  ///< once the handshake is begun

  void send_plainly(std::string_view bytes) const {
    ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const TlsSession::Result result =
          tls->write({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
      ASSERT_EQ(result.outcome, TlsSession::Outcome::kDone) << result.what;
      bytes.remove_prefix(result.bytes);
    }
  }
  void close() {
    tls.reset();
    socket.close();
  }
};

/// Takes all bytes out of the writer.
std::string drain(FrameWriter& writer) {
  std::string all;
  for (auto bytes = writer.to_send(); !bytes.empty(); bytes = writer.to_send()) {
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    writer.sent(bytes.size());
  }
  return all;
}

class Sockets : public ::testing::Test {
 protected:
  Sockets() {
    const auto folder = std::filesystem::path(::testing::TempDir()) /
                        ("poseidon_tls_sockets_test_" + std::to_string(::getpid()));
    const KeyPair authority = testing_support::test_authority();
    worker_ = testing_support::test_security(folder / "worker", authority, PeerRole::kWorker);
    server_ = testing_support::test_security(folder / "server", authority, PeerRole::kServer);
    std::filesystem::remove_all(folder);
    open_sockets({.max_message_bytes = kMaxMessage});
  }
  ~Sockets() override {
    caller_.stream_.reset();
    answerer_.stream_.reset();
  }
  void open_sockets(TlsSocketOptions options) {
    const auto admit = [this](const MethodCaller& caller) -> absl::StatusOr<Acceptor*> {
      if (caller.method != kExchangeMethod) return absl::UnimplementedError("no such method");
      if (const absl::Status admitted = server_->admit(caller); !admitted.ok()) return admitted;
      return &acceptor_;
    };
    callers_ = std::make_unique<TlsSockets>(worker_, options, admit);
    answerers_ = std::make_unique<TlsSockets>(server_, options, admit);
  }

  std::unique_ptr<Stream> call(User& user, Keepalive keepalive = {},
                               const std::string& method = std::string(kExchangeMethod)) {
    return callers_->connect(method, listener_.address(), keepalive, &user);
  }
  /// The next connection, its greeting read.
  Descriptor arrive() {
    Descriptor socket;
    EXPECT_TRUE(until([&] {
      socket = listener_.accept();
      return socket.is_open();
    }));
    std::array<char, kGreeting.size()> greeting{};
    EXPECT_TRUE(until([&] {
      return ::recv(socket.get(), greeting.data(), greeting.size(), MSG_PEEK) ==
             static_cast<ssize_t>(greeting.size());
    }));
    EXPECT_EQ(::recv(socket.get(), greeting.data(), greeting.size(), 0),
              static_cast<ssize_t>(greeting.size()));
    EXPECT_EQ(greeting, kGreeting);
    return socket;
  }
  void connect(Keepalive keepalive = {}) {
    caller_.stream_ = call(caller_, keepalive);
    answerers_->accept(arrive(), keepalive);
    ASSERT_TRUE(until([&] { return answerer_.stream_ != nullptr; }));
  }
  void shake_hands(ByHand& hand, const Security& as, TlsContext::End end) {
    const auto context = TlsContext::make(*as.identity(), end);
    ASSERT_TRUE(context.ok()) << context.status();
    hand.tls = std::make_unique<TlsSession>(
        **context, hand.socket.get(),
        [](const std::string&, const std::string&) { return std::nullopt; });
    ASSERT_TRUE(until([&] { return hand.tls->handshake().outcome == TlsSession::Outcome::kDone; }));
  }
  /// The answerer's end is played by hand, from the handshake on.
  ByHand connect_by_hand(Keepalive keepalive = {}) {
    caller_.stream_ = call(caller_, keepalive);
    ByHand hand{.socket = arrive(), .tls = nullptr};
    shake_hands(hand, *server_, TlsContext::End::kAnswers);
    return hand;
  }
  /// The caller's end is.
  ByHand call_by_hand() {
    ByHand hand{.socket = listener_.connect(), .tls = nullptr};
    Descriptor arrived;
    EXPECT_TRUE(until([&] {
      arrived = listener_.accept();
      return arrived.is_open();
    }));
    answerers_->accept(std::move(arrived), {});
    return hand;
  }
  void turn() {
    callers_->poll(Milliseconds(1));
    answerers_->poll(Milliseconds(1));
  }
  bool until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      turn();
    }
    return true;
  }
  void for_a_while(Nanoseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) turn();
  }
  std::uint64_t broken(const std::shared_ptr<Security>& security) const {
    return security->refused(PeerRefusal::kBrokenMessage);
  }

  std::shared_ptr<Security> worker_, server_;
  Listener listener_;
  User caller_, answerer_;
  OneUser acceptor_{&answerer_};
  std::unique_ptr<TlsSockets> callers_, answerers_;
};

TEST_F(Sockets, MessagesGoBothWaysAtOnceAndInOrder) {
  connect();
  std::vector<std::string> to_answerer, to_caller;
  for (int i = 0; i < 40; ++i) {
    const std::size_t size = i % 4 == 0 ? 3000000 + static_cast<std::size_t>(i) : 100;
    to_answerer.emplace_back(size, static_cast<char>('a' + i % 26));
    to_caller.emplace_back(size + 1, static_cast<char>('A' + i % 26));
  }
  caller_.to_say_.assign(to_answerer.begin() + 1, to_answerer.end());
  answerer_.to_say_.assign(to_caller.begin() + 1, to_caller.end());
  caller_.stream_->write(message_of("", to_answerer[0]));
  answerer_.stream_->write(message_of("", to_caller[0]));
  ASSERT_TRUE(until([&] {
    return answerer_.heard_.size() == to_answerer.size() &&
           caller_.heard_.size() == to_caller.size();
  }));
  EXPECT_EQ(answerer_.heard_, to_answerer);
  EXPECT_EQ(caller_.heard_, to_caller);
  EXPECT_EQ(caller_.written_, 40);
  EXPECT_EQ(broken(worker_) + broken(server_), 0U);
}

TEST_F(Sockets, NoCallHasAnEventBeforeItReturns) {
  connect();
  caller_.stream_->write(message_of("", "hello"));
  EXPECT_EQ(caller_.written_, 0);
  ASSERT_TRUE(until([&] { return caller_.written_ == 1; }));
  caller_.stream_->close(absl::OkStatus());
  EXPECT_FALSE(caller_.closed_);
}

TEST_F(Sockets, WhoPausesHoldsTheOtherBack) {
  connect();
  answerer_.pauses_ = true;
  for (int i = 0; i < 30; ++i) caller_.to_say_.emplace_back(1000000, 'm');
  caller_.stream_->write(message_of("", "first"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1; }));
  for_a_while(Milliseconds(300));
  EXPECT_EQ(answerer_.heard_.size(), 1U);
  EXPECT_LT(caller_.written_, 25) << "30 MB do not fit into the connection";
  const int stopped_at = caller_.written_;
  for_a_while(Milliseconds(200));
  EXPECT_EQ(caller_.written_, stopped_at);
  answerer_.pauses_ = false;
  answerer_.stream_->resume_reads();
  answerer_.stream_->resume_reads();
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 31; }));
}

TEST_F(Sockets, ReasonsComeAfterWhatWasWritten) {
  connect();
  caller_.stream_->write(message_of("", std::string(5000000, 'x')));
  caller_.stream_->close(absl::FailedPreconditionError("we go"));
  ASSERT_TRUE(until([&] { return answerer_.closed_ && caller_.closed_; }));
  EXPECT_EQ(answerer_.heard_.size(), 1U);
  EXPECT_EQ(answerer_.closed_, absl::FailedPreconditionError("we go"));
  EXPECT_EQ(caller_.closed_, absl::OkStatus());
}

TEST_F(Sockets, WhatWasSaidBeforeTheHandleWentStillGoesOut) {
  connect();
  caller_.stream_->write(message_of("", std::string(5000000, 'x')));
  caller_.stream_->close(absl::FailedPreconditionError("we go"));
  caller_.stream_.reset();
  ASSERT_TRUE(until([&] { return answerer_.closed_.has_value(); }));
  EXPECT_EQ(answerer_.heard_.size(), 1U);
  EXPECT_EQ(answerer_.closed_, absl::FailedPreconditionError("we go"));
  EXPECT_FALSE(caller_.closed_) << "no event for who let go of it";
}

TEST_F(Sockets, WhoReadsSlowlyHearsAllOfTheEnd) {
  connect(
      {.interval = Milliseconds(400), .timeout = Milliseconds(20000), .end = Milliseconds(1000)});
  answerer_.pauses_ = true;
  for (int i = 0; i < 4; ++i) caller_.to_say_.emplace_back(500000, 'm');
  caller_.stream_->write(message_of("", "first"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1 && caller_.to_say_.empty(); }));
  caller_.stream_->close(absl::FailedPreconditionError("we go"));
  caller_.stream_.reset();
  // It takes nothing meanwhile, but says that it is well.
  for_a_while(Milliseconds(2500));
  EXPECT_FALSE(answerer_.closed_);
  answerer_.pauses_ = false;
  answerer_.stream_->resume_reads();
  ASSERT_TRUE(until([&] { return answerer_.closed_.has_value(); }));
  EXPECT_EQ(answerer_.heard_.size(), 5U);
  EXPECT_EQ(answerer_.closed_, absl::FailedPreconditionError("we go"));
}

TEST_F(Sockets, AnEndThatNobodyAnswersIsACut) {
  ByHand other = connect_by_hand();
  caller_.stream_->close(absl::OkStatus());
  for_a_while(Milliseconds(50));
  other.close();
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
}

TEST_F(Sockets, WhoIsToldTheEndMayDropTheStreamAtOnce) {
  connect();
  caller_.drops_ = answerer_.drops_ = true;
  caller_.stream_->write(message_of("", "hello"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1; }));
  answerer_.stream_->close(absl::InvalidArgumentError("no such chunk"));
  ASSERT_TRUE(until([&] { return answerer_.closed_ && caller_.closed_; }));
  EXPECT_EQ(caller_.closed_, absl::InvalidArgumentError("no such chunk"));
  EXPECT_EQ(answerer_.closed_, absl::OkStatus());
}

TEST_F(Sockets, BothMayEndAtOnce) {
  connect();
  caller_.stream_->close(absl::AbortedError("one"));
  answerer_.stream_->close(absl::AbortedError("other"));
  ASSERT_TRUE(until([&] { return answerer_.closed_ && caller_.closed_; }));
  EXPECT_EQ(caller_.closed_, absl::AbortedError("other"));
  EXPECT_EQ(answerer_.closed_, absl::AbortedError("one"));
}

TEST_F(Sockets, WhoLetsGoWithoutAReasonIsACut) {
  connect();
  caller_.stream_->write(message_of("", "hello"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1; }));
  caller_.stream_.reset();
  ASSERT_TRUE(until([&] { return answerer_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*answerer_.closed_)) << *answerer_.closed_;
  EXPECT_THAT(std::string(answerer_.closed_->message()), HasSubstr("the connection was cut"));
  EXPECT_FALSE(caller_.closed_);
}

TEST_F(Sockets, AStreamMayGoInItsOwnEvent) {
  connect();
  answerer_.on_message_ = [&] { answerer_.stream_.reset(); };
  caller_.stream_->write(message_of("", "hello"));
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_));
  EXPECT_EQ(answerer_.heard_.size(), 1U);
  EXPECT_FALSE(answerer_.closed_);
}

TEST_F(Sockets, WhoHearsNothingCutsTheStream) {
  const ByHand silent = connect_by_hand({Milliseconds(200), Milliseconds(200)});
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(400));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(std::string(caller_.closed_->message()), HasSubstr("nothing was heard for 400 ms"));
}

TEST_F(Sockets, SignsOfLifeKeepAStreamThatSaysNothing) {
  connect({Milliseconds(300), Milliseconds(2000)});
  for_a_while(Milliseconds(3500));
  EXPECT_FALSE(caller_.closed_ || answerer_.closed_);
  caller_.stream_->write(message_of("", "still there"));
  ASSERT_TRUE(until([&] { return !answerer_.heard_.empty(); }));
}

TEST_F(Sockets, WhoPausesIsAliveAndTakesNobodyForDead) {
  connect({Milliseconds(200), Milliseconds(1300)});
  answerer_.pauses_ = true;
  caller_.stream_->write(message_of("", "hello"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1; }));
  for_a_while(Milliseconds(2500));
  EXPECT_FALSE(caller_.closed_ || answerer_.closed_);
  answerer_.stream_->resume_reads();
  caller_.stream_->write(message_of("", "again"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 2; }));
}

TEST_F(Sockets, WhoIsPausedStillHearsThatTheConnectionHasFailed) {
  connect();
  answerer_.pauses_ = true;
  caller_.stream_->write(message_of("", "hello"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1; }));
  // Unread bytes from the server make the caller's system reset the connection.
  answerer_.stream_->write(message_of("", "unread"));
  answerers_->poll(Milliseconds(1));
  caller_.stream_.reset();
  ASSERT_TRUE(until([&] { return answerer_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*answerer_.closed_)) << *answerer_.closed_;
}

TEST_F(Sockets, WhoPausesMayClose) {
  connect();
  answerer_.pauses_ = true;
  caller_.to_say_.emplace_back(100000, 'm');
  caller_.stream_->write(message_of("", "hello"));
  ASSERT_TRUE(until([&] { return answerer_.heard_.size() == 1; }));
  answerer_.stream_->close(absl::InvalidArgumentError("no such chunk"));
  ASSERT_TRUE(until([&] { return answerer_.closed_ && caller_.closed_; }));
  EXPECT_EQ(answerer_.closed_, absl::OkStatus());
  EXPECT_EQ(caller_.closed_, absl::InvalidArgumentError("no such chunk"));
  EXPECT_EQ(answerer_.heard_.size(), 1U);
}

TEST_F(Sockets, WhoDoesNotEndTheConnectionIsNotWaitedForLong) {
  const ByHand silent = connect_by_hand({.end = Milliseconds(300)});
  caller_.stream_->close(absl::OkStatus());
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(std::string(caller_.closed_->message()), HasSubstr("does not end it"));
}

TEST_F(Sockets, BytesThatAreNoTlsEndTheStreamAndAreCounted) {
  const ByHand other = connect_by_hand();
  other.send_plainly("GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(std::string(caller_.closed_->message()),
              HasSubstr("somebody between the two changes what passes"));
  EXPECT_EQ(broken(worker_), 1U);
  EXPECT_THAT(caller_.heard_, IsEmpty());
}

TEST_F(Sockets, BytesInsideTlsThatAreNoFramesEndTheStreamAndAreCounted) {
  const ByHand other = connect_by_hand();
  other.send(std::string(100, 'x'));
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_EQ(broken(worker_), 1U);
  EXPECT_THAT(caller_.heard_, IsEmpty());
}

TEST_F(Sockets, WhoAnswersNoHandshakeIsToldOf) {
  caller_.stream_ = call(caller_);
  const ByHand other{.socket = arrive(), .tls = nullptr};
  other.send_plainly("HTTP/1.1 400 Bad Request\r\n\r\n");
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(std::string(caller_.closed_->message()),
              HasSubstr("does the other side speak plain text?"));
}

TEST_F(Sockets, AConnectionThatEndsWithinAMessageIsACut) {
  for (const bool properly : {false, true}) {
    caller_ = {};
    ByHand other = connect_by_hand();
    FrameWriter writer;
    writer.send(message_of("", std::string(1000000, 'm')));
    other.send(drain(writer).substr(0, 700000));
    for_a_while(Milliseconds(50));
    if (properly) other.tls->close_notify();
    other.close();
    ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
    EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
    EXPECT_THAT(caller_.heard_, IsEmpty());
    caller_.stream_.reset();
  }
  EXPECT_EQ(broken(worker_), 0U);
}

TEST_F(Sockets, AConnectionThatEndsBetweenMessagesWithoutAnEndIsACut) {
  for (const bool properly : {false, true}) {
    caller_ = {};
    ByHand other = connect_by_hand();
    FrameWriter writer;
    writer.send(message_of("", "whole"));
    other.send(drain(writer));
    ASSERT_TRUE(until([&] { return !caller_.heard_.empty(); }));
    if (properly) other.tls->close_notify();
    other.close();
    ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
    EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
    caller_.stream_.reset();
  }
}

TEST_F(Sockets, AStrangersGarbageIsCountedAndServedToNobody) {
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'),
                                   std::string("\x16\x03\x01\x02"), std::string()}) {
    const std::uint64_t before = server_->refused(PeerRefusal::kHandshake);
    ByHand stranger = call_by_hand();
    stranger.send_plainly(bytes);
    for_a_while(Milliseconds(20));
    stranger.close();
    EXPECT_TRUE(until([&] { return server_->refused(PeerRefusal::kHandshake) == before + 1; }));
  }
  EXPECT_EQ(answerer_.stream_, nullptr);
}

TEST_F(Sockets, AStrangerIsNotWaitedForLong) {
  open_sockets({.max_message_bytes = kMaxMessage, .handshake = Milliseconds(300)});
  // The count has the failed handshakes of the whole process, so those of earlier tests, too.
  const std::uint64_t before = server_->refused(PeerRefusal::kHandshake);
  const ByHand silent = call_by_hand();
  EXPECT_TRUE(until([&] { return server_->refused(PeerRefusal::kHandshake) == before + 1; }));
  // Nor is one that belongs here, but opens no stream.
  ByHand idle = call_by_hand();
  shake_hands(idle, *worker_, TlsContext::End::kCalls);
  EXPECT_TRUE(until([&] { return server_->refused(PeerRefusal::kHandshake) == before + 2; }));
}

TEST_F(Sockets, AStreamSaysFirstWhatItIsFor) {
  ByHand caller = call_by_hand();
  shake_hands(caller, *worker_, TlsContext::End::kCalls);
  FrameWriter writer;
  writer.send(message_of("", "no opening"));
  caller.send(drain(writer));
  EXPECT_TRUE(until([&] { return broken(server_) == 1; }));
  EXPECT_EQ(answerer_.stream_, nullptr);
}

TEST_F(Sockets, AnOpeningThatCannotBeReadIsRefused) {
  ByHand caller = call_by_hand();
  shake_hands(caller, *worker_, TlsContext::End::kCalls);
  FrameWriter writer;
  writer.send_opening(std::string(10, '\xff'));
  caller.send(drain(writer));
  FrameReader reader(FrameReader::End::kCaller, kMaxMessage);
  std::optional<FrameReader::Incoming> heard;
  ASSERT_TRUE(until([&] {
    const TlsSession::Result result = caller.tls->read(reader.room());
    if (result.outcome == TlsSession::Outcome::kDone) {
      reader.received(result.bytes);
      heard = reader.next();
    }
    return heard.has_value();
  }));
  ASSERT_TRUE(std::holds_alternative<FrameReader::Ended>(*heard));
  EXPECT_TRUE(absl::IsInvalidArgument(std::get<FrameReader::Ended>(*heard).why));
}

TEST_F(Sockets, AMethodThatIsNotServedIsRefused) {
  caller_.stream_ = call(caller_, {}, "/poseidon.v1.Probe/Exchange");
  caller_.stream_->write(message_of("", std::string(3000000, 'm')));
  answerers_->accept(arrive(), {});
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_EQ(caller_.closed_, absl::UnimplementedError("no such method"));
}

TEST_F(Sockets, ACallerSaysWhoDoesNotAnswer) {
  caller_.stream_ = callers_->connect(std::string(kExchangeMethod), "127.0.0.1:1", {}, &caller_);
  EXPECT_FALSE(caller_.closed_) << "no event before it returns";
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_EQ(caller_.closed_,
            absl::UnavailableError("cannot connect to 127.0.0.1:1: Connection refused"));
  User other;
  other.stream_ = callers_->connect(std::string(kExchangeMethod), "nowhere", {}, &other);
  ASSERT_TRUE(until([&] { return other.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(*other.closed_)) << *other.closed_;
}

TEST_F(Sockets, WhoDoesNotShakeHandsIsNotWaitedForLong) {
  open_sockets({.max_message_bytes = kMaxMessage, .handshake = Milliseconds(300)});
  caller_.stream_ = call(caller_);
  const Descriptor silent = arrive();
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
}

TEST_F(Sockets, WhatIsTooLargeIsRefusedAndBothAreTold) {
  connect();
  caller_.stream_->write(message_of("", std::string(kMaxMessage + 1, 'm')));
  ASSERT_TRUE(until([&] { return answerer_.closed_ && caller_.closed_; }));
  EXPECT_TRUE(absl::IsResourceExhausted(*answerer_.closed_)) << *answerer_.closed_;
  EXPECT_EQ(caller_.closed_, answerer_.closed_);
  EXPECT_THAT(std::string(caller_.closed_->message()), HasSubstr("a message of 8388609 bytes"));
  EXPECT_THAT(answerer_.heard_, IsEmpty());
}

TEST_F(Sockets, ARefusalGoesOutThoughTheStreamIsDropped) {
  connect();
  answerer_.drops_ = true;
  caller_.stream_->write(message_of("", std::string(3 * kMaxMessage, 'm')));
  ASSERT_TRUE(until([&] { return answerer_.closed_ && caller_.closed_; }));
  EXPECT_TRUE(absl::IsResourceExhausted(*caller_.closed_)) << *caller_.closed_;
}

TEST_F(Sockets, NobodyHearsAnythingAfterStop) {
  connect();
  caller_.stream_->write(message_of("", "hello"));
  answerer_.stream_->write(message_of("", "hello"));
  callers_->stop();
  ASSERT_TRUE(until([&] { return answerer_.closed_.has_value(); }));
  EXPECT_THAT(answerer_.heard_, ElementsAre("hello")) << "as far as the connection took it";
  EXPECT_EQ(caller_.written_, 0);
  EXPECT_THAT(caller_.heard_, IsEmpty());
  EXPECT_FALSE(caller_.closed_);
  caller_.stream_->close(absl::OkStatus());
  caller_.stream_->resume_reads();
}

TEST_F(Sockets, AnotherThreadEndsTheWaiting) {
  const auto began = std::chrono::steady_clock::now();
  callers_->wake();
  callers_->poll(std::chrono::seconds(10));  // it was woken before
  std::thread other([&] { callers_->wake(); });
  callers_->poll(std::chrono::seconds(10));
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(9));
}

TEST_F(Sockets, ManyStreamsTakeTurns) {
  constexpr int kStreams = 50;
  std::list<User> callers, answerers;
  for (int i = 0; i < kStreams; ++i) {
    User& caller = callers.emplace_back();
    User& answerer = answerers.emplace_back();
    acceptor_.now_for(&answerer);
    caller.stream_ = call(caller);
    answerers_->accept(arrive(), {});
    for (int m = 0; m < 10; ++m) caller.to_say_.emplace_back(100000, static_cast<char>('a' + m));
    caller.stream_->write(message_of("", "first"));
    ASSERT_TRUE(until([&] { return answerer.stream_ != nullptr; }));
  }
  ASSERT_TRUE(until([&] {
    return std::all_of(answerers.begin(), answerers.end(),
                       [](const User& user) { return user.heard_.size() == 11; });
  }));
  for (const User& user : answerers) EXPECT_EQ(user.heard_[10], std::string(100000, 'j'));
}

}  // namespace
}  // namespace poseidon::tls_sockets_test
