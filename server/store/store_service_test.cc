#include "server/store/store_service.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/checkpoint/store_client.h"
#include "common/transport/memory_transport.h"
#include "common/wire/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/memory_chunk_store.h"
#include "tests/support/mute_peer.h"

namespace poseidon::store_service_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{5};
const SnapshotId kSnapshot = snapshot_id(kEpoch, 40);
constexpr int kPieces = 9;

/// A server with a store and a client on a network with faults, all in one thread.
class StoreServiceTest : public ::testing::Test {
 protected:
  void build(const MemoryFaults& faults) {
    network_ = std::make_unique<MemoryNetwork>(7, faults);
    server_ = &network_->endpoint("server");
    client_ = &network_->endpoint("client");
    disk_ = std::make_unique<BackgroundOnLoop>(server_, Milliseconds(5));
    keeper_ = std::make_unique<CheckpointKeeper>(std::make_unique<MemoryChunkStore>(), disk_.get());
    service_ = std::make_unique<StoreService>(
        server_, keeper_.get(), &refusals_,
        [this](const std::string& peer, const Objection& objection) {
          logged_.push_back(peer + ": " + data_refusal_name(objection.reason) + ": " +
                            objection.message);
        });
    ASSERT_TRUE(server_->listen("server:1", service_.get()).ok());
    keeper_->begin(kEpoch, kPieces, nullptr);
  }
  absl::Status run(std::vector<StoreRequest> requests) {
    std::optional<absl::Status> end;
    transfer_ = std::make_unique<StoreTransfer>(client_);
    transfer_->start(std::move(requests), [&end](const absl::Status& status) { end = status; });
    while (!end && network_->step()) {
    }
    asked_second_ = transfer_->asked_second();
    transfer_.reset();
    return end.value_or(absl::DeadlineExceededError("no end"));
  }

  std::vector<StoreRequest> writes() {
    std::vector<StoreRequest> requests;
    for (int piece = 0; piece < kPieces; ++piece) {
      auto values = std::make_shared<std::vector<float>>();
      for (int i = 0; i < 6; ++i) values->push_back(static_cast<float>(10 * piece + i));
      StoreRequest request;
      request.address = "server:1";
      request.header.operation = StoreOperation::kWrite;
      request.header.snapshot = kSnapshot;
      request.header.piece = PieceId(static_cast<std::uint32_t>(piece));
      request.header.slot = 1;  // parameters and one slot, three elements each
      request.payload = as_payload(*values);
      request.owner = values;
      requests.push_back(std::move(request));
    }
    return requests;
  }
  StoreRequest read(std::uint32_t piece, std::uint32_t slot, std::vector<float>* to) {
    StoreRequest request;
    request.address = "server:1";
    request.header.operation = StoreOperation::kRead;
    request.header.snapshot = kSnapshot;
    request.header.piece = PieceId(piece);
    request.header.slot = slot;
    request.on_data = [to](const Bytes& data) {
      to->resize(data.size() / sizeof(float));
      copy_payload(data, *to);
      return absl::OkStatus();
    };
    return request;
  }

  std::unique_ptr<MemoryNetwork> network_;
  Transport* server_ = nullptr;
  Transport* client_ = nullptr;
  std::unique_ptr<BackgroundOnLoop> disk_;
  std::unique_ptr<CheckpointKeeper> keeper_;
  RefusalCounts refusals_;
  std::vector<std::string> logged_;
  std::unique_ptr<StoreService> service_;
  std::unique_ptr<StoreTransfer> transfer_;
  std::size_t asked_second_ = 0;
};

TEST_F(StoreServiceTest, GivesBackWhatItWasGivenThroughCutsAndDelays) {
  build({.max_delay = Milliseconds(30), .cut = 0.05});
  ASSERT_TRUE(run(writes()).ok());
  std::vector<std::vector<float>> got(2 * kPieces);
  std::vector<StoreRequest> reads;
  for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
    reads.push_back(read(piece, 0, &got[2 * piece]));
    reads.push_back(read(piece, 1, &got[2 * piece + 1]));
  }
  const absl::Status status = run(std::move(reads));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(got[0], ElementsAre(0, 1, 2));
  EXPECT_THAT(got[17], ElementsAre(83, 84, 85));
  EXPECT_GT(network_->cuts(), 0);
}

