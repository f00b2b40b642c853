// The shard service on the real transport, spoken to by a stock protobuf/gRPC client, by two real
// synchronisation clients, and by peers that mean harm.

#include "server/shard/shard_service.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/random.h"
#include "common/grpc/grpc_transport.h"
#include "common/tensor/float16.h"
#include "common/transport/paced_transport.h"
#include "gmock/gmock.h"
#include "poseidon/v1/data.grpc.pb.h"
#include "sync/client/sync_client.h"
#include "tests/support/eventually.h"
#include "tests/support/toy_plan.h"

namespace poseidon::shard_service_test {
namespace {

using ::testing::HasSubstr;
using testing_support::toy_plan;

std::string as_string(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class ShardServiceTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kElements =
      700000;  // 2.8 MB: one whole and one short chunk of 2 MiB

  ShardServiceTest() : service_(&transport_, &refusals_, {}) {
    address_ = *transport_.listen("127.0.0.1:0", &service_);
    grpc_.start();
    optimizer_.learning_rate = 0.5;
  }
  ~ShardServiceTest() override { grpc_.stop(); }  // its loop uses the service

  void assign(std::uint32_t workers, ElementType wire_type = ElementType::kFloat32) {
    plan_ = toy_plan(workers, 1, {kElements, 3}, 524288);
    plan_.wire_type = wire_type;
    plan_.server_addresses = {address_};
    auto assigned = std::make_shared<std::promise<void>>();
    traffic_ = std::make_shared<TrafficProbe>(plan_.layers.size());
    service_.assign(plan_, ServerIndex(0), optimizer_, traffic_,
                    [assigned] { assigned->set_value(); });
    assigned->get_future().wait();
  }

  v1::ChunkMessage message(v1::ChunkKind kind, std::uint32_t chunk, Iteration iteration,
                           float value = 0.0f) {
    v1::ChunkMessage m;
    m.set_protocol_version(kProtocolVersion);
    m.set_kind(kind);
    m.set_epoch(plan_.epoch.value());
    m.set_iteration(static_cast<std::uint64_t>(iteration));
    m.set_chunk_id(chunk);
    m.set_offset(static_cast<std::uint64_t>(plan_.chunks[chunk].offset));
    if (kind != v1::CHUNK_KIND_PULL) {
      const auto elements = static_cast<std::size_t>(plan_.chunks[chunk].elements);
      if (kind == v1::CHUNK_KIND_INITIALISE || plan_.wire_type == ElementType::kFloat32) {
        m.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
        m.set_payload(as_string(std::vector<float>(elements, value)));
      } else {
        m.set_element_type(static_cast<v1::ElementType>(plan_.wire_type));
        m.set_payload(in_16_bits(value, elements));
      }
    }
    return m;
  }

  /// So many times the value, as a client of another language would write it.
  std::string in_16_bits(float value, std::size_t elements) const {
    const std::uint16_t bits =
        plan_.wire_type == ElementType::kBfloat16 ? to_bfloat16(value) : to_float16(value);
    std::string bytes;
    for (std::size_t i = 0; i < elements; ++i) {
      bytes.push_back(static_cast<char>(bits & 0xFF));
      bytes.push_back(static_cast<char>(bits >> 8));
    }
    return bytes;
  }

  /// What a refused message gets: the status of its stream.
  grpc::Status status_after(const v1::ChunkMessage& bad) {
    auto stub = stock_stub();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    auto stream = stub->Exchange(&context);
    stream->Write(bad);
    v1::ChunkMessage answer;
    EXPECT_FALSE(stream->Read(&answer));
    return stream->Finish();
  }

  std::unique_ptr<v1::ParameterServer::Stub> stock_stub() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return v1::ParameterServer::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }

