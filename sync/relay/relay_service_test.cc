// A worker of a group and a relay that is there late, or not at all: see
// sync/relay/relay_service.h.

#include "sync/relay/relay_service.h"

#include <optional>

#include "common/transport/memory_transport.h"
#include "gmock/gmock.h"
#include "sync/client/syncer.h"
#include "tests/support/mute_peer.h"
#include "tests/support/toy_plan.h"

namespace poseidon::relay_service_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Nanoseconds kPatience = std::chrono::seconds(3);

/// Worker 1 of two, whose leader is worker 0.
class LateRelayTest : public ::testing::Test, public SyncerEvents {
 protected:
  LateRelayTest() {
    plan_ = testing_support::toy_plan(2, 1, {4}, 4);
    plan_.worker_addresses = {"leader", "member"};
    plan_.leaders = {WorkerRank(0), WorkerRank(0)};
    options_.give_up_after = kPatience;
  }
  void start_member() {
    syncer_.emplace(
        &network_.endpoint("member"), plan_, WorkerRank(1),
        std::vector<LayerMemory>{{parameters_.floats(), gradients_.floats(), gradients_.owner()}},
        options_, this, &traffic_, &refusals_, PeerAccess{.relays = &network_.endpoint("member")});
    syncer_->start();
  }
  void pass(Nanoseconds time) {
    const Nanoseconds until = network_.now() + time;
    network_.endpoint("clock").post_after(time, [] {});
    while (network_.now() < until && network_.step()) {
    }
  }
  void sync_failed(const absl::Status& status) override { failure_ = status; }

  MemoryNetwork network_{1, MemoryFaults{}};
  RefusalCounts refusals_, relay_refusals_;
  TrafficProbe traffic_{1}, relay_traffic_{1};
  Plan plan_;
  SyncerOptions options_;
  FloatBuffer parameters_{4}, gradients_{4};
  absl::Status failure_;
  std::optional<Syncer> syncer_;
};

TEST_F(LateRelayTest, AWorkerWaitsForALeaderThatIsThereAndNotReady) {
  Transport& leader = network_.endpoint("leader");
  RelayService relay(&leader, &relay_refusals_, {});
  ASSERT_TRUE(leader.listen("leader", &relay).ok());
  start_member();
  pass(20 * kPatience);
  EXPECT_TRUE(failure_.ok()) << failure_;
  EXPECT_EQ(relay_refusals_.of(DataRefusal::kNoAssignment), 0U) << "it is no news";
  absl::Status relay_failure;
  relay.begin(plan_, WorkerRank(0), &leader, options_, &relay_traffic_,
              [&](const absl::Status& status) { relay_failure = status; });
  pass(kPatience);
  EXPECT_TRUE(failure_.ok()) << failure_;
  // There is no server.
  pass(2 * kPatience);
  EXPECT_THAT(std::string(relay_failure.message()),
              AllOf(HasSubstr("server 0 at server0 could not be reached"),
                    HasSubstr("is its poseidon-server running")));
  relay.end(plan_.epoch);
  syncer_.reset();
}

TEST_F(LateRelayTest, WhoIsNotThereIsNamed) {
  start_member();
  pass(2 * kPatience);
  EXPECT_EQ(failure_.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failure_.message()),
              AllOf(HasSubstr("the relay of worker 0 at leader could not be reached"),
                    HasSubstr("is its poseidon-worker running")));
}

// The first attempt counts from its beginning: three of them, and their pauses, are the patience.
TEST_F(LateRelayTest, TheTimeThatTheFirstAttemptTookCounts) {
  testing_support::MutePeer leader(&network_.endpoint("leader"), std::chrono::seconds(1));
  ASSERT_TRUE(network_.endpoint("leader").listen("leader", &leader).ok());
  start_member();
  pass(kPatience - Milliseconds(100));
  EXPECT_TRUE(failure_.ok()) << failure_;
  pass(Milliseconds(600));
  EXPECT_EQ(failure_.code(), absl::StatusCode::kUnavailable) << failure_;
  syncer_.reset();
}

}  // namespace
}  // namespace poseidon::relay_service_test