TEST_F(StoreServiceTest, SilentStreamsMakeRoomForThoseThatAsk) {
  struct Silent final : StreamHandler {
    ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
    void on_written() override {}
    void on_closed(const absl::Status& status) override { end = status; }
    std::optional<absl::Status> end;
  };
  build({});
  std::vector<std::pair<Silent, std::unique_ptr<Stream>>> silent(kMaxStoreSessions);
  for (auto& [handler, stream] : silent) stream = client_->connect("server:1", &handler);
  ASSERT_TRUE(run(writes()).ok());
  const auto closed = [&silent] {
    return std::count_if(silent.begin(), silent.end(),
                         [](const auto& one) { return one.first.end.has_value(); });
  };
  EXPECT_EQ(closed(), 1);
  ASSERT_TRUE(silent.front().first.end) << "the one that has been there for longest";
  EXPECT_EQ(silent.front().first.end->code(), absl::StatusCode::kUnavailable);
  while (network_->step()) {
  }
  ASSERT_TRUE(run(writes()).ok());
  EXPECT_EQ(closed(), 1) << "the first transfer has left its place";
}

TEST_F(StoreServiceTest, SaysWhatItDoesNotHave) {
  build({});
  std::vector<float> nothing;
  const absl::Status status = run({read(3, 0, &nothing)});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("server:1"));
}

TEST_F(StoreServiceTest, RefusesPiecesOfAnotherEpochAndOfOddSize) {
  build({});
  auto requests = writes();
  requests.resize(1);
  requests[0].header.snapshot = snapshot_id(Epoch(4), 40);
  EXPECT_EQ(run(std::move(requests)).code(), absl::StatusCode::kFailedPrecondition);
  requests = writes();
  requests.resize(1);
  requests[0].payload = requests[0].payload.subspan(0, 20);
  const absl::Status status = run(std::move(requests));
  EXPECT_THAT(std::string(status.message()), HasSubstr("20 bytes with 2 slots"));
}

TEST_F(StoreServiceTest, AStoreThatIsNotThereIsNamed) {
  build({});
  std::vector<float> nothing;
  StoreRequest request = read(0, 0, &nothing);
  request.address = "elsewhere:1";
  const absl::Status status = run({std::move(request)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("elsewhere:1"));
}

TEST_F(StoreServiceTest, AnErrorOfTheTakerEndsTheTransfer) {
  build({});
  ASSERT_TRUE(run(writes()).ok());
  std::vector<float> nothing;
  StoreRequest request = read(0, 0, &nothing);
  request.on_data = [](const Bytes&) { return absl::InvalidArgumentError("does not fit"); };
  EXPECT_THAT(std::string(run({std::move(request)}).message()), HasSubstr("does not fit"));
}

TEST_F(StoreServiceTest, HoldsStatesAndGivesThemToWhoAsks) {
  build({.max_delay = Milliseconds(30), .cut = 0.05});
  const auto request = [](StoreOperation operation, Iteration iteration) {
    StoreRequest made;
    made.address = "server:1";
    made.header.operation = operation;
    made.header.snapshot = snapshot_id(kEpoch, iteration);
    return made;
  };
  std::vector<StoreRequest> holds;
  int stored = 0;
  for (const Iteration iteration : {6, 7, 8, 9}) {
    auto values = std::make_shared<std::vector<float>>(2, static_cast<float>(iteration));
    holds.push_back(request(StoreOperation::kHold, iteration));
    holds.back().payload = as_payload(*values);
    holds.back().owner = values;
    holds.back().on_stored = [&stored] { ++stored; };
  }
  ASSERT_TRUE(run(std::move(holds)).ok());
  EXPECT_EQ(stored, 4);
  std::vector<float> got;
  StoreRequest ask = request(StoreOperation::kReadHeld, 8);
  ask.on_data = [&got](const Bytes& data) {
    got.resize(data.size() / sizeof(float));
    copy_payload(data, got);
    return absl::OkStatus();
  };
  ASSERT_TRUE(run({ask}).ok());
  EXPECT_THAT(got, ElementsAre(8, 8));
  ask.header.snapshot = snapshot_id(kEpoch, 6);
  const absl::Status gone = run({ask});
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("5-6 is not held"));
  StoreRequest odd = request(StoreOperation::kHold, 10);
  const std::vector<float> value(1);
  odd.payload = as_payload(value).subspan(1);
  EXPECT_EQ(run({odd}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusals_.of(DataRefusal::kSize), 1u);
  EXPECT_THAT(logged_, ElementsAre("client: size: a state of 3 bytes"));
}

TEST_F(StoreServiceTest, WhatIsRefusedIsCountedAndSaysWhoseItIs) {
  build({});
  const auto say = [&](const std::string& bytes) {
    testing_support::MutePeer stranger(client_, Milliseconds(0));
    const auto stream = client_->connect("server:1", &stranger);
    stream->write({.prefix = MessagePrefix(bytes)});
    while (network_->step()) {
    }
  };
  StoreHeader header;
  header.protocol_version = kProtocolVersion + 1;
  say(encode_prefix(header, 0).str());
  say("\xff\xff\xff\xff\xff\xff");
  header.protocol_version = kProtocolVersion;
  header.operation = StoreOperation::kData;
  say(encode_prefix(header, 0).str());
  EXPECT_EQ(refusals_.of(DataRefusal::kVersion), 1u);
  EXPECT_EQ(refusals_.of(DataRefusal::kMalformed), 1u);
  EXPECT_EQ(refusals_.of(DataRefusal::kKind), 1u);
  EXPECT_THAT(logged_, ElementsAre(HasSubstr("client: protocol_version: protocol version "),
                                   HasSubstr("client: malformed: not a StoreMessage"),
                                   "client: kind: an answer where a request belongs"));
}

/// The same with a second server, whose store has the pieces that the first does not give.
class SecondStoreTest : public StoreServiceTest {
 protected:
  void build_both(const MemoryFaults& faults) {
    build(faults);
    Transport* second = &network_->endpoint("second");
    second_disk_ = std::make_unique<BackgroundOnLoop>(second, Milliseconds(5));
    second_keeper_ = std::make_unique<CheckpointKeeper>(std::make_unique<MemoryChunkStore>(),
                                                        second_disk_.get());
    second_service_ =
        std::make_unique<StoreService>(second, second_keeper_.get(), &refusals_, RefusalLog());
    ASSERT_TRUE(second->listen("second:1", second_service_.get()).ok());
    second_keeper_->begin(kEpoch, kPieces, nullptr);
    auto requests = writes();
    for (StoreRequest& request : requests) request.address = "second:1";
    ASSERT_TRUE(run(std::move(requests)).ok());
  }
  /// Reads all parameters, from `first` and else from `second`.
  absl::Status read_all(const std::string& first, const std::string& second) {
    got_.assign(kPieces, {});
    std::vector<StoreRequest> reads;
    for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
      reads.push_back(read(piece, 0, &got_[piece]));
      reads.back().address = first;
      reads.back().second_address = second;
    }
    return run(std::move(reads));
  }
  void expect_all() {
    for (int piece = 0; piece < kPieces; ++piece) {
      const auto base = static_cast<float>(10 * piece);
      EXPECT_THAT(got_[static_cast<std::size_t>(piece)], ElementsAre(base, base + 1, base + 2));
    }
  }

  std::unique_ptr<BackgroundOnLoop> second_disk_;
  std::unique_ptr<CheckpointKeeper> second_keeper_;
  std::unique_ptr<StoreService> second_service_;
  std::vector<std::vector<float>> got_;
};

