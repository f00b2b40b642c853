// What the suite for all transports (transport_test.cc) does not see: that payloads are really read
// in place, when they are let go, how ends that cannot share go on, and what hostile frames do.

#include "common/shared_memory_transport.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/memory_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/shared_memory.pb.h"

namespace poseidon {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPayloadBytes = 100000;

std::string text(const Bytes& bytes) {
  std::string out;
  for (const auto& piece : bytes.pieces) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return out;
}

class Recorder final : public StreamHandler {
 public:
  ReadNext on_message(Bytes message) override {
    messages_.push_back(std::move(message));
    return pause_ ? ReadNext::kPause : ReadNext::kContinue;
  }
  void on_written() override { ++written_; }
  void on_closed(const absl::Status& status) override { closed_ = status; }

  std::unique_ptr<Stream> stream_;
  std::vector<Bytes> messages_;
  std::optional<absl::Status> closed_;
  int written_ = 0;
  bool pause_ = false;
};

class OneStream final : public Acceptor {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    recorder_.stream_ = std::move(stream);
    return &recorder_;
  }
  Recorder recorder_;
};

class SharedMemoryTransportTest : public ::testing::Test {
 protected:
  SharedMemoryTransportTest()
      : arena_(*SharedArena::create(1 << 24)),
        server_arena_(*SharedArena::create(1 << 24)),
        client_side_(&network_.endpoint("client"), arena_.get()),
        server_side_(&network_.endpoint("server"), server_arena_.get()) {
    EXPECT_TRUE(server_side_.listen("server:1", &acceptor_).ok());
  }
  ~SharedMemoryTransportTest() override {
    client_.stream_.reset();
    server().stream_.reset();
  }

  Recorder& server() { return acceptor_.recorder_; }
  void connect() { client_.stream_ = client_side_.connect("server:1", &client_); }
  void settle() {
    while (network_.step()) {
    }
  }
  /// What an honest client begins with.
  std::string offer() const {
    const ArenaAddress& address = arena_->address();
    v1::SharedFrame frame;
    frame.mutable_offer()->set_machine(address.machine);
    frame.mutable_offer()->set_process_id(address.process_id);
    frame.mutable_offer()->set_file_descriptor(address.file_descriptor);
    frame.mutable_offer()->set_nonce_low(address.nonce_low);
    frame.mutable_offer()->set_nonce_high(address.nonce_high);
    frame.mutable_offer()->set_bytes(address.bytes);
    return frame.SerializeAsString();
  }
  static OutgoingMessage bare(std::string bytes) {
    return {.prefix = std::move(bytes), .payload = {}, .payload_owner = nullptr};
  }
  /// A payload in `arena`; `owner` tells whether anybody still holds it.
  OutgoingMessage message(SharedArena& arena, char fill, std::weak_ptr<const void>* owner) {
    std::shared_ptr<char> memory(static_cast<char*>(arena.allocate(kPayloadBytes)),
                                 [&arena](char* p) { arena.free(p); });
    std::memset(memory.get(), fill, kPayloadBytes);
    if (owner != nullptr) *owner = memory;
    return {.prefix = "head",
            .payload = {reinterpret_cast<const std::byte*>(memory.get()), kPayloadBytes},
            .payload_owner = memory};
  }

  MemoryNetwork network_{1, MemoryFaults{}};
  std::unique_ptr<SharedArena> arena_, server_arena_;
  SharedMemoryTransport client_side_, server_side_;
  OneStream acceptor_;
  Recorder client_;
};

TEST_F(SharedMemoryTransportTest, APayloadIsReadInPlaceAndHeldUntilItIsLetGo) {
  connect();
  std::weak_ptr<const void> owner;
  OutgoingMessage first = message(*arena_, 'a', &owner);
  auto* memory = const_cast<std::byte*>(first.payload.data());
  client_.stream_->write(std::move(first));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  EXPECT_EQ(text(server().messages_[0]), "head" + std::string(kPayloadBytes, 'a'));
  memory[kPayloadBytes - 1] = std::byte{'z'};
  EXPECT_EQ(text(server().messages_[0]).back(), 'z') << "the very same bytes";
  EXPECT_EQ(client_side_.traffic().shared_bytes, kPayloadBytes);
  EXPECT_EQ(client_side_.traffic().inline_bytes, 0U);

  EXPECT_FALSE(owner.expired());
  server().messages_.clear();
  server().stream_->write(bare("answer"));
  settle();
  EXPECT_TRUE(owner.expired()) << "the answer says that nobody reads it any more";
}

