// What the service sends first. How it takes messages: shard_service_test.cc, over gRPC.

#include "sync/chunks/chunk_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/toy_plan.h"

namespace poseidon::chunk_service_test {
namespace {

using ::testing::ElementsAre;
using testing_support::toy_plan;

constexpr std::uint32_t kChunks = 6;

Bytes bytes_of(std::string text) {
  auto memory = std::make_shared<std::string>(std::move(text));
  Bytes bytes;
  bytes.pieces = {
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(memory->data()), memory->size())};
  bytes.owner = std::move(memory);
  return bytes;
}

/// Everything at once, and nothing later: the tests need no timer.
class StillTransport final : public Transport {
 public:
  void post(std::function<void()> function) override { function(); }
  void post_after(Nanoseconds /*delay*/, std::function<void()> /*function*/) override {}
  Nanoseconds now() const override { return Nanoseconds{0}; }
  std::unique_ptr<Stream> connect(const std::string& /*address*/,
                                  StreamHandler* /*handler*/) override {
    return nullptr;
  }
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* /*acceptor*/) override {
    return address;
  }
};

/// Takes writes, and confirms them when the test says so.
class SlowStream final : public Stream {
 public:
  /// `closed` may be null: then nobody may close it.
  explicit SlowStream(std::vector<std::uint32_t>* written,
                      std::optional<absl::Status>* closed = nullptr)
      : written_(written), closed_(closed) {}
  void write(OutgoingMessage message) override {
    std::string text(message.prefix.view());
    text.append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
    const auto decoded = decode_chunk(bytes_of(std::move(text)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    written_->push_back(decoded->header.chunk.value());
  }
  void resume_reads() override {}
  void close(const absl::Status& status) override {
    ASSERT_NE(closed_, nullptr) << status;
    *closed_ = status;
  }
  std::string peer() const override { return "worker"; }

 private:
  std::vector<std::uint32_t>* const written_;
  std::optional<absl::Status>* const closed_;
};

/// Answers each question with the chunk's parameters, in float32 where `exact` says so.
class Holder final : public ChunkHolder {
 public:
  explicit Holder(Plan plan) : plan_(std::move(plan)) {}
  ChunkDecision on_message(const DecodedChunk& message) override {
    ++messages_;
    ChunkDecision decision;
    decision.delivery = Delivery{.chunk = message.header.chunk,
                                 .only = message.header.rank,
                                 .exact = message.header.element_type == ElementType::kFloat32};
    return decision;
  }
  bool may_read(WorkerRank /*rank*/) const override { return true; }
  ChunkPayload payload(ChunkId /*chunk*/, bool /*exact*/) const override {
    return {.type = ElementType::kFloat32, .bytes = as_payload(values_), .owner = nullptr};
  }
  Iteration version(ChunkId /*chunk*/) const override { return 1; }
  Norms norms(ChunkId /*chunk*/) const override { return {}; }
  const Plan& plan() const override { return plan_; }
  std::int64_t pending_bytes() const override { return 0; }
  std::uint32_t fan_out_start() const override { return 0; }
  int messages() const { return messages_; }

 private:
  int messages_ = 0;
  const Plan plan_;
  const std::vector<float> values_ = std::vector<float>(4, 1.0f);
};

class ChunkServiceOrder : public ::testing::Test {
 protected:
  /// One worker, one layer for each chunk.
  void open(SendOrder order) {
    Plan plan = toy_plan(1, 1, std::vector<std::int64_t>(kChunks, 4), 4);
    plan.send_order = order;
    holder_ = std::make_unique<Holder>(plan);
    service_.open(holder_.get(), &traffic_);
    handler_ = service_.on_accept(std::make_unique<SlowStream>(&written_));
  }
  void ask(std::uint32_t chunk, ElementType type = ElementType::kNone) {
    ChunkHeader header;
    header.element_type = type;
    header.epoch = holder_->plan().epoch;
    header.rank = WorkerRank(0);
    header.chunk = ChunkId(chunk);
    handler_->on_message(bytes_of(std::string(encode_prefix(header, 0).view())));
  }
  const std::vector<std::uint32_t>& written_to_the_end() {
    for (std::uint32_t i = 0; i < kChunks; ++i) handler_->on_written();
    return written_;
  }

  StillTransport transport_;
  RefusalCounts refusals_;
  TrafficProbe traffic_{kChunks};
  std::unique_ptr<Holder> holder_;
  std::vector<std::uint32_t> written_;
  ChunkService service_{&transport_, &refusals_, RelayEnd::kNone, {}, {}};
  StreamHandler* handler_ = nullptr;
};

// Backward makes the last layer's gradient first, forward needs the first layer's parameters first.
TEST_F(ChunkServiceOrder, WhatTheNextForwardNeedsFirstOvertakesWhatWasReadyFirst) {
  open(SendOrder::kNeed);
  ask(5);
  EXPECT_THAT(written_, ElementsAre(5)) << "nothing else was there";
  for (const std::uint32_t chunk : {4, 1, 3, 1}) ask(chunk);
  EXPECT_THAT(written_, ElementsAre(5)) << "one at a time";
  EXPECT_THAT(written_to_the_end(), ElementsAre(5, 1, 3, 4));
}

TEST_F(ChunkServiceOrder, UnlessThePlanWantsWhatWasReadyFirst) {
  open(SendOrder::kReady);
  for (const std::uint32_t chunk : {5, 4, 1, 3}) ask(chunk);
  EXPECT_THAT(written_to_the_end(), ElementsAre(5, 4, 1, 3));
}

// For the model, once training is over: no forward pass waits for them.
TEST_F(ChunkServiceOrder, ExactParametersGoWhenNothingElseWaits) {
  open(SendOrder::kNeed);
  ask(5);
  ask(0, ElementType::kFloat32);
  ask(4);
  ask(3);
  EXPECT_THAT(written_to_the_end(), ElementsAre(5, 3, 4, 0));
}

/// Two workers whose streams have to show what the coordinator drew.
class ChunkServiceProof : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kProofs[] = {11, 22};
  /// One stream, and what it was told at its end.
  struct Caller {
    StreamHandler* handler = nullptr;
    std::vector<std::uint32_t> written;
    std::optional<absl::Status> closed;
  };

  ChunkServiceProof() {
    Plan plan = toy_plan(2, 1, std::vector<std::int64_t>(kChunks, 4), 4);
    plan.proofs.expected.assign(std::begin(kProofs), std::end(kProofs));
    holder_ = std::make_unique<Holder>(plan);
    service_.open(holder_.get(), &traffic_);
  }
  std::unique_ptr<Caller> call() {
    auto caller = std::make_unique<Caller>();
    caller->handler =
        service_.on_accept(std::make_unique<SlowStream>(&caller->written, &caller->closed));
    return caller;
  }
  void push(Caller& caller, std::uint32_t rank, std::uint64_t proof) {
    ChunkHeader header;
    header.kind = ChunkKind::kPushGradient;
    header.element_type = ElementType::kFloat32;
    header.epoch = holder_->plan().epoch;
    header.rank = WorkerRank(rank);
    header.proof = proof;
    caller.handler->on_message(
        bytes_of(std::string(encode_prefix(header, 16).view()) + std::string(16, '\0')));
  }

  StillTransport transport_;
  RefusalCounts refusals_;
  TrafficProbe traffic_{kChunks};
  std::unique_ptr<Holder> holder_;
  ChunkService service_{&transport_, &refusals_, RelayEnd::kNone, {}, {}};
};

TEST_F(ChunkServiceProof, WhoDoesNotShowItPushesNothingAndDisplacesNobody) {
  const auto worker = call();
  push(*worker, 1, 22);
  ASSERT_EQ(holder_->messages(), 1);
  EXPECT_EQ(worker->written.size(), 1U);
  for (const std::uint64_t proof : {0, 11, 23}) {  // none, that of another worker, a guess
    const auto stranger = call();
    push(*stranger, 1, proof);
    ASSERT_TRUE(stranger->closed.has_value()) << proof;
    EXPECT_TRUE(absl::IsInvalidArgument(*stranger->closed)) << *stranger->closed;
    EXPECT_THAT(std::string(stranger->closed->message()),
                testing::HasSubstr("refused (proof): a stream as worker 1"));
  }
  EXPECT_EQ(refusals_.of(DataRefusal::kProof), 3U);
  EXPECT_EQ(holder_->messages(), 1) << "a gradient was taken from a stranger";
  EXPECT_FALSE(worker->closed.has_value()) << *worker->closed;
  push(*worker, 1, 0);  // on the same stream it need not be shown again
  EXPECT_EQ(holder_->messages(), 2);
}

TEST_F(ChunkServiceProof, AWorkerWhoseStreamBrokeAtItsEndTakesItsPlaceAgain) {
  const auto before = call();
  push(*before, 0, 11);
  const auto after = call();
  push(*after, 0, 11);
  EXPECT_FALSE(after->closed.has_value());
  ASSERT_TRUE(before->closed.has_value());
  EXPECT_TRUE(absl::IsAborted(*before->closed)) << *before->closed;
  EXPECT_EQ(holder_->messages(), 2);
}

}  // namespace
}  // namespace poseidon::chunk_service_test
