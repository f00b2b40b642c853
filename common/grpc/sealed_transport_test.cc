// How two ends in memory agree on a sealed stream. What somebody between them can do is
// sealed_pipe_test.cc's and sealed_connection_test.cc's; what streams do is transport_test.cc's.

#include "common/grpc/sealed_transport.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc/memory_carrier.h"
#include "common/transport/memory_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/stream.pb.h"
#include "tests/support/messages.h"

namespace poseidon::sealed_transport_test {
namespace {

using testing_support::message_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// One end's user: what it heard, and what it has to say.
class User final : public StreamHandler {
 public:
  ReadNext on_message(Bytes message) override {
    heard_.push_back(joined(message));
    return ReadNext::kContinue;
  }
  void on_written() override {
    busy_ = false;
    pump();
  }
  void on_closed(const absl::Status& status) override {
    EXPECT_FALSE(closed_) << "the last event";
    stream_.reset();  // and with it all that is the stream's
    closed_ = status;
  }
  void say(const std::string& text) {
    to_say_.push_back(text);
    pump();
  }
  void pump() {
    if (busy_ || stream_ == nullptr || said_ == to_say_.size()) return;
    busy_ = true;
    const std::string& text = to_say_[said_++];
    stream_->write(
        message_of(text.substr(0, 3), text.substr(std::min<std::size_t>(3, text.size()))));
  }

  std::unique_ptr<Stream> stream_;
  std::vector<std::string> heard_, to_say_;
  std::optional<absl::Status> closed_;

 private:
  std::size_t said_ = 0;
  bool busy_ = false;
};

class OneUser final : public Acceptor {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    user_.stream_ = std::move(stream);
    ++accepted_;
    return &user_;
  }
  User user_;
  int accepted_ = 0;
};

/// In a server's place: says the same to whatever it is told, or nothing.
class Answerer final : public Acceptor, public StreamHandler {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    stream_ = std::move(stream);
    return this;
  }
  ReadNext on_message(Bytes /*message*/) override {
    if (answer_) stream_->write(message_of(*answer_));
    return ReadNext::kContinue;
  }
  void on_written() override {}
  void on_closed(const absl::Status& /*status*/) override { stream_.reset(); }
  std::optional<std::string> answer_;

 private:
  std::unique_ptr<Stream> stream_;
};

/// The caller's: it may fail to connect.
class CallersCarrier final : public SealedCarrier {
 public:
  explicit CallersCarrier(Transport* endpoint) : endpoint_(endpoint), honest_(endpoint) {}
  void reach(const std::string& address, const Ticket& ticket, Reached reached) override {
    if (failure_.ok()) {
      honest_.reach(address, ticket, std::move(reached));
    } else {
      endpoint_->post([failure = failure_, reached = std::move(reached)] { reached(failure); });
    }
  }
  void expect(const Ticket& ticket, Arrived arrived) override {
    honest_.expect(ticket, std::move(arrived));
  }
  absl::Status failure_;

 private:
  Transport* const endpoint_;

 public:
  MemoryCarrier honest_;
};

class Sealed : public ::testing::Test {
 protected:
  Sealed() {
    carrier_.honest_.on_secrets_ = [this](const SealEnds& ends) { callers_.push_back(ends); };
    server_carrier_.on_secrets_ = [this](const SealEnds& ends) { answerers_.push_back(ends); };
    EXPECT_TRUE(server_.listen("server", &acceptor_).ok());
  }
  ~Sealed() override {
    user_.stream_.reset();
    theirs().stream_.reset();
  }
  void connect() { user_.stream_ = client_.connect("server", &user_); }
  /// Until nothing happens any more but deadlines, which end nothing here.
  void settle(Nanoseconds time = Milliseconds(200)) {
    bool over = false;
    client_.post_after(time, [&over] { over = true; });
    while (!over) ASSERT_TRUE(network_.step());
  }
  User& theirs() { return acceptor_.user_; }