TEST_F(SharedMemoryTransportTest, MessagesAreLetGoInAnyOrderAndWithoutAnAnswer) {
  connect();
  std::vector<std::weak_ptr<const void>> owners(4);
  for (int i = 0; i < 4; ++i) {
    client_.stream_->write(
        message(*arena_, static_cast<char>('a' + i), &owners[static_cast<std::size_t>(i)]));
    settle();
    EXPECT_EQ(client_.written_, i + 1);
  }
  ASSERT_EQ(server().messages_.size(), 4U);
  server().messages_.erase(server().messages_.begin() + 1, server().messages_.begin() + 3);
  client_.stream_->write(bare("more"));
  settle();
  EXPECT_FALSE(owners[0].expired());
  EXPECT_TRUE(owners[1].expired());
  EXPECT_TRUE(owners[2].expired());
  EXPECT_FALSE(owners[3].expired());
  EXPECT_EQ(text(server().messages_[1]), "head" + std::string(kPayloadBytes, 'd'));
}

TEST_F(SharedMemoryTransportTest, TheServersPayloadsAreSharedToo) {
  connect();
  client_.stream_->write(bare("hello"));
  settle();
  server().stream_->write(message(*server_arena_, 's', nullptr));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  EXPECT_EQ(text(client_.messages_[0]), "head" + std::string(kPayloadBytes, 's'));
  EXPECT_EQ(server_side_.traffic().shared_bytes, kPayloadBytes);
  client_.messages_.clear();
}

TEST_F(SharedMemoryTransportTest, APausedEndHoldsAWindowOfHeadsAndTheSenderStops) {
  server().pause_ = true;
  connect();
  for (int i = 0; i < 10; ++i) {
    if (client_.written_ == i) client_.stream_->write(message(*arena_, 'p', nullptr));
    settle();
  }
  EXPECT_EQ(server().messages_.size(), 1U);
  EXPECT_LE(client_.written_, 1 + static_cast<int>(kSharedMemoryWindow));
  const int stopped_at = client_.written_;
  server().pause_ = false;
  server().stream_->resume_reads();
  settle();
  EXPECT_GT(client_.written_, stopped_at);
  server().messages_.clear();
}

TEST_F(SharedMemoryTransportTest, WhatWasHeldComesBeforeWhatArrivesWhileReadsResume) {
  server().pause_ = true;
  connect();
  for (const char fill : {'a', 'b'}) {
    client_.stream_->write(message(*arena_, fill, nullptr));
    settle();
  }
  ASSERT_EQ(server().messages_.size(), 1U) << "the second is held";
  server().pause_ = false;
  // Resumes at the very time at which the third arrives, and just before it.
  network_.endpoint("server").post_after(Milliseconds(1),
                                         [this] { server().stream_->resume_reads(); });
  client_.stream_->write(message(*arena_, 'c', nullptr));
  settle();
  std::string order;
  for (const Bytes& bytes : server().messages_) order.push_back(text(bytes).back());
  EXPECT_EQ(order, "abc");
  server().messages_.clear();
}

TEST_F(SharedMemoryTransportTest, WhoIsTurnedAwayAtTheDoorHearsWhy) {
  struct Closed final : Acceptor {
    StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
      recorder.stream_ = std::move(stream);
      recorder.stream_->close(absl::ResourceExhaustedError("full"));
      return &recorder;
    }
    Recorder recorder;
  };
  Closed door;
  SharedMemoryTransport full(&network_.endpoint("full"), server_arena_.get());
  ASSERT_TRUE(full.listen("full:1", &door).ok());
  client_.stream_ = client_side_.connect("full:1", &client_);
  client_.stream_->write(message(*arena_, 'a', nullptr));
  settle();
  ASSERT_TRUE(client_.closed_.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*client_.closed_)) << *client_.closed_;
  client_.stream_.reset();
  door.recorder.stream_.reset();
}

TEST_F(SharedMemoryTransportTest, WhoHasNotHeardOfARefusalYetMayStillWrite) {
  for (int steps = 0; steps < 8; ++steps) {
    Recorder hostile;
    hostile.stream_ = network_.endpoint("hostile").connect("server:1", &hostile);
    hostile.stream_->write(bare(offer()));
    settle();
    hostile.stream_->write(bare("garbage that is no protobuf"));
    for (int i = 0; i < steps; ++i) network_.step();
    server().stream_->write(message(*server_arena_, 'y', nullptr));
    settle();
    EXPECT_TRUE(hostile.closed_.has_value()) << steps;
    hostile.stream_.reset();
    settle();
    server().stream_.reset();
  }
}

