// Tests beyond the suite for all transports (transport_test.cc): payloads are read in place and
// released in time, ends without shared memory fall back, hostile frames are refused.

#include "common/transport/paced_transport.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/memory_transport.h"
#include "common/transport/stream_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/stream.pb.h"

namespace poseidon::paced_transport_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPayloadBytes = 100000;

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

class PacedTransportTest : public ::testing::Test {
 protected:
  PacedTransportTest()
      : arena_(*SharedArena::create(1 << 24)),
        server_arena_(*SharedArena::create(1 << 24)),
        client_side_(&network_.endpoint("client"), arena_.get()),
        server_side_(&network_.endpoint("server"), server_arena_.get()) {
    EXPECT_TRUE(server_side_.listen("server:1", &acceptor_).ok());
  }
  ~PacedTransportTest() override {
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
    v1::StreamHeader frame;
    frame.mutable_offer()->set_machine(address.machine);
    frame.mutable_offer()->set_process_id(address.process_id);
    frame.mutable_offer()->set_file_descriptor(address.file_descriptor);
    frame.mutable_offer()->set_nonce_low(address.nonce_low);
    frame.mutable_offer()->set_nonce_high(address.nonce_high);
    frame.mutable_offer()->set_bytes(address.bytes);
    return frame.SerializeAsString();
  }
  static OutgoingMessage bare(std::string_view bytes) {
    return {.prefix = bytes, .payload = {}, .payload_owner = nullptr};
  }
  /// A payload in `arena`; `owner` shows whether it is still held.
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
  PacedTransport client_side_, server_side_;
  OneStream acceptor_;
  Recorder client_;
};

TEST_F(PacedTransportTest, APayloadIsReadInPlaceAndHeldUntilItIsLetGo) {
  connect();
  std::weak_ptr<const void> owner;
  OutgoingMessage first = message(*arena_, 'a', &owner);
  auto* memory = const_cast<std::byte*>(first.payload.data());
  client_.stream_->write(std::move(first));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  EXPECT_EQ(joined(server().messages_[0]), "head" + std::string(kPayloadBytes, 'a'));
  memory[kPayloadBytes - 1] = std::byte{'z'};
  EXPECT_EQ(joined(server().messages_[0]).back(), 'z') << "the very same bytes";
  EXPECT_EQ(client_side_.traffic().shared_bytes, kPayloadBytes);
  EXPECT_EQ(client_side_.traffic().sent_bytes, 0U);

  EXPECT_FALSE(owner.expired());
  server().messages_.clear();
  server().stream_->write(bare("answer"));
  settle();
  EXPECT_TRUE(owner.expired()) << "the answer says that nobody reads it any more";
}

TEST_F(PacedTransportTest, MessagesAreLetGoInAnyOrder) {
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
  server().stream_->write(bare("news"));
  settle();
  EXPECT_FALSE(owners[0].expired());
  EXPECT_TRUE(owners[1].expired());
  EXPECT_TRUE(owners[2].expired());
  EXPECT_FALSE(owners[3].expired());
  EXPECT_EQ(joined(server().messages_[1]), "head" + std::string(kPayloadBytes, 'd'));
}

TEST_F(PacedTransportTest, TheServersPayloadsAreSharedToo) {
  connect();
  client_.stream_->write(bare("hello"));
  settle();
  server().stream_->write(message(*server_arena_, 's', nullptr));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  EXPECT_EQ(joined(client_.messages_[0]), "head" + std::string(kPayloadBytes, 's'));
  EXPECT_EQ(server_side_.traffic().shared_bytes, kPayloadBytes);
  client_.messages_.clear();
}

TEST_F(PacedTransportTest, APausedEndHoldsAWindowAndTheSenderStops) {
  server().pause_ = true;
  connect();
  const int bound = 1 + static_cast<int>(kWindowBytes / kPayloadBytes) + 1;  // 1 is delivered
  for (int i = 0; i < 2 * bound; ++i) {
    if (client_.written_ == i) client_.stream_->write(message(*arena_, 'p', nullptr));
    settle();
  }
  EXPECT_EQ(server().messages_.size(), 1U);
  EXPECT_LE(client_.written_, bound);
  EXPECT_GT(client_.written_, 2);
  const int stopped_at = client_.written_;
  server().pause_ = false;
  server().stream_->resume_reads();
  settle();
  EXPECT_GT(client_.written_, stopped_at);
  server().messages_.clear();
}