  std::vector<SealEnds> callers_, answerers_;
  MemoryNetwork network_{1, MemoryFaults{}};
  CallersCarrier carrier_{&network_.endpoint("client")};
  MemoryCarrier server_carrier_{&network_.endpoint("server")};
  OneUser acceptor_;
  User user_;
  SealedTransport client_{&network_.endpoint("client"), &carrier_};
  SealedTransport server_{&network_.endpoint("server"), &server_carrier_};
};

TEST_F(Sealed, BothEndsHaveTheSameTwoSecretsAndEachStreamItsOwn) {
  for (int i = 0; i < 2; ++i) {
    user_ = {};
    theirs() = {};
    connect();
    user_.say("hello");
    settle();
    ASSERT_THAT(theirs().heard_, ElementsAre("hello"));
  }
  ASSERT_EQ(callers_.size(), 2U);
  ASSERT_EQ(answerers_.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(callers_[i].sends, answerers_[i].receives);
    EXPECT_EQ(callers_[i].receives, answerers_[i].sends);
    EXPECT_NE(callers_[i].sends, callers_[i].receives);
  }
  EXPECT_NE(callers_[0].sends, callers_[1].sends);
  EXPECT_NE(callers_[0].receives, callers_[1].receives);
}

TEST_F(Sealed, ReasonsComeFromBothEnds) {
  connect();
  user_.say("hello");
  settle();
  user_.stream_->close(absl::OkStatus());
  settle();
  EXPECT_EQ(theirs().closed_, absl::OkStatus());
  EXPECT_EQ(user_.closed_, absl::OkStatus());

  user_ = {};
  theirs() = {};
  connect();
  user_.say("hello");
  settle();
  theirs().stream_->close(absl::InvalidArgumentError("no such chunk"));
  settle();
  EXPECT_EQ(user_.closed_, absl::InvalidArgumentError("no such chunk"));
}

TEST_F(Sealed, WhoCannotConnectIsTold) {
  carrier_.failure_ = absl::UnavailableError("the man in the middle has the connection");
  connect();
  user_.say("hello");
  settle();
  EXPECT_EQ(user_.closed_, carrier_.failure_);
  EXPECT_EQ(acceptor_.accepted_, 0);
}

TEST_F(Sealed, WhoSaysNothingOrDoesNotComeIsClosedInTime) {
  User silent, asks;
  v1::SealAgreement agreement;
  agreement.mutable_request()->set_version(kSealVersion);
  silent.stream_ = network_.endpoint("silent").connect("server", &silent);
  asks.stream_ = network_.endpoint("asks").connect("server", &asks);
  asks.say(agreement.SerializeAsString());
  settle(kTicketLife - Milliseconds(1000));
  EXPECT_EQ(asks.heard_.size(), 1U);
  EXPECT_FALSE(silent.closed_ || asks.closed_);
  settle(Milliseconds(2000));
  EXPECT_TRUE(silent.closed_ && asks.closed_);
  EXPECT_EQ(acceptor_.accepted_, 0);
}

TEST_F(Sealed, WhoIsNotAnsweredIsToldInTime) {
  Answerer nobody;
  ASSERT_TRUE(network_.endpoint("frozen").listen("frozen", &nobody).ok());
  user_.stream_ = client_.connect("frozen", &user_);
  settle(Milliseconds(29000));
  EXPECT_FALSE(user_.closed_);
  settle(Milliseconds(2000));
  ASSERT_TRUE(user_.closed_);
  EXPECT_EQ(*user_.closed_,
            absl::UnavailableError("no sealed stream to frozen came about in 30 s"));
}

TEST_F(Sealed, AStreamMayGoAtAnyTime) {
  for (int steps = 0; steps < 60; ++steps) {
    for (const bool closes : {false, true}) {
      for (const bool speaks : {false, true}) {
        user_ = {};
        theirs() = {};
        connect();
        if (speaks) user_.say("hello");
        for (int i = 0; i < steps; ++i) network_.step();
        const bool was_heard = !theirs().heard_.empty();
        if (closes && user_.stream_ != nullptr) {
          user_.stream_->close(absl::FailedPreconditionError("we go"));
        }
        user_.stream_.reset();
        settle();
        EXPECT_FALSE(user_.closed_) << "no event for who let go of it";
        if (closes) {  // what was said before arrives, and the reason
          ASSERT_EQ(theirs().closed_, absl::FailedPreconditionError("we go")) << steps;
          EXPECT_EQ(theirs().heard_.size(), speaks ? 1U : 0U) << steps;
        } else if (was_heard) {
          ASSERT_TRUE(theirs().closed_ && absl::IsUnavailable(*theirs().closed_)) << steps;
        }
      }
    }
  }
}

