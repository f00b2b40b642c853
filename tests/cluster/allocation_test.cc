// No heap allocation per chunk once all buffers are warm: routes, shard, aggregator, optimizer and
// the services around them, over a transport that allocates nothing itself. (gRPC allocates per
// message, and for its read buffers; malloc recycles that memory, see tune_process.)

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard/shard_service.h"
#include "sync/client/syncer.h"
#include "tests/support/toy_plan.h"

namespace {
std::atomic<std::size_t> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

// Of the whole test program.
void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*a*/) noexcept {
  std::free(memory);
}

namespace poseidon::allocation_test {
namespace {

/// Passes messages in place: written messages are delivered by the next step.
class DirectTransport final : public Transport {
 public:
  std::unique_ptr<Stream> connect(const std::string& /*address*/, StreamHandler* handler) override {
    auto client = std::make_unique<End>(this), server = std::make_unique<End>(this);
    client->handler = handler;
    client->other = server.get();
    server->other = client.get();
    End* const far = server.get();
    far->handler = acceptor_->on_accept(std::move(server));
    ends_.push_back(client.get());
    ends_.push_back(far);
    return client;
  }
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override {
    acceptor_ = acceptor;
    return address;
  }
  void post(std::function<void()> function) override { function(); }
  void post_after(Nanoseconds /*delay*/, std::function<void()> /*function*/) override {}
  Nanoseconds now() const override { return Nanoseconds{0}; }

  /// Delivers one message of every end that has one; false when none has.
  bool step() {
    bool moved = false;
    for (End* end : ends_) {
      if (end != nullptr && end->pending) {
        end->deliver();
        moved = true;
      }
    }
    return moved;
  }

 private:
  struct End final : Stream {
    explicit End(DirectTransport* network) : transport(network) {}
    ~End() override {
      for (End*& end : transport->ends_) {
        if (end == this) end = nullptr;
      }
    }
    void write(OutgoingMessage message) override { pending = std::move(message); }
    void resume_reads() override {}
    void close(const absl::Status& status) override { ADD_FAILURE() << status; }
    std::string peer() const override { return "direct"; }
    void deliver() {
      // Payloads outlive all: they are gradients and parameters of this test. The prefix is read at
      // once.
      const OutgoingMessage message = std::move(*pending);
      pending.reset();
      Bytes bytes;
      const std::string_view prefix = message.prefix.view();
      bytes.pieces.emplace_back(reinterpret_cast<const std::byte*>(prefix.data()), prefix.size());
      bytes.pieces.push_back(message.payload);
      bytes.owner = message.payload_owner;
      other->handler->on_message(std::move(bytes));
      handler->on_written();
    }
    DirectTransport* const transport;
    StreamHandler* handler = nullptr;
    End* other = nullptr;
    std::optional<OutgoingMessage> pending;
  };
  Acceptor* acceptor_ = nullptr;
  std::vector<End*> ends_;
};

struct Worker final : SyncerEvents {
  Worker(DirectTransport* transport, const Plan& plan, std::uint32_t rank)
      : traffic(plan.layers.size()), versions(plan.layers.size(), -1) {
    std::vector<LayerMemory> layers;
    for (const PlanLayer& layer : plan.layers) {
      parameters.emplace_back(layer.parameters);
      gradients.emplace_back(layer.parameters);
      std::ranges::fill(gradients.back().floats(), 0.25f);
      layers.push_back({.parameters = parameters.back().floats(),
                        .gradients = gradients.back().floats(),
                        .owner = gradients.back().owner()});
    }
    syncer = std::make_unique<Syncer>(transport, plan, WorkerRank(rank), std::move(layers),
                                      SyncerOptions{}, this, &traffic, &refusals);
    syncer->start();
  }
  void layer_landed(const LayerLanded& layer) override {
    versions[layer.layer.value()] = layer.version;
  }
  void sync_failed(const absl::Status& status) override { ADD_FAILURE() << status; }

  TrafficProbe traffic;
  RefusalCounts refusals;
  std::vector<Iteration> versions;
  std::vector<FloatBuffer> parameters, gradients;
  std::unique_ptr<Syncer> syncer;
};

std::size_t allocations_when_warm(std::uint32_t workers, ElementType wire_type,
                                  OptimizerType optimizer) {
  Plan plan = testing_support::toy_plan(workers, 1, {100000, 37, 5000}, 4096);
  plan.wire_type = wire_type;
  DirectTransport transport;
  RefusalCounts refusals;
  ShardService service(&transport, &refusals, {});
  EXPECT_TRUE(transport.listen("server0", &service).ok());
  OptimizerSpec spec;
  spec.type = optimizer;
  spec.momentum = optimizer == OptimizerType::kSgd ? 0.9 : 0.0;
  service.assign(plan, ServerIndex(0), spec, std::make_shared<TrafficProbe>(plan.layers.size()),
                 [] {});
  std::vector<std::unique_ptr<Worker>> all;
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    all.push_back(std::make_unique<Worker>(&transport, plan, rank));
  }
  const auto settle = [&transport] {
    while (transport.step()) {
    }
  };
  settle();
  constexpr Iteration kWarmUp = 3, kIterations = 13;
  std::size_t before = 0;
  for (Iteration i = 0; i < kIterations; ++i) {
    if (i == kWarmUp) before = allocations;
    // The highest rank first: contributions that are early are held.
    for (std::size_t rank = workers; rank-- > 0;) {
      for (std::uint32_t l = 3; l-- > 0;) all[rank]->syncer->gradient_ready(LayerIndex(l), i);
      transport.step();
    }
    settle();
  }
  const std::size_t counted = allocations - before;
  for (const auto& worker : all) {
    EXPECT_EQ(worker->versions, std::vector<Iteration>(3, kIterations));
    EXPECT_NE(std::as_const(worker->parameters[0]).floats()[99999], 0.0f);
  }
  return counted;
}

TEST(Allocations, NonePerChunkOnceWarm) {
  const std::size_t before = allocations;
  auto one = std::make_unique<int>(1);
  ASSERT_EQ(allocations, before + 1) << "they are counted";
  for (const std::uint32_t workers : {1u, 2u, 4u}) {
    for (const auto type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
      for (const auto optimizer : {OptimizerType::kSgd, OptimizerType::kAdamW}) {
        EXPECT_EQ(allocations_when_warm(workers, type, optimizer), 0U)
            << workers << " workers, " << wire_dtype_name(type) << ", optimizer "
            << static_cast<int>(optimizer);
      }
    }
  }
}

}  // namespace
}  // namespace poseidon::allocation_test