TEST_F(PacedTransportTest, SmallMessagesAreBoundedByTheirNumber) {
  server().pause_ = true;
  connect();
  for (int i = 0; i < 200; ++i) {
    if (client_.written_ == i) client_.stream_->write(bare("small"));
    settle();
  }
  EXPECT_EQ(client_.written_, static_cast<int>(kWindowMessages) - 1) << "the last one fills it";
  server().pause_ = false;
  server().stream_->resume_reads();
  settle();
  for (int i = client_.written_; i < 500; ++i) {
    client_.stream_->write(bare("small"));
    settle();
    ASSERT_EQ(client_.written_, i + 1) << "progress is told without an answer";
  }
  EXPECT_EQ(server().messages_.size(), 500U);
}

TEST_F(PacedTransportTest, TheLargestMessagesGoTwoAtATime) {
  server().pause_ = true;
  PacedTransport sockets(&network_.endpoint("far"), nullptr);
  client_.stream_ = sockets.connect("server:1", &client_);
  for (int i = 0; i < 5; ++i) {
    if (client_.written_ == i) client_.stream_->write(bare(std::string(2 * kWindowBytes, 'l')));
    settle();
  }
  EXPECT_EQ(client_.written_, 2) << "one is delivered, a second held, a third under way";
  server().pause_ = false;
  server().stream_->resume_reads();
  settle();
  EXPECT_EQ(client_.written_, 3);
  EXPECT_EQ(server().messages_.size(), 3U);
  client_.stream_.reset();
}

/// Streams of one process to one server, which, where they pause, takes one message and no more.
class ManyStreamsTest : public PacedTransportTest, public Acceptor {
 protected:
  static constexpr std::size_t kMessageBytes = 100000;

  ManyStreamsTest()
      : far_(&network_.endpoint("far"), nullptr),
        many_(&network_.endpoint("many"), nullptr, server_window_bytes()) {
    EXPECT_TRUE(many_.listen("many:1", this).ok());
  }
  ~ManyStreamsTest() override {
    for (const auto& end : clients_) end->stream_.reset();
    for (const auto& end : servers_) end->stream_.reset();
  }
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    servers_.push_back(std::make_unique<Recorder>());
    servers_.back()->pause_ = pause_;
    servers_.back()->stream_ = std::move(stream);
    return servers_.back().get();
  }
  void add_streams(std::size_t count, bool pause) {
    pause_ = pause;
    for (std::size_t i = 0; i < count; ++i) {
      clients_.push_back(std::make_unique<Recorder>());
      clients_.back()->stream_ = far_.connect("many:1", clients_.back().get());
      settle();
    }
  }
  /// Whether the stream took one more message.
  bool write(Recorder& end) {
    const int written = end.written_;
    end.stream_->write(bare(std::string(kMessageBytes, 'm')));
    settle();
    return end.written_ > written;
  }
  bool write(std::size_t stream) { return write(*clients_[stream]); }
  /// Bytes that these ends take in turn until none takes more.
  std::size_t fill(const std::vector<std::unique_ptr<Recorder>>& ends) {
    std::vector<Recorder*> open;
    for (const auto& end : ends) open.push_back(end.get());
    std::size_t sent = 0;
    while (!open.empty()) {
      sent += open.size();
      std::erase_if(open, [this](Recorder* end) { return !write(*end); });
    }
    return sent * kMessageBytes;
  }
  void resume(std::size_t stream) {
    servers_[stream]->pause_ = false;
    servers_[stream]->stream_->resume_reads();
    settle();
  }

  PacedTransport far_, many_;
  bool pause_ = false;
  std::vector<std::unique_ptr<Recorder>> clients_, servers_;
};

TEST_F(ManyStreamsTest, ShareTheWindowAndNoneWaitsForAnothersShare) {
  constexpr std::size_t kStreams = 16;
  add_streams(kStreams, /*pause=*/true);
  const std::size_t under_way = fill(clients_);  // the sender does not know yet which were taken
  EXPECT_GE(under_way, kWorkerWindowBytes);
  EXPECT_LE(under_way, kWorkerWindowBytes + kStreams * kMessageBytes);

  resume(7);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(write(7)) << "message " << i;

  for (std::size_t i = 0; i < kStreams; ++i) resume(i);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(write(0)) << "nothing is under way: message " << i;
}

