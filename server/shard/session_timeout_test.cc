// Streams that never say a valid word, on the in-memory network where time is ours.

#include <memory>

#include "common/transport/memory_transport.h"
#include "gmock/gmock.h"
#include "server/shard/shard_service.h"
#include "sync/client/syncer.h"
#include "tests/support/toy_plan.h"

namespace poseidon::session_timeout_test {
namespace {

using ::testing::HasSubstr;

struct Listener final : StreamHandler {
  ReadNext on_message(Bytes /*message*/) override {
    ++messages;
    return ReadNext::kContinue;
  }
  void on_written() override {}
  void on_closed(const absl::Status& status) override { closed = status; }
  int messages = 0;
  std::optional<absl::Status> closed;
};

class SessionTimeout : public ::testing::Test {
 protected:
  SessionTimeout() : service_(&network_.endpoint("server0"), &refusals_, {}) {
    EXPECT_TRUE(network_.endpoint("server0").listen("server0", &service_).ok());
    service_.assign(plan_, ServerIndex(0), OptimizerSpec{},
                    std::make_shared<TrafficProbe>(plan_.layers.size()), [] {});
  }
  void run_until(Nanoseconds time) {
    while (network_.now() < time && network_.step()) {
    }
  }

  /// Exactly this long, independent of other events.
  void run_for(Nanoseconds time) {
    bool over = false;
    network_.endpoint("clock").post_after(time, [&over] { over = true; });
    while (!over && network_.step()) {
    }
  }

  MemoryNetwork network_{1, MemoryFaults{}};
  const Plan plan_ = testing_support::toy_plan(1, 1, {4}, 4);
  RefusalCounts refusals_;
  ShardService service_;
};

TEST_F(SessionTimeout, ASilentStreamIsClosedInTime) {
  Listener silent;
  const auto stream = network_.endpoint("x").connect("server0", &silent);
  run_until(kFirstMessageTimeout - Milliseconds(1));
  EXPECT_FALSE(silent.closed);
  run_until(kFirstMessageTimeout + Milliseconds(1000));
  ASSERT_TRUE(silent.closed);
  EXPECT_TRUE(absl::IsUnavailable(*silent.closed)) << *silent.closed;
  EXPECT_THAT(std::string(silent.closed->message()), HasSubstr("30000 ms"));
}

TEST_F(SessionTimeout, AWorkerThatThinksForLongIsNot) {
  Listener worker;
  const auto stream = network_.endpoint("w").connect("server0", &worker);
  ChunkHeader pull;
  pull.epoch = plan_.epoch;
  stream->write({.prefix = encode_prefix(pull, 0)});
  run_until(kFirstMessageTimeout * 3);
  EXPECT_FALSE(worker.closed) << *worker.closed;
}

struct Events final : SyncerEvents {
  void layer_landed(const LayerLanded& layer) override { landed = layer.version; }
  void sync_failed(const absl::Status& status) override { failed = status; }
  Iteration landed = -1;
  absl::Status failed;
};

// All has landed, and the next gradient takes its time: the new stream has nothing to repeat.
TEST_F(SessionTimeout, AWorkerWithNothingToSaySurvivesACut) {
  FloatBuffer parameters(4), gradients(4);
  Events events;
  TrafficProbe traffic(1);
  Syncer syncer(&network_.endpoint("w"), plan_, WorkerRank(0),
                {{parameters.floats(), gradients.floats(), gradients.owner()}}, SyncerOptions{},
                &events, &traffic, &refusals_);
  network_.endpoint("w").post([&] { syncer.start(); });
  Iteration iteration = 0;
  run_for(Milliseconds(1000));
  for (; iteration < 3; ++iteration) {
    ASSERT_EQ(events.landed, iteration);
    network_.part("w", "server0");
    run_for(Milliseconds(15000));  // the keepalive notices
    network_.join("w", "server0");
    run_for(3 * kFirstMessageTimeout);
    ASSERT_TRUE(events.failed.ok()) << events.failed;
    network_.endpoint("w").post([&] { syncer.gradient_ready(LayerIndex(0), iteration); });
    run_for(Milliseconds(1000));
  }
  EXPECT_EQ(events.landed, 3);
  EXPECT_GE(traffic.node().counted(NodeCount::kRetriesServer), 3U);
}

TEST_F(SessionTimeout, AFloodOfStreamsIsTurnedAway) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::size_t i = 0; i < kMaxSessions + 3; ++i) {
    listeners.push_back(std::make_unique<Listener>());
    streams.push_back(network_.endpoint("flood").connect("server0", listeners.back().get()));
  }
  run_until(Milliseconds(1000));
  std::size_t turned_away = 0;
  for (const auto& listener : listeners) {
    if (!listener->closed) continue;
    EXPECT_TRUE(absl::IsUnavailable(*listener->closed)) << *listener->closed;
    ++turned_away;
  }
  EXPECT_EQ(turned_away, 3u);
}

}  // namespace
}  // namespace poseidon::session_timeout_test
