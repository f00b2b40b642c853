#include "common/node/control_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "common/threads/mutex.h"
#include "common/transport/memory_transport.h"
#include "gtest/gtest.h"

namespace poseidon::control_stream_test {
namespace {

constexpr const char* kAddress = "coordinator:4700";

/// The coordinator's end: keeps what comes, and reads on or not.
class FakeCoordinator final : public Acceptor, public StreamHandler {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    stream_ = std::move(stream);
    return this;
  }
  ReadNext on_message(Bytes bytes) override {
    std::string text;
    for (const auto& piece : bytes.pieces) {
      text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    v1::NodeMessage message;
    EXPECT_TRUE(message.ParseFromString(text));
    heard_.push_back(std::move(message));
    return reads_ ? ReadNext::kContinue : ReadNext::kPause;
  }
  void on_written() override {
    if (!to_say_.empty()) say_next();
  }
  void on_closed(const absl::Status& status) override { closed_ = status; }

  void say(std::vector<std::string> messages) {
    to_say_ = std::move(messages);
    say_next();
  }

  bool reads_ = true;
  std::unique_ptr<Stream> stream_;
  std::vector<v1::NodeMessage> heard_;
  std::optional<absl::Status> closed_;

 private:
  void say_next() {
    OutgoingMessage message;
    message.prefix = to_say_.front();
    to_say_.erase(to_say_.begin());
    stream_->write(std::move(message));
  }

  std::vector<std::string> to_say_;
};

std::string start_of(std::uint64_t epoch) {
  v1::CoordinatorMessage message;
  message.mutable_start()->set_epoch(epoch);
  return message.SerializeAsString();
}

v1::NodeMessage leave(const std::string& reason) {
  v1::NodeMessage message;
  message.mutable_leave()->set_reason(reason);
  return message;
}

class ControlStreamTest : public ::testing::Test {
 protected:
  ControlStreamTest() : network_(1, {}) {
    EXPECT_TRUE(network_.endpoint("coordinator").listen(kAddress, &coordinator_).ok());
    stream_ = ControlStream::open(kAddress, &network_.endpoint("node"), reports_);
  }
  ~ControlStreamTest() override {
    stream_->cancel();
    settle();
  }

  void settle() {
    while (network_.step()) {
    }
  }
  /// What has come; nothing, at once, when nothing has.
  std::optional<v1::CoordinatorMessage> take() {
    return stream_->wait(std::chrono::steady_clock::now(), [] { return false; });
  }

  MemoryNetwork network_;
  FakeCoordinator coordinator_;
  const std::shared_ptr<SharedOutbox> reports_ = std::make_shared<SharedOutbox>();
  std::shared_ptr<ControlStream> stream_;
};

TEST_F(ControlStreamTest, SendsInOrderAndThenTheReports) {
  v1::NodeMessage ready;
  ready.mutable_ready()->set_epoch(3);
  {
    const MutexLock lock(reports_->mutex);
    reports_->outbox.begin(Epoch(3), 0, 0);
    ASSERT_TRUE(reports_->outbox.add(ready, Nanoseconds(0)));
  }
  stream_->send_reports();
  EXPECT_TRUE(stream_->send(leave("one")));
  EXPECT_TRUE(stream_->send(leave("two")));
  settle();
  ASSERT_EQ(coordinator_.heard_.size(), 3u);
  EXPECT_EQ(coordinator_.heard_[0].leave().reason(), "one");
  EXPECT_EQ(coordinator_.heard_[1].leave().reason(), "two");
  EXPECT_EQ(coordinator_.heard_[2].ready().epoch(), 3u);
}

TEST_F(ControlStreamTest, HandsOverOneMessageAtATime) {
  settle();
  coordinator_.say({start_of(1), start_of(2)});
  settle();
  const auto first = take();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->start().epoch(), 1u);
  EXPECT_FALSE(take()) << "read only after the first was taken";
  settle();
  const auto second = take();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->start().epoch(), 2u);
  EXPECT_FALSE(stream_->end());
}

TEST_F(ControlStreamTest, WhatIsNoMessageEndsIt) {
  settle();
  coordinator_.say({"\xff\xff\xff"});
  settle();
  EXPECT_FALSE(take());
  ASSERT_TRUE(stream_->end());
  EXPECT_EQ(*stream_->end(),
            absl::UnavailableError("the coordinator sent 3 bytes that are not a message"));
  EXPECT_FALSE(stream_->send(leave("late")));
}

TEST_F(ControlStreamTest, ACoordinatorThatTakesNothingEndsIt) {
  coordinator_.reads_ = false;
  int sent = 0;
  while (stream_->send(leave("x")) && sent < 10000) {
    ++sent;
    settle();
  }
  settle();
  EXPECT_GE(sent, 1024);
  EXPECT_LT(sent, 10000);
  ASSERT_TRUE(stream_->end());
  EXPECT_TRUE(absl::IsUnavailable(*stream_->end())) << *stream_->end();
}

TEST_F(ControlStreamTest, FinishesAfterWhatIsQueued) {
  EXPECT_TRUE(stream_->send(leave("bye")));
  stream_->finish_sending();
  EXPECT_FALSE(stream_->send(leave("more")));
  settle();
  ASSERT_EQ(coordinator_.heard_.size(), 1u);
  ASSERT_TRUE(coordinator_.closed_);
  EXPECT_TRUE(coordinator_.closed_->ok()) << *coordinator_.closed_;
}

TEST_F(ControlStreamTest, TellsHowItEnded) {
  settle();
  coordinator_.stream_->close(absl::FailedPreconditionError("install the same version"));
  settle();
  ASSERT_TRUE(stream_->end());
  EXPECT_EQ(*stream_->end(), absl::FailedPreconditionError("install the same version"));
  stream_->cancel();
  settle();
  EXPECT_TRUE(absl::IsFailedPrecondition(*stream_->end())) << "the first reason stays";
}

TEST_F(ControlStreamTest, CancelEndsIt) {
  stream_->cancel();
  settle();
  ASSERT_TRUE(stream_->end());
  EXPECT_TRUE(absl::IsCancelled(*stream_->end()));
}

}  // namespace
}  // namespace poseidon::control_stream_test