// Or a worker that is behind stays behind: paced_transport.h.
TEST_F(ManyStreamsTest, ShareALargerWindowAtAServer) {
  constexpr std::size_t kStreams = 16;
  add_streams(kStreams, /*pause=*/false);
  for (const auto& client : clients_) client->pause_ = true;
  const std::size_t under_way = fill(servers_);
  EXPECT_GE(under_way, server_window_bytes());
  EXPECT_LE(under_way, server_window_bytes() + kStreams * kMessageBytes);
}

TEST_F(ManyStreamsTest, ShareAWindowThatAPlanMadeSmallerOrLarger) {
  constexpr std::size_t kStreams = 16;
  for (const std::int64_t bytes : {2 * kWorkerWindowBytes, kWorkerWindowBytes / 4}) {
    far_.set_window(bytes);
    add_streams(kStreams, /*pause=*/true);
    const auto under_way = static_cast<std::int64_t>(fill(clients_));
    EXPECT_GE(under_way, bytes);
    EXPECT_LE(under_way, bytes + std::int64_t{kStreams * kMessageBytes});
    for (const auto& end : clients_) end->stream_.reset();
    settle();
    clients_.clear();
    servers_.clear();
  }
}

TEST_F(ManyStreamsTest, AWindowThatOthersMadeSmallerOpensAgain) {
  add_streams(1 + kWorkerWindowBytes / kMessageBytes + 1, /*pause=*/false);
  ASSERT_TRUE(write(0));
  // Alone it need not ask for progress; before it may send again the others are under way.
  for (const auto& client : clients_) {
    client->stream_->write(bare(std::string(kMessageBytes, 'm')));
  }
  settle();
  EXPECT_EQ(clients_.front()->written_, 2);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(write(0)) << "message " << i;
}

TEST_F(ManyStreamsTest, AStreamThatEndsLeavesItsShareToTheOthers) {
  add_streams(9, /*pause=*/true);
  for (std::size_t i = 1; i < 9; ++i) {
    while (write(i)) {
    }
  }
  for (std::size_t i = 1; i < 5; ++i) clients_[i]->stream_.reset();
  for (std::size_t i = 5; i < 9; ++i) servers_[i]->stream_->close(absl::AbortedError("over"));
  settle();
  std::size_t sent = 1;
  while (write(0)) ++sent;
  EXPECT_GE(sent * kMessageBytes, kWindowBytes) << "it is the only one";
}

/// Both ends send as much as they can and read nothing: neither may keep the other from hearing of
/// its progress later.
TEST_F(PacedTransportTest, TwoFullDirectionsDoNotBlockEachOther) {
  connect();
  client_.stream_->write(bare("hello"));
  settle();
  server().pause_ = client_.pause_ = true;
  for (int i = 0; i < 100; ++i) {
    if (client_.written_ == i + 1) client_.stream_->write(message(*arena_, 'c', nullptr));
    if (server().written_ == i) server().stream_->write(message(*server_arena_, 's', nullptr));
    settle();
  }
  const int client_stopped = client_.written_, server_stopped = server().written_;
  EXPECT_LT(client_stopped, 100);
  server().pause_ = client_.pause_ = false;
  client_.stream_->resume_reads();
  server().stream_->resume_reads();
  settle();
  EXPECT_GT(client_.written_, client_stopped);
  EXPECT_GT(server().written_, server_stopped);
  client_.messages_.clear();
  server().messages_.clear();
}

TEST_F(PacedTransportTest, WhatWasHeldComesBeforeWhatArrivesWhileReadsResume) {
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
  for (const Bytes& bytes : server().messages_) order.push_back(joined(bytes).back());
  EXPECT_EQ(order, "abc");
  server().messages_.clear();
}

TEST_F(PacedTransportTest, WhoIsTurnedAwayAtTheDoorHearsWhy) {
  struct Closed final : Acceptor {
    StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
      recorder.stream_ = std::move(stream);
      recorder.stream_->close(absl::ResourceExhaustedError("full"));
      return &recorder;
    }
    Recorder recorder;
  };
  Closed door;
  PacedTransport full(&network_.endpoint("full"), server_arena_.get());
  ASSERT_TRUE(full.listen("full:1", &door).ok());
  client_.stream_ = client_side_.connect("full:1", &client_);
  client_.stream_->write(message(*arena_, 'a', nullptr));
  settle();
  ASSERT_TRUE(client_.closed_.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*client_.closed_)) << *client_.closed_;
  client_.stream_.reset();
  door.recorder.stream_.reset();
}

