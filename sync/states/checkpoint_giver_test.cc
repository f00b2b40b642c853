// The state of SFB layers that a worker holds for a recovery, and its transfer to real stores.

#include "sync/states/checkpoint_giver.h"

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "common/grpc/grpc_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/plain_factor_state.h"

namespace poseidon::checkpoint_giver_test {
namespace {

using ::testing::HasSubstr;

/// Fails as a full device does, when told so.
class SmallState final : public testing_support::PlainFactorState {
 public:
  using PlainFactorState::PlainFactorState;
  absl::Status hold(LayerIndex layer, std::span<const StateRange> ranges) override {
    holding.erase(layer.value());
    if (ranges.empty()) return PlainFactorState::hold(layer, ranges);
    ++holds;
    if (!failure.ok()) return failure;
    holding.insert(layer.value());
    return PlainFactorState::hold(layer, ranges);
  }
  absl::Status failure;
  int holds = 0;
  std::set<std::uint32_t> holding;  ///< layers
};

/// Worker 0 of two, with two layers that go by SFB.
class CheckpointGiverTest : public ::testing::Test {
 protected:
  CheckpointGiverTest() : stores_(&grpc_.add_method(kStoreMethod)) {
    grpc_.start();
    plan_.epoch = Epoch(5);
    plan_.worker_addresses = {"a:1", "b:1"};
    plan_.server_addresses = {"127.0.0.1:1"};
    for (const char* name : {"fc1", "fc2"}) {
      PlanLayer& layer = plan_.layers.emplace_back();
      layer.name = name;
      layer.shape = {4, 5};
      layer.parameters = 24;
      layer.scheme = Scheme::kSfb;
      parameters_.emplace_back(24);
      momentum_.emplace_back(24);
    }
    giver_ = std::make_unique<CheckpointGiver>(stores_, plan_, WorkerRank(0), &state_,
                                               CheckpointGiverOptions{.chunk_bytes = 32},
                                               [](Iteration, const std::string&, MissingPart) {});
  }
  ~CheckpointGiverTest() override {
    giver_.reset();
    grpc_.stop();
  }
  /// Both layers.
  void step(Iteration version) {
    for (const LayerIndex layer : {LayerIndex(0), LayerIndex(1)}) {
      EXPECT_TRUE(giver_->keep(layer, version).ok());
      EXPECT_TRUE(giver_->layer_at(layer, version + 1).ok());
    }
  }
  void expect_held(Iteration oldest, Iteration newest) {
    EXPECT_EQ(giver_->held().oldest, oldest);
    EXPECT_EQ(giver_->held().newest, newest);
  }

  GrpcTransport grpc_;
  Transport* const stores_;
  Plan plan_;
  std::vector<FloatBuffer> parameters_, momentum_, none_;
  SmallState state_{{&parameters_, &momentum_, &none_}, /*optimizer_slots=*/1};
  std::unique_ptr<CheckpointGiver> giver_;
};

TEST_F(CheckpointGiverTest, HoldsTheVersionBeforeTheLastStep) {
  expect_held(0, 0);
  step(0);
  expect_held(0, 1);
  step(1);
  expect_held(1, 2);
  ASSERT_TRUE(giver_->keep(LayerIndex(0), 2).ok());
  ASSERT_TRUE(giver_->layer_at(LayerIndex(0), 3).ok());
  expect_held(2, 2);
  const absl::Status given = giver_->give_held(1, {});
  EXPECT_EQ(given.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(given.message()), HasSubstr("does not have version 1"));
  EXPECT_TRUE(giver_->give_held(2, {}).ok());
}

TEST_F(CheckpointGiverTest, NothingThatIsNoFiniteNumberIsGiven) {
  step(0);
  parameters_[0].floats()[3] = std::numeric_limits<float>::infinity();  // worker 0's own part
  const absl::Status given = giver_->give_held(1, {});
  EXPECT_EQ(given.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(given.message()), HasSubstr("the parameters of layer fc1 hold values"));
  EXPECT_TRUE(giver_->give_held(0, {}).ok()) << "the version before the step was good";
}

// Without the memory, training continues, and a recovery starts from a checkpoint.
TEST_F(CheckpointGiverTest, WithoutRoomItHoldsNothingAndTrainingGoesOn) {
  step(0);
  EXPECT_EQ(state_.holding.size(), 2U);
  state_.failure = absl::ResourceExhaustedError("no room on the GPU");
  step(1);
  EXPECT_EQ(state_.holds, 3) << "not tried again and again";
  EXPECT_TRUE(state_.holding.empty()) << "what could be held has been given back";
  step(2);
  EXPECT_EQ(state_.holds, 3);
  expect_held(3, 3);
  ASSERT_TRUE(giver_->keep(LayerIndex(0), 3).ok());
  ASSERT_TRUE(giver_->layer_at(LayerIndex(0), 4).ok());
  EXPECT_GT(giver_->held().oldest, giver_->held().newest) << "no version is whole";
  EXPECT_FALSE(giver_->give_held(3, {}).ok());
}

TEST_F(CheckpointGiverTest, AnyOtherErrorEndsTheStep) {
  state_.failure = absl::InternalError("the GPU fell off the bus");
  EXPECT_EQ(giver_->keep(LayerIndex(0), 0), state_.failure);
  expect_held(0, 0);
}

}  // namespace
}  // namespace poseidon::checkpoint_giver_test