TEST_F(Sealed, WhoDoesNotAskStaysWhereHeIs) {
  User stock;
  stock.stream_ = network_.endpoint("stock").connect("server", &stock);
  stock.say("a chunk");
  stock.say("another");
  settle();
  EXPECT_THAT(theirs().heard_, ElementsAre("a chunk", "another"));
  theirs().say("an answer");
  settle();
  EXPECT_THAT(stock.heard_, ElementsAre("an answer"));
  theirs().stream_->close(absl::InvalidArgumentError("no such chunk"));
  settle();
  EXPECT_EQ(*stock.closed_, absl::InvalidArgumentError("no such chunk"));
}

TEST_F(Sealed, AnotherVersionIsToldWhatToDo) {
  v1::SealAgreement agreement;
  agreement.mutable_request()->set_version(kSealVersion + 1);
  User newer;
  newer.stream_ = network_.endpoint("newer").connect("server", &newer);
  newer.say(agreement.SerializeAsString());
  settle();
  ASSERT_TRUE(newer.closed_);
  EXPECT_EQ(newer.closed_->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(newer.closed_->message()), HasSubstr("run the same version"));
  EXPECT_EQ(acceptor_.accepted_, 0);
}

TEST_F(Sealed, WhoAnswersSomethingElseIsNotBelieved) {
  Answerer odd;
  ASSERT_TRUE(network_.endpoint("odd").listen("odd", &odd).ok());
  v1::SealAgreement short_secret;
  short_secret.mutable_grant()->set_ticket(std::string(32, 't'));
  short_secret.mutable_grant()->set_to_server(std::string(31, 's'));
  short_secret.mutable_grant()->set_to_caller(std::string(32, 's'));
  for (const std::string& answer : {std::string(), std::string("\xff\xff"), std::string(300, 'a'),
                                    short_secret.SerializeAsString()}) {
    odd.answer_ = answer;
    User user;
    user.stream_ = client_.connect("odd", &user);
    settle();
    ASSERT_TRUE(user.closed_);
    EXPECT_TRUE(absl::IsUnavailable(*user.closed_));
    EXPECT_THAT(std::string(user.closed_->message()), HasSubstr("odd does not agree"));
  }
}

TEST_F(Sealed, ManyStreamsAtOnceEachHaveTheirOwn) {
  class Echo final : public Acceptor {
   public:
    StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
      users_.push_back(std::make_unique<User>());
      users_.back()->stream_ = std::move(stream);
      return users_.back().get();
    }
    std::vector<std::unique_ptr<User>> users_;
  } echo;
  MemoryCarrier carrier(&network_.endpoint("other"));
  SealedTransport other(&network_.endpoint("other"), &carrier);
  ASSERT_TRUE(other.listen("other", &echo).ok());
  std::vector<std::unique_ptr<User>> callers;
  for (int i = 0; i < 20; ++i) {
    callers.push_back(std::make_unique<User>());
    callers.back()->stream_ = client_.connect("other", callers.back().get());
    callers.back()->say(absl::StrCat("caller ", i));
  }
  settle();
  ASSERT_EQ(echo.users_.size(), callers.size());
  for (auto& user : echo.users_) {
    ASSERT_EQ(user->heard_.size(), 1U);
    user->say("to " + user->heard_[0]);
  }
  settle();
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(callers[static_cast<std::size_t>(i)]->heard_,
                ElementsAre(absl::StrCat("to caller ", i)));
  }
  for (auto& user : echo.users_) user->stream_.reset();
}

}  // namespace
}  // namespace poseidon::sealed_transport_test
