// Sealed streams between two ends in memory, and what somebody between them can do. What streams
// do when nobody interferes is transport_test.cc's.

#include "common/sealed_transport.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/memory_carrier.h"
#include "common/memory_transport.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/stream.pb.h"
#include "tests/support/tampered_carrier.h"

namespace poseidon {
namespace {

using testing_support::Tamper;
using testing_support::TamperedCarrier;

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

OutgoingMessage message_of(const std::string& prefix, const std::string& payload = "") {
  const auto owner = std::make_shared<std::string>(payload);
  return {.prefix = MessagePrefix(prefix),
          .payload = {reinterpret_cast<const std::byte*>(owner->data()), owner->size()},
          .payload_owner = owner};
}

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

class Sealed : public ::testing::Test {
 protected:
  Sealed() { EXPECT_TRUE(server_.listen("server", &acceptor_).ok()); }
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
  SealedTransport::Broken broken() {
    return
        [this](const std::string& /*peer*/, const std::string& what) { broken_.push_back(what); };
  }

  std::vector<std::string> broken_;
  MemoryNetwork network_{1, MemoryFaults{}};
  TamperedCarrier between_{&network_.endpoint("client")};
  MemoryCarrier server_carrier_{&network_.endpoint("server")};
  OneUser acceptor_;
  User user_;
  SealedTransport client_{&network_.endpoint("client"), &between_, broken()};
  SealedTransport server_{&network_.endpoint("server"), &server_carrier_, broken()};
};

TEST_F(Sealed, WhoListensReadsNothing) {
  const std::string text = "a text that nobody else shall read";
  std::vector<std::string> seen;
  between_.tamper_ = [&seen](const std::string& message) {
    seen.push_back(message);
    return std::vector<std::string>{message};
  };
  connect();
  user_.say("hello");
  settle();
  for (int i = 0; i < 3; ++i) theirs().say(text);
  theirs().say(text + std::string(5000, 'x'));
  settle();
  EXPECT_EQ(user_.heard_, theirs().to_say_);
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_THAT(seen, Each(Not(HasSubstr("nobody"))));
  EXPECT_THAT(seen, Each(Not(HasSubstr("xxxx"))));
  EXPECT_EQ(seen[0].size(), text.size() + kSealOverheadBytes);
  EXPECT_NE(seen[0], seen[1]);
}

TEST_F(Sealed, WhatSomebodyBetweenDoesIsNoticedAndOnlyWhatWasSaidIsHeard) {
  SplitMix64 random(3);
  int noticed = 0;
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t victim = random.next() % 6, how = random.next() % 7, number = random.next();
    std::uint64_t message_number = 0;
    std::string held;
    between_.tamper_ = [&, victim, how, number](const std::string& message) {
      std::vector<std::string> arrive{message};
      if (!held.empty()) arrive.push_back(std::exchange(held, ""));
      if (message_number++ != victim) return arrive;
      std::string& changed = arrive.front();
      switch (how) {
        case 0:  // a bit
          changed[number % changed.size()] ^= static_cast<char>(1 << (number >> 32) % 8);
          break;
        case 1:  // shorter
          changed.resize(number % changed.size());
          break;
        case 2:
          changed.push_back('\0');
          break;
        case 3:
          arrive.clear();
          break;
        case 4:
          arrive.push_back(changed);
          break;
        case 5:  // after the next one
          held = std::exchange(changed, "");
          arrive.clear();
          break;
        default:
          arrive.insert(arrive.begin(), std::string(1 + number % 40, 'x'));
          break;
      }
      return arrive;
    };
    user_ = {};
    theirs() = {};
    broken_.clear();
    connect();
    user_.say("hello");
    settle();
    for (int i = 0; i < 8; ++i)
      theirs().say(absl::StrCat("message ", i, std::string(random.next() % 300, 'm')));
    settle();
    // All before the change; a message that comes twice, or is longer, has itself been heard once.
    const std::size_t intact = how == 4 ? victim + 1 : victim;
    ASSERT_EQ(user_.heard_.size(), intact) << "round " << round << ", how " << how;
    for (std::size_t i = 0; i < user_.heard_.size(); ++i) {
      ASSERT_EQ(user_.heard_[i], theirs().to_say_[i]) << "round " << round << ", how " << how;
    }
    ASSERT_EQ(broken_.size(), 1U) << "round " << round << ", how " << how;
    ASSERT_TRUE(user_.closed_ && absl::IsUnavailable(*user_.closed_)) << round;
    ++noticed;
  }
  EXPECT_EQ(noticed, 200);
}

TEST_F(Sealed, AnEndThatNobodySealedIsACut) {
  for (const absl::Status& forged :
       {absl::OkStatus(), absl::InvalidArgumentError("chunk 9: no such chunk")}) {
    user_ = {};
    theirs() = {};
    connect();
    user_.say("hello");
    settle();
    ASSERT_THAT(theirs().heard_, ElementsAre("hello"));
    between_.forged_end_ = forged;
    theirs().say("never heard");
    settle();
    ASSERT_TRUE(user_.closed_);
    EXPECT_TRUE(absl::IsUnavailable(*user_.closed_)) << *user_.closed_;
    EXPECT_THAT(std::string(user_.closed_->message()), HasSubstr("the connection was cut"));
    EXPECT_THAT(user_.heard_, IsEmpty());
    between_.forged_end_.reset();
  }
  EXPECT_THAT(broken_, IsEmpty());
}

TEST_F(Sealed, AChangedEndIsNotBelieved) {
  int number = 0;
  for (const auto& change :
       std::vector<Tamper>{[](const std::string&) { return std::vector<std::string>{}; },
                           [](std::string end) {
                             end.back() ^= 1;
                             return std::vector<std::string>{end};
                           },
                           [](std::string end) {  // a message in its place
                             end.front() = static_cast<char>(SealKind::kMessage);
                             return std::vector<std::string>{end};
                           },
                           [](const std::string& end) {
                             return std::vector<std::string>{end, end};
                           }}) {
    user_ = {};
    theirs() = {};
    broken_.clear();
    connect();
    user_.say("hello");
    settle();
    between_.tamper_ = change;
    theirs().stream_->close(absl::InvalidArgumentError("chunk 9: no such chunk"));
    settle();
    ASSERT_TRUE(user_.closed_) << number;
    EXPECT_TRUE(absl::IsUnavailable(*user_.closed_)) << number << *user_.closed_;
    EXPECT_EQ(broken_.size(), number == 0 ? 0U : 1U) << number;
    EXPECT_THAT(user_.heard_, IsEmpty());
    between_.tamper_ = [](const std::string& message) { return std::vector<std::string>{message}; };
    ++number;
  }
}

TEST_F(Sealed, AnEndIsBelievedThoughTheConnectionStaysOpen) {
  connect();
  user_.say("hello");
  settle();
  // Somebody holds the connection after the last message.
  std::string end;
  between_.tamper_ = [&end](const std::string& message) {
    end = message;
    return std::vector<std::string>{message};
  };
  between_.holds_end_ = true;
  theirs().stream_->close(absl::InvalidArgumentError("no such chunk"));
  settle(Milliseconds(9000));
  EXPECT_FALSE(end.empty());
  EXPECT_FALSE(user_.closed_);
  settle(Milliseconds(2000));
  ASSERT_TRUE(user_.closed_);
  EXPECT_EQ(*user_.closed_, absl::InvalidArgumentError("no such chunk"));
}

TEST_F(Sealed, ReasonsComeSealedFromBothEnds) {
  connect();
  user_.say("hello");
  settle();
  user_.stream_->close(absl::FailedPreconditionError("we go"));
  settle();
  ASSERT_TRUE(theirs().closed_);
  EXPECT_EQ(*theirs().closed_, absl::FailedPreconditionError("we go"));
  EXPECT_TRUE(user_.closed_ && user_.closed_->ok());

  user_ = {};
  theirs() = {};
  connect();
  user_.say("hello");
  settle();
  theirs().stream_->close(absl::InvalidArgumentError(std::string(10000, 'r')));
  settle();
  ASSERT_TRUE(user_.closed_);
  EXPECT_EQ(*user_.closed_, absl::InvalidArgumentError(std::string(4096, 'r')));
}

TEST_F(Sealed, ATicketIsShownOnceAndByWhoHasTheSecret) {
  connect();
  user_.say("hello");
  settle();
  const std::string ticket(reinterpret_cast<const char*>(between_.ticket_.data()),
                           between_.ticket_.size());
  for (const std::string& first :
       {ticket, std::string(32, 't'), std::string("short"), std::string()}) {
    User thief;
    thief.stream_ = network_.endpoint("thief").connect(MemoryCarrier::address_of("server"), &thief);
    thief.say(first);
    settle();
    EXPECT_TRUE(thief.closed_) << first;
    EXPECT_THAT(thief.heard_, IsEmpty());
  }
  EXPECT_THAT(
      broken_,
      ElementsAre("a stream without a ticket of ours", "a stream without a ticket of ours",
                  "a stream without a ticket of ours", "a stream without a ticket of ours"));
  EXPECT_EQ(acceptor_.accepted_, 1);
  theirs().say("still there");
  settle();
  EXPECT_THAT(user_.heard_, ElementsAre("still there"));
}

TEST_F(Sealed, AStolenTicketGivesAStreamOnWhichNothingOpens) {
  Ticket stolen{};
  between_.failure_ = absl::UnavailableError("the man in the middle has the connection");
  connect();
  settle();
  stolen = between_.ticket_;
  ASSERT_TRUE(user_.closed_);
  EXPECT_EQ(*user_.closed_, between_.failure_);
  User thief;
  thief.stream_ = network_.endpoint("thief").connect(MemoryCarrier::address_of("server"), &thief);
  thief.say({reinterpret_cast<const char*>(stolen.data()), stolen.size()});
  thief.say(std::string(100, '\0'));
  settle();
  EXPECT_EQ(acceptor_.accepted_, 1);
  EXPECT_THAT(theirs().heard_, IsEmpty());
  EXPECT_TRUE(theirs().closed_ && absl::IsUnavailable(*theirs().closed_));
  EXPECT_THAT(broken_, ElementsAre("a message that does not open"));
}

TEST_F(Sealed, WhoShowsNoTicketIsClosedInTime) {
  User silent;
  silent.stream_ =
      network_.endpoint("silent").connect(MemoryCarrier::address_of("server"), &silent);
  settle(Milliseconds(9000));
  EXPECT_FALSE(silent.closed_);
  settle(Milliseconds(2000));
  EXPECT_TRUE(silent.closed_);
  EXPECT_EQ(acceptor_.accepted_, 0);
}

TEST_F(Sealed, AnAgreementThatIsNotTakenUpIsForgotten) {
  between_.failure_ = absl::UnavailableError("no way");
  connect();
  settle();
  settle(kTicketLife + Milliseconds(1000));
  User late;
  late.stream_ = network_.endpoint("late").connect(MemoryCarrier::address_of("server"), &late);
  late.say({reinterpret_cast<const char*>(between_.ticket_.data()), between_.ticket_.size()});
  settle();
  EXPECT_TRUE(late.closed_);
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
  EXPECT_THAT(broken_, IsEmpty());
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
  SealedTransport other(&network_.endpoint("other"), &carrier, broken());
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
}  // namespace poseidon