TEST_F(SharedMemoryTransportTest, EndsThatDoNotSpeakFramesGetPlainMessages) {
  Transport& plain = network_.endpoint("plain");
  client_.stream_ = plain.connect("server:1", &client_);
  client_.stream_->write(message(*arena_, 'x', nullptr));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  EXPECT_EQ(text(server().messages_[0]), "head" + std::string(kPayloadBytes, 'x'));
  server().stream_->write(message(*server_arena_, 'y', nullptr));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  EXPECT_EQ(text(client_.messages_[0]), "head" + std::string(kPayloadBytes, 'y'));
  EXPECT_EQ(server_side_.traffic().shared_bytes, 0U);
}

TEST_F(SharedMemoryTransportTest, AnOfferThatNobodyCanOpenIsAnsweredAndAllGoesPlain) {
  Transport& peer = network_.endpoint("far away");
  client_.stream_ = peer.connect("server:1", &client_);
  v1::SharedFrame offer;
  offer.mutable_offer()->set_machine(arena_->address().machine + 1);
  client_.stream_->write(bare(offer.SerializeAsString()));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  v1::SharedFrame answer;
  ASSERT_TRUE(answer.ParseFromString(text(client_.messages_[0])));
  EXPECT_FALSE(answer.accepted());
  client_.stream_->write(bare("plain"));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  EXPECT_EQ(text(server().messages_[0]), "plain");
}

TEST_F(SharedMemoryTransportTest, AnEndThatCannotReadGetsItsPayloadsInline) {
  Transport& peer = network_.endpoint("another user");
  client_.stream_ = peer.connect("server:1", &client_);
  client_.stream_->write(bare(offer()));
  settle();
  v1::SharedFrame hello;
  hello.set_message("hello");  // and not accepted: we could not map the server's
  client_.stream_->write(bare(hello.SerializeAsString()));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  server().stream_->write(message(*server_arena_, 'y', nullptr));
  settle();
  v1::SharedFrame answer;
  ASSERT_TRUE(answer.ParseFromString(text(client_.messages_.back())));
  EXPECT_EQ(answer.message(), "head" + std::string(kPayloadBytes, 'y'));
  EXPECT_EQ(answer.payload_bytes(), 0U);
}

/// Frames that no honest end sends, after an honest beginning.
TEST_F(SharedMemoryTransportTest, HostileFramesEndTheStreamWithAReason) {
  const auto frame = [](auto&& fill) {
    v1::SharedFrame f;
    fill(f);
    return f.SerializeAsString();
  };
  const struct {
    std::string bytes;
    const char* reason;
  } cases[] = {
      {"garbage that is no protobuf", "no frame"},
      {frame([](auto& f) { f.mutable_offer(); }), "second offer"},
      {frame([](auto& f) { f.set_delivered(7); }), "7 messages taken, 0 were sent"},
      {frame([](auto& f) { f.add_released(0); }), "nobody holds it"},
      {frame([](auto& f) {
         f.set_message("m");
         f.set_payload_offset(1ULL << 40);
         f.set_payload_bytes(8);
       }),
       "outside"},
      {frame([](auto& f) {
         f.set_message("m");
         f.set_payload_offset(16);
         f.set_payload_bytes(~0ULL - 8);
       }),
       "outside"},
  };
  for (const auto& c : cases) {
    Recorder hostile;
    hostile.stream_ = network_.endpoint("hostile").connect("server:1", &hostile);
    hostile.stream_->write(bare(offer()));
    settle();
    hostile.stream_->write(bare(c.bytes));
    settle();
    ASSERT_TRUE(hostile.closed_.has_value()) << c.reason;
    EXPECT_TRUE(absl::IsInvalidArgument(*hostile.closed_)) << *hostile.closed_;
    EXPECT_THAT(std::string(hostile.closed_->message()), HasSubstr(c.reason));
    EXPECT_TRUE(server().messages_.empty());
    hostile.stream_.reset();
    settle();
    server().stream_.reset();
  }
}

}  // namespace
}  // namespace poseidon
