// Sealed streams on TCP connections of this machine: both ends in one thread, or one of them played
// by hand.

#include "common/grpc/sealed_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/messages.h"

namespace poseidon::sealed_sockets_test {
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
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    user_->stream_ = std::move(stream);
    return user_;
  }

 private:
  User* const user_;
};

/// Both ends of a connection, nonblocking.
std::array<Descriptor, 2> connection() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listener.get(), generic, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &size), 0);
  Descriptor caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(caller.get(), generic, size), 0);
  Descriptor answerer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  for (const int socket : {caller.get(), answerer.get()}) {
    EXPECT_EQ(::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK), 0);
  }
  return {std::move(caller), std::move(answerer)};
}

class Sockets : public ::testing::Test {
 protected:
  Sockets() {
    caller_secrets_.sends.fill(std::byte{1});
    caller_secrets_.receives.fill(std::byte{2});
    answerer_secrets_.sends.fill(std::byte{2});
    answerer_secrets_.receives.fill(std::byte{1});
  }
  ~Sockets() override {
    caller_.stream_.reset();
    answerer_.stream_.reset();
  }

  void connect(Keepalive keepalive = {}) {
    auto [caller, answerer] = connection();
    caller_.stream_ = callers_.adopt(std::move(caller), keepalive)->open(caller_secrets_, &caller_);
    OneUser acceptor(&answerer_);
    answerers_.adopt(std::move(answerer), keepalive)->offer(answerer_secrets_, &acceptor);
  }
  /// The answerer's end is played by hand.
  Descriptor connect_by_hand(Keepalive keepalive = {}) {
    auto [caller, answerer] = connection();
    caller_.stream_ = callers_.adopt(std::move(caller), keepalive)->open(caller_secrets_, &caller_);
    return std::move(answerer);
  }
  void turn() {
    callers_.poll(Milliseconds(1));
    answerers_.poll(Milliseconds(1));
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
  SealedSockets::Broken note() {
    return [this](const std::string& peer, const std::string& what) {
      EXPECT_THAT(peer, HasSubstr("127.0.0.1:"));
      broken_.push_back(what);
    };
  }

  SealEnds caller_secrets_, answerer_secrets_;
  std::vector<std::string> broken_;
  User caller_, answerer_;
  SealedSockets callers_{kMaxMessage, note()}, answerers_{kMaxMessage, note()};
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
  EXPECT_THAT(broken_, IsEmpty());
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
  Descriptor other = connect_by_hand();
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
  const Descriptor silent = connect_by_hand({Milliseconds(200), Milliseconds(200)});
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
  // What the answerer has sent and nobody has read makes the caller's end reset the connection.
  answerer_.stream_->write(message_of("", "unread"));
  answerers_.poll(Milliseconds(1));
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
  const Descriptor silent = connect_by_hand({.end = Milliseconds(300)});
  caller_.stream_->close(absl::OkStatus());
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(std::string(caller_.closed_->message()), HasSubstr("does not end it"));
}

TEST_F(Sockets, WhatNobodySealedIsToldOnceAndEndsTheStream) {
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0')}) {
    caller_ = {};
    broken_.clear();
    const Descriptor stranger = connect_by_hand();
    ASSERT_EQ(::send(stranger.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
    EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
    EXPECT_THAT(std::string(caller_.closed_->message()),
                HasSubstr("somebody between the two changes what passes"));
    EXPECT_EQ(broken_.size(), 1U);
    EXPECT_THAT(caller_.heard_, IsEmpty());
    caller_.stream_.reset();
  }
}

TEST_F(Sockets, AConnectionThatEndsWithinAMessageIsACut) {
  SealedPipe pipe(answerer_secrets_, kMaxMessage);
  Descriptor other = connect_by_hand();
  pipe.send(message_of("", std::string(1000000, 'm')));
  const auto first = pipe.to_send();
  ASSERT_EQ(::send(other.get(), first.data(), first.size(), 0), static_cast<ssize_t>(first.size()));
  for_a_while(Milliseconds(50));
  other.close();
  ASSERT_TRUE(until([&] { return caller_.closed_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*caller_.closed_)) << *caller_.closed_;
  EXPECT_THAT(caller_.heard_, IsEmpty());
  EXPECT_THAT(broken_, IsEmpty());
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
  callers_.stop();
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
  callers_.wake();
  callers_.poll(std::chrono::seconds(10));  // it was woken before
  std::thread other([&] { callers_.wake(); });
  callers_.poll(std::chrono::seconds(10));
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(9));
}

TEST_F(Sockets, ManyStreamsTakeTurns) {
  constexpr int kStreams = 50;
  std::list<User> callers, answerers;
  for (int i = 0; i < kStreams; ++i) {
    auto [one, other] = connection();
    User& caller = callers.emplace_back();
    OneUser acceptor(&answerers.emplace_back());
    caller.stream_ = callers_.adopt(std::move(one), {})->open(caller_secrets_, &caller);
    answerers_.adopt(std::move(other), {})->offer(answerer_secrets_, &acceptor);
    for (int m = 0; m < 10; ++m) caller.to_say_.emplace_back(100000, static_cast<char>('a' + m));
    caller.stream_->write(message_of("", "first"));
  }
  ASSERT_TRUE(until([&] {
    return std::all_of(answerers.begin(), answerers.end(),
                       [](const User& user) { return user.heard_.size() == 11; });
  }));
  for (const User& user : answerers) EXPECT_EQ(user.heard_[10], std::string(100000, 'j'));
}

}  // namespace
}  // namespace poseidon::sealed_sockets_test