TEST_F(SecondStoreTest, IsAskedForWhatTheFirstDoesNotHave) {
  build_both({.max_delay = Milliseconds(30), .cut = 0.05});
  const absl::Status status = read_all("server:1", "second:1");
  ASSERT_TRUE(status.ok()) << status;
  expect_all();
  EXPECT_EQ(asked_second_, std::size_t{kPieces});
}

TEST_F(SecondStoreTest, IsAskedWhenTheFirstIsGone) {
  build_both({});
  const Nanoseconds begin = client_->now();
  const absl::Status status = read_all("elsewhere:1", "second:1");
  ASSERT_TRUE(status.ok()) << status;
  expect_all();
  EXPECT_LT(client_->now() - begin, StoreTransferOptions().give_up_after);
}

TEST_F(SecondStoreTest, IsNotAskedWhenTheFirstHasIt) {
  build_both({});
  ASSERT_TRUE(run(writes()).ok());
  ASSERT_TRUE(read_all("server:1", "second:1").ok());
  expect_all();
  EXPECT_EQ(asked_second_, 0u);
}

TEST_F(SecondStoreTest, IsAskedWhenWhatCameWasDamaged) {
  build_both({});
  ASSERT_TRUE(run(writes()).ok());
  std::vector<float> got;
  StoreRequest request = read(4, 0, &got);
  request.second_address = "second:1";
  int taken = 0;
  request.on_data = [&, take = request.on_data](const Bytes& data) {
    return ++taken == 1 ? absl::DataLossError("of another length") : take(data);
  };
  ASSERT_TRUE(run({std::move(request)}).ok());
  EXPECT_THAT(got, ElementsAre(40, 41, 42));
}

TEST_F(SecondStoreTest, BothReasonsAreSaidWhenNeitherHasIt) {
  build_both({});
  const absl::Status status = read_all("server:1", "nowhere:1");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nowhere:1 did not answer"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("server:1: no piece"));
}

}  // namespace
}  // namespace poseidon::store_service_test