  // As the daemon has it: stock clients speak to it as well as our own.
  const std::unique_ptr<SharedArena> arena_ = *SharedArena::create(1 << 20);
  GrpcTransport grpc_;
  PacedTransport transport_{&grpc_, arena_.get()};
  RefusalCounts refusals_;
  ShardService service_;
  std::string address_;
  OptimizerSpec optimizer_;
  Plan plan_;
  std::shared_ptr<TrafficProbe> traffic_;
};

TEST_F(ShardServiceTest, AStockGrpcClientTrains) {
  assign(1);
  auto stub = stock_stub();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  auto stream = stub->Exchange(&context);
  for (std::uint32_t c = 0; c < plan_.chunks.size(); ++c) {
    ASSERT_TRUE(stream->Write(message(v1::CHUNK_KIND_INITIALISE, c, 0, 8.0f)));
    v1::ChunkMessage echo;
    ASSERT_TRUE(stream->Read(&echo));
    EXPECT_EQ(echo.kind(), v1::CHUNK_KIND_PARAMETERS);
    EXPECT_EQ(echo.payload(), message(v1::CHUNK_KIND_INITIALISE, c, 0, 8.0f).payload());
  }
  float expected = 8.0f;
  for (Iteration i = 0; i < 5; ++i) {
    expected -= 0.5f * 0.25f;
    for (std::uint32_t c = 0; c < plan_.chunks.size(); ++c) {
      ASSERT_TRUE(stream->Write(message(v1::CHUNK_KIND_PUSH_GRADIENT, c, i, 0.25f)));
      v1::ChunkMessage fresh;
      ASSERT_TRUE(stream->Read(&fresh));
      EXPECT_EQ(fresh.protocol_version(), kProtocolVersion);
      EXPECT_EQ(fresh.iteration(), static_cast<std::uint64_t>(i) + 1);
      EXPECT_EQ(fresh.chunk_id(), c);
      EXPECT_EQ(fresh.element_type(), v1::ELEMENT_TYPE_FLOAT32);
      EXPECT_EQ(fresh.payload(),
                as_string(std::vector<float>(static_cast<std::size_t>(plan_.chunks[c].elements),
                                             expected)));
    }
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ShardServiceTest, AStockGrpcClientTrainsInSixteenBits) {
  for (const auto wire_type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    assign(1, wire_type);
    const auto chunks = static_cast<std::uint32_t>(plan_.chunks.size());
    const auto elements = [this](std::uint32_t c) {
      return static_cast<std::size_t>(plan_.chunks[c].elements);
    };
    auto stub = stock_stub();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    auto stream = stub->Exchange(&context);
    v1::ChunkMessage answer;
    for (std::uint32_t c = 0; c < chunks; ++c) {
      ASSERT_TRUE(stream->Write(message(v1::CHUNK_KIND_INITIALISE, c, 0, 0.1f)));
      ASSERT_TRUE(stream->Read(&answer));
      EXPECT_EQ(static_cast<ElementType>(answer.element_type()), wire_type);
      EXPECT_EQ(answer.payload(), in_16_bits(0.1f, elements(c)));
    }
    float exact = 0.1f;
    for (Iteration i = 0; i < 5; ++i) {
      exact -= 0.5f * 0.0625f;  // a gradient that 16 bits hold
      for (std::uint32_t c = 0; c < chunks; ++c) {
        ASSERT_TRUE(stream->Write(message(v1::CHUNK_KIND_PUSH_GRADIENT, c, i, 0.0625f)));
        ASSERT_TRUE(stream->Read(&answer));
        EXPECT_EQ(answer.iteration(), static_cast<std::uint64_t>(i) + 1);
        EXPECT_EQ(static_cast<ElementType>(answer.element_type()), wire_type);
        ASSERT_EQ(answer.payload(), in_16_bits(exact, elements(c))) << "of the exact parameters";
      }
    }
    for (std::uint32_t c = 0; c < chunks; ++c) {
      v1::ChunkMessage pull = message(v1::CHUNK_KIND_PULL, c, 5);
      ASSERT_TRUE(stream->Write(pull));
      ASSERT_TRUE(stream->Read(&answer));
      EXPECT_EQ(answer.payload(), in_16_bits(exact, elements(c)));
      pull.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
      ASSERT_TRUE(stream->Write(pull));
      ASSERT_TRUE(stream->Read(&answer));
      EXPECT_EQ(answer.element_type(), v1::ELEMENT_TYPE_FLOAT32);
      EXPECT_EQ(answer.payload(), as_string(std::vector<float>(elements(c), exact)));
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
}

/// A worker without an engine: its gradient is its rank + 1 everywhere, or as given.
class PlainWorker {
 public:
  PlainWorker(const Plan& plan, std::uint32_t rank)
      : PlainWorker(plan, rank, static_cast<float>(rank + 1)) {}
  PlainWorker(const Plan& plan, std::uint32_t rank, float gradient)
      : plan_(plan), gradient_(gradient) {
    grpc_.start();
    std::vector<LayerMemory> layers;
    for (const PlanLayer& layer : plan.layers) {
      parameters_.emplace_back(layer.parameters);
      gradients_.emplace_back(layer.parameters);
      std::ranges::fill(parameters_.back().floats(), rank == 0 ? 1.0f : -1.0f);
      layers.push_back(
          {parameters_.back().floats(), gradients_.back().floats(), gradients_.back().owner()});
    }
    traffic_ = std::make_unique<TrafficProbe>(plan.layers.size());
    client_ = std::make_unique<SyncClient>(&transport_, plan, WorkerRank(rank), std::move(layers),
                                           SyncClientOptions{}, traffic_.get(), &refusals_);
  }

  absl::Status train(Iteration iterations) {
    client_->start();
    for (Iteration i = 0; i < iterations; ++i) {
      if (absl::Status s = client_->wait_all_parameters(i); !s.ok()) return s;
      for (std::size_t l = plan_.layers.size(); l-- > 0;) {
        std::ranges::fill(gradients_[l].floats(), gradient_);
        client_->gradient_ready(LayerIndex(static_cast<std::uint32_t>(l)), i);
      }
    }
    if (absl::Status s = client_->wait_all_parameters(iterations); !s.ok()) return s;
    rounded_.clear();
    for (const FloatBuffer& layer : parameters_) rounded_.push_back(layer.floats()[0]);
    return client_->finish(iterations);
  }
  /// The first parameter of the layer as it was before the exact ones were fetched.
  float rounded(std::size_t layer) const { return rounded_[layer]; }
  std::span<const float> parameters(std::size_t layer) const { return parameters_[layer].floats(); }
  const TrafficProbe& traffic() const { return *traffic_; }

 private:
  const Plan plan_;
  const float gradient_;
  const std::unique_ptr<SharedArena> arena_ = *SharedArena::create(1 << 20);
  GrpcTransport grpc_;
  PacedTransport transport_{&grpc_, arena_.get()};
  RefusalCounts refusals_;
  std::vector<FloatBuffer> parameters_, gradients_;
  std::vector<float> rounded_;
  std::unique_ptr<TrafficProbe> traffic_;
  std::unique_ptr<SyncClient> client_;
};

TEST_F(ShardServiceTest, TwoSyncClientsTrainTogetherAndEveryByteIsCounted) {
  assign(2);
  PlainWorker first(plan_, 0), second(plan_, 1);
  constexpr Iteration kIterations = 20;
  auto other = std::async(std::launch::async, [&] { return second.train(kIterations); });
  const absl::Status status = first.train(kIterations);
  ASSERT_TRUE(status.ok()) << status;
  const absl::Status other_status = other.get();
  ASSERT_TRUE(other_status.ok()) << other_status;
  const float expected = 1.0f - 0.5f * 1.5f * static_cast<float>(kIterations);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (const PlainWorker* worker : {&first, &second}) {
      const auto values = worker->parameters(layer);
      ASSERT_TRUE(std::ranges::all_of(values, [&](float v) { return v == expected; }));
    }
  }
  const std::uint64_t layer_bytes = kElements * sizeof(float);
  EXPECT_EQ(second.traffic().sent_bytes(LayerIndex(0)), kIterations * layer_bytes);
  EXPECT_EQ(second.traffic().received_bytes(LayerIndex(0)), (kIterations + 1) * layer_bytes);
  EXPECT_EQ(traffic_->received_bytes(LayerIndex(0)), (2 * kIterations + 1) * layer_bytes);
  // 3 chunks: of each iteration one contribution is summed and the other makes the step.
  EXPECT_EQ(traffic_->node().stage(Stage::kSum).count(), 3u * kIterations);
  EXPECT_EQ(traffic_->node().stage(Stage::kStep).count(), 3u * kIterations);
  // All of it is of the one or the other layer.
  EXPECT_GT(traffic_->aggregation_seconds(LayerIndex(0)), 0.0);
  EXPECT_NEAR(
      traffic_->aggregation_seconds(LayerIndex(0)) + traffic_->aggregation_seconds(LayerIndex(1)),
      traffic_->node().stage(Stage::kSum).seconds() +
          traffic_->node().stage(Stage::kStep).seconds(),
      1e-6);
  EXPECT_EQ(traffic_->node().value(NodeGauge::kStreams), 2);
  EXPECT_EQ(traffic_->node().value(NodeGauge::kPausedStreams), 0);
  EXPECT_EQ(traffic_->node().value(NodeGauge::kEarlyGradientBytes), 0);
  EXPECT_EQ(second.traffic().sync(LayerIndex(0)).count(), static_cast<std::uint64_t>(kIterations));
  EXPECT_GT(second.traffic().sync(LayerIndex(0)).seconds(), 0.0);
}

TEST_F(ShardServiceTest, StreamsAndQueuesAreCountedWhileTheyLast) {
  assign(1);
  NodeProbe& node = traffic_->node();
  {
    auto stub = stock_stub();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    auto stream = stub->Exchange(&context);
    ASSERT_TRUE(stream->Write(message(v1::CHUNK_KIND_INITIALISE, 0, 0, 1.0f)));
    v1::ChunkMessage answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(node.value(NodeGauge::kStreams), 1);
    context.TryCancel();
    while (stream->Read(&answer)) continue;
  }
  EXPECT_TRUE(testing_support::eventually([&] { return node.value(NodeGauge::kStreams) == 0; }));
  EXPECT_EQ(node.value(NodeGauge::kSendQueue), 0);
}

TEST_F(ShardServiceTest, TwoSyncClientsTrainInSixteenBitsAndEndExactly) {
  for (const auto wire_type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    optimizer_.learning_rate = 0.001;  // steps that 16 bits cannot hold beside 1
    assign(2, wire_type);
    PlainWorker first(plan_, 0), second(plan_, 1);
    constexpr Iteration kIterations = 20;
    auto other = std::async(std::launch::async, [&] { return second.train(kIterations); });
    const absl::Status status = first.train(kIterations);
    ASSERT_TRUE(status.ok()) << status;
    const absl::Status other_status = other.get();
    ASSERT_TRUE(other_status.ok()) << other_status;
    const OptimizerStep step = make_optimizer_step(optimizer_, 0, 0.5f);
    float expected = 1.0f;
    for (Iteration i = 0; i < kIterations; ++i) {
      expected -= step.learning_rate * (3.0f * step.gradient_scale);
    }
    for (const PlainWorker* worker : {&first, &second}) {
      for (std::size_t layer = 0; layer < 2; ++layer) {
        const auto values = worker->parameters(layer);
        ASSERT_TRUE(std::ranges::all_of(values, [&](float v) { return v == expected; }))
            << values[0] << " instead of " << expected;
        EXPECT_EQ(worker->rounded(layer), wire_type == ElementType::kBfloat16
                                              ? from_bfloat16(to_bfloat16(expected))
                                              : from_float16(to_float16(expected)));
        EXPECT_NE(worker->rounded(layer), expected);
      }
    }
    const std::uint64_t wide = kElements * 4, narrow = kElements * 2;
    EXPECT_EQ(second.traffic().sent_bytes(LayerIndex(0)), kIterations * narrow);
    EXPECT_EQ(second.traffic().received_bytes(LayerIndex(0)), (kIterations + 1) * narrow + wide);
    EXPECT_EQ(traffic_->received_bytes(LayerIndex(0)), 2 * kIterations * narrow + wide);
    // A chunk is sent once more to the second worker when its first pull crosses the initial
    // parameters that go to all workers.
    const std::uint64_t once = 2 * ((kIterations + 1) * narrow + wide);
    EXPECT_GE(traffic_->sent_bytes(LayerIndex(0)), once);
    EXPECT_LE(traffic_->sent_bytes(LayerIndex(0)), once + narrow);
  }
}

TEST_F(ShardServiceTest, ParametersThatTheWireTypeCannotCarryStopEveryWorkerByName) {
  assign(2, ElementType::kFloat16);
  optimizer_.learning_rate = 0.5;
  PlainWorker first(plan_, 0, 65000.0f), second(plan_, 1, 65504.0f);
  auto other = std::async(std::launch::async, [&] { return second.train(20); });
  for (const absl::Status& status : {first.train(20), other.get()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("not_finite"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("of layer layer"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("set sync.wire_dtype to \"bf16\""));
  }
}

TEST_F(ShardServiceTest, HostileMessagesInSixteenBitsAreRefused) {
  assign(1, ElementType::kBfloat16);
  PlainWorker worker(plan_, 0);
  ASSERT_TRUE(worker.train(3).ok());
  const std::vector<float> before(worker.parameters(1).begin(), worker.parameters(1).end());
  const auto refused = [&](const v1::ChunkMessage& m, DataRefusal reason) {
    const grpc::Status status = status_after(m);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(data_refusal_name(reason)));
  };
  const auto good = message(v1::CHUNK_KIND_PUSH_GRADIENT, 2, 3, 1.0f);
  auto m = good;
  m.set_payload(m.payload() + "1");
  refused(m, DataRefusal::kSize);
  m.set_payload(std::string(5, 'x'));
  refused(m, DataRefusal::kSize);
  m.set_payload(std::string(12, 'x'));
  refused(m, DataRefusal::kSize);
  m.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  refused(m, DataRefusal::kElementType);
  m = good;
  m.set_element_type(v1::ELEMENT_TYPE_FLOAT16);
  refused(m, DataRefusal::kElementType);
  m = message(v1::CHUNK_KIND_PULL, 2, 3);
  m.set_element_type(v1::ELEMENT_TYPE_BFLOAT16);
  refused(m, DataRefusal::kElementType);
  m.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  m.set_payload("xx");
  refused(m, DataRefusal::kSize);
  m = message(v1::CHUNK_KIND_PULL, 2, 4);
  m.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  refused(m, DataRefusal::kIteration);
  EXPECT_TRUE(std::ranges::equal(worker.parameters(1), before));
}

TEST_F(ShardServiceTest, HostileMessagesAreRefusedCountedAndHarmNobody) {
  assign(1);
  PlainWorker worker(plan_, 0);
  ASSERT_TRUE(worker.train(3).ok());
  const std::vector<float> before(worker.parameters(1).begin(), worker.parameters(1).end());

  const auto good = message(v1::CHUNK_KIND_PUSH_GRADIENT, 2, 3, 1.0f);
  const auto refused = [&](const v1::ChunkMessage& m, DataRefusal reason, const char* words) {
    const std::uint64_t count = refusals_.of(reason);
    const grpc::Status status = status_after(m);
    const bool may_pass = reason == DataRefusal::kEpoch;
    EXPECT_EQ(status.error_code(),
              may_pass ? grpc::StatusCode::ABORTED : grpc::StatusCode::INVALID_ARGUMENT)
        << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(data_refusal_name(reason)));
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    EXPECT_EQ(refusals_.of(reason), count + 1);
  };
  auto m = good;
  m.set_protocol_version(kProtocolVersion + 1);
  refused(m, DataRefusal::kVersion, "same Poseidon version");
  m = good;
  m.set_epoch(4);
  refused(m, DataRefusal::kEpoch, "epoch 4");
  m = good;
  m.set_worker_rank(1);
  refused(m, DataRefusal::kRank, "worker rank 1");
  m = good;
  m.set_chunk_id(999);
  refused(m, DataRefusal::kChunk, "chunk 999");
  m = good;
  m.set_offset(1);
  refused(m, DataRefusal::kOffset, "offset 1");
  m = good;
  m.set_payload(m.payload() + "1234");
  refused(m, DataRefusal::kSize, "16 bytes");
  m = good;
  m.set_iteration(77);
  refused(m, DataRefusal::kIteration, "iteration 77");
  m = good;
  m.set_kind(v1::CHUNK_KIND_PARAMETERS);
  refused(m, DataRefusal::kKind, "not for a server");
  m = good;
  m.set_element_type(v1::ELEMENT_TYPE_UNSPECIFIED);
  refused(m, DataRefusal::kElementType, "element type");
  EXPECT_TRUE(std::ranges::equal(worker.parameters(1), before));
}

TEST_F(ShardServiceTest, OversizeMessagesEndTheirStreamOnly) {
  assign(1);
  v1::ChunkMessage huge = message(v1::CHUNK_KIND_PUSH_GRADIENT, 0, 0, 1.0f);
  huge.set_payload(std::string(static_cast<std::size_t>(kMaxMessageBytes) + 1, 'x'));
  EXPECT_FALSE(status_after(huge).ok());
  PlainWorker worker(plan_, 0);
  EXPECT_TRUE(worker.train(2).ok());
}

TEST_F(ShardServiceTest, GarbageOnThePortHarmsNobody) {
  assign(1);
  const int port = std::stoi(address_.substr(address_.rfind(':') + 1));
  SplitMix64 random(9);
  for (int i = 0; i < 20; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    std::string garbage = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (int k = 0; k < 3000; ++k) garbage.push_back(static_cast<char>(random.next()));
    (void)send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    close(fd);
  }
  PlainWorker worker(plan_, 0);
  EXPECT_TRUE(worker.train(3).ok());
}

TEST_F(ShardServiceTest, WithoutAnAssignmentEverythingIsRefused) {
  plan_ = toy_plan(1, 1, {4}, 4);
  const grpc::Status status = status_after(message(v1::CHUNK_KIND_PULL, 0, 0));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("no job at present"));
  EXPECT_EQ(refusals_.of(DataRefusal::kNoAssignment), 1u);
}

TEST_F(ShardServiceTest, AWorkerThatCannotReachItsServerSaysWho) {
  plan_ = toy_plan(1, 1, {4}, 4);
  plan_.server_addresses = {"127.0.0.1:1"};
  GrpcTransport transport;
  transport.start();
  RefusalCounts refusals;
  TrafficProbe traffic(1);
  FloatBuffer parameters(4), gradients(4);
  SyncClientOptions options;
  options.syncer.give_up_after = Milliseconds(300);
  SyncClient client(&transport, plan_, WorkerRank(0),
                    {{parameters.floats(), gradients.floats(), gradients.owner()}}, options,
                    &traffic, &refusals);
  client.start();
  const absl::Status status = client.wait_parameters(LayerIndex(0), 0);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("server 0 at 127.0.0.1:1"));
}

// The client alone: the test makes the events of the loop.
TEST(SyncClient, TellsWhoWaitsOfPiecesThatAreWorthIt) {
  const Plan plan = toy_plan(1, 1, {20, 3}, 4);
  GrpcTransport transport;
  transport.start();
  RefusalCounts refusals;
  TrafficProbe traffic(2);
  FloatBuffer parameters(20), gradients(20), others(3), other_gradients(3);
  SyncClient client(&transport, plan, WorkerRank(0),
                    {{parameters.floats(), gradients.floats(), gradients.owner()},
                     {others.floats(), other_gradients.floats(), other_gradients.owner()}},
                    {}, &traffic, &refusals);
  client.layer_landed({{.layer = LayerIndex(0), .version = 0}});
  client.chunk_landed({.layer = LayerIndex(0), .version = 1, .leading_elements = 4});  // too few
  std::binary_semaphore told_one(0), first_is_over(0);
  absl::Status failed;
  std::vector<std::int64_t> told;
  std::thread waiting([&] {
    const absl::Status status = client.wait_parameters(
        LayerIndex(0), 1, {.piece_elements = 8, .arrived = [&](std::int64_t elements) {
                             told.push_back(elements);
                             told_one.release();
                             return absl::OkStatus();
                           }});
    EXPECT_TRUE(status.ok()) << status;
    first_is_over.release();
    failed =
        client.wait_parameters(LayerIndex(0), 2, {.piece_elements = 8, .arrived = [](std::int64_t) {
                                                    return absl::InternalError("the GPU is gone");
                                                  }});
  });
  client.chunk_landed({.layer = LayerIndex(1), .version = 1, .leading_elements = 2});
  client.chunk_landed({.layer = LayerIndex(0), .version = 1, .leading_elements = 8});
  ASSERT_TRUE(told_one.try_acquire_for(std::chrono::seconds(30)));
  client.chunk_landed(
      {.layer = LayerIndex(0), .version = 1, .leading_elements = 12});  // too few since the last
  client.chunk_landed({.layer = LayerIndex(0), .version = 1, .leading_elements = 16});
  ASSERT_TRUE(told_one.try_acquire_for(std::chrono::seconds(30)));
  client.layer_landed({{.layer = LayerIndex(0), .version = 1}});
  ASSERT_TRUE(first_is_over.try_acquire_for(std::chrono::seconds(30)));
  client.chunk_landed({.layer = LayerIndex(0), .version = 2, .leading_elements = 20});
  waiting.join();
  EXPECT_THAT(told, ::testing::ElementsAre(8, 16));
  EXPECT_EQ(failed, absl::InternalError("the GPU is gone"));
}

TEST_F(ShardServiceTest, AWaitHasADeadlineAndNamesTheLayer) {
  assign(2);  // the second worker never comes
  GrpcTransport transport;
  transport.start();
  RefusalCounts refusals;
  TrafficProbe traffic(2);
  FloatBuffer big(kElements), big_gradient(kElements), small(3), small_gradient(3);
  SyncClientOptions options;
  options.wait_timeout = Milliseconds(300);
  SyncClient client(&transport, plan_, WorkerRank(0),
                    {{big.floats(), big_gradient.floats(), big.owner()},
                     {small.floats(), small_gradient.floats(), small.owner()}},
                    options, &traffic, &refusals);
  client.start();
  ASSERT_TRUE(client.wait_all_parameters(0).ok());
  client.gradient_ready(LayerIndex(1), 0);
  const absl::Status status = client.wait_parameters(LayerIndex(1), 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(address_));
}

}  // namespace
}  // namespace poseidon::shard_service_test