TEST_F(PacedTransportTest, WhoHasNotHeardOfARefusalYetMayStillWrite) {
  for (int steps = 0; steps < 8; ++steps) {
    Recorder hostile;
    hostile.stream_ = network_.endpoint("hostile").connect("server:1", &hostile);
    hostile.stream_->write(bare(offer()));
    settle();
    hostile.stream_->write(bare("\xA8\x06"));  // and a number is missing
    for (int i = 0; i < steps; ++i) network_.step();
    server().stream_->write(message(*server_arena_, 'y', nullptr));
    settle();
    EXPECT_TRUE(hostile.closed_.has_value()) << steps;
    hostile.stream_.reset();
    settle();
    server().stream_.reset();
  }
}

TEST_F(PacedTransportTest, EndsThatAreNotOursGetPlainMessages) {
  Transport& plain = network_.endpoint("plain");
  client_.stream_ = plain.connect("server:1", &client_);
  client_.stream_->write(message(*arena_, 'x', nullptr));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  EXPECT_EQ(joined(server().messages_[0]), "head" + std::string(kPayloadBytes, 'x'));
  server().stream_->write(message(*server_arena_, 'y', nullptr));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  EXPECT_EQ(joined(client_.messages_[0]), "head" + std::string(kPayloadBytes, 'y'));
  EXPECT_EQ(server_side_.traffic().shared_bytes, 0U);
}

TEST_F(PacedTransportTest, AnOfferThatNobodyCanOpenIsAnsweredAndNothingIsShared) {
  Transport& peer = network_.endpoint("far away");
  client_.stream_ = peer.connect("server:1", &client_);
  v1::StreamHeader offer;
  offer.mutable_offer()->set_machine(arena_->address().machine + 1);
  offer.mutable_offer()->set_bytes(1 << 20);
  client_.stream_->write(bare(offer.SerializeAsString()));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  v1::StreamHeader answer;
  ASSERT_TRUE(answer.ParseFromString(joined(client_.messages_[0])));
  EXPECT_FALSE(answer.accepted());
  client_.stream_->write(bare("plain"));
  settle();
  ASSERT_EQ(server().messages_.size(), 1U);
  EXPECT_EQ(joined(server().messages_[0]), "plain");
  server().stream_->write(message(*server_arena_, 'y', nullptr));
  settle();
  const auto received = decode_stream_header(client_.messages_[1]);
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->header.delivered, 1U);
  EXPECT_EQ(joined(client_.messages_[1]).substr(received->bytes),
            "head" + std::string(kPayloadBytes, 'y'));
}

TEST_F(PacedTransportTest, EndsOnDifferentMachinesArePacedAndShareNothing) {
  PacedTransport far(&network_.endpoint("far"), nullptr);
  client_.stream_ = far.connect("server:1", &client_);
  for (int i = 0; i < 100; ++i) {
    client_.stream_->write(message(*arena_, 'x', nullptr));
    settle();
    ASSERT_EQ(client_.written_, i + 1);
  }
  server().stream_->write(message(*server_arena_, 'y', nullptr));
  settle();
  ASSERT_EQ(client_.messages_.size(), 1U);
  EXPECT_EQ(joined(client_.messages_[0]), "head" + std::string(kPayloadBytes, 'y'));
  EXPECT_EQ(far.traffic().shared_bytes, 0U);
  EXPECT_EQ(far.traffic().sent_bytes, 100 * kPayloadBytes);
  EXPECT_EQ(server_side_.traffic().shared_bytes, 0U);
  client_.stream_.reset();
}

/// Headers that no honest end sends, after an honest beginning.
TEST_F(PacedTransportTest, HostileHeadersEndTheStreamWithAReason) {
  const auto frame = [](auto&& fill) {
    v1::StreamHeader f;
    fill(f);
    return f.SerializeAsString() + "m";
  };
  const struct {
    std::string bytes;
    const char* reason;
  } cases[] = {
      {frame([](auto& f) { f.mutable_offer(); }), "second offer"},
      {frame([](auto& f) { f.set_delivered(7); }), "7 messages taken, 0 were sent"},
      {frame([](auto& f) { f.add_released(0); }), "it is not under way"},
      {frame([](auto& f) {
         f.set_payload_offset(1ULL << 40);
         f.set_payload_bytes(8);
       }),
       "outside"},
      {frame([](auto& f) {
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
}  // namespace poseidon::paced_transport_test
