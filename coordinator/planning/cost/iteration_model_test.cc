#include "coordinator/planning/cost/iteration_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::iteration_model_test {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr Scheme kPs = Scheme::kPs;
constexpr Scheme kSfb = Scheme::kSfb;
constexpr double kRounding = 1e-9;

/// Two workers, one server, each on a machine of its own; 1 byte/s links, so bytes are seconds: a
/// worker pushes and pulls a layer in `bytes` seconds, the server in twice that.
IterationModel toy(std::vector<ModelLayer> layers, double chunk_bytes = 1e6) {
  IterationModel model;
  model.layers = std::move(layers);
  model.links = {{.push_s_per_byte = 2, .pull_s_per_byte = 0, .factor_s_per_byte = 0},
                 {.push_s_per_byte = 0, .pull_s_per_byte = 2, .factor_s_per_byte = 0},
                 {.push_s_per_byte = 1, .pull_s_per_byte = 0, .factor_s_per_byte = 1},
                 {.push_s_per_byte = 0, .pull_s_per_byte = 1, .factor_s_per_byte = 1}};
  model.chunk_bytes = model.stripe_bytes = chunk_bytes;
  return model;
}

double iteration_s(const IterationModel& model, const std::vector<Scheme>& schemes) {
  return play_iteration(model, schemes).iteration_s;
}

TEST(IterationModel, NothingToSendIsPureCompute) {
  IterationModel model = toy({{.forward_s = 1, .backward_s = 2, .bytes = 5},
                              {.forward_s = 3, .backward_s = 4, .bytes = 6}});
  model.links.clear();
  const IterationPrediction prediction = play_iteration(model, {kPs, kPs});
  EXPECT_DOUBLE_EQ(prediction.iteration_s, 10);
  EXPECT_DOUBLE_EQ(prediction.compute_s, 10);
  EXPECT_THAT(prediction.stall_s, ElementsAre(0, 0));
}

TEST(IterationModel, OneLayerGoesThereAndBack) {
  IterationModel model = toy({{.forward_s = 1, .backward_s = 2, .bytes = 5}});
  model.latency_s = 0.25;
  model.sum_s_per_byte = 0.1;
  // backward 2, push 10 + 0.25, sum 0.5, pull 10 + 0.25, forward 1
  const IterationPrediction prediction = play_iteration(model, {kPs});
  EXPECT_NEAR(prediction.iteration_s, 24, kRounding);
  EXPECT_THAT(prediction.stall_s, ElementsAre(DoubleNear(21, kRounding)));
  EXPECT_THAT(prediction.sync_s, ElementsAre(DoubleNear(21, kRounding)));
}

TEST(IterationModel, TheTopLayerHidesBehindTheBackwardBelow) {
  IterationModel model = toy({{.forward_s = 5, .backward_s = 10, .bytes = 0},
                              {.forward_s = 1, .backward_s = 2, .bytes = 3}});
  // The top layer has 10 + 5 seconds of others' compute for its 6 up and 6 down.
  EXPECT_NEAR(iteration_s(model, {kPs, kPs}), 18, kRounding);
  model.layers[1].bytes = 4;  // 16 do not fit: one more
  const IterationPrediction prediction = play_iteration(model, {kPs, kPs});
  EXPECT_NEAR(prediction.iteration_s, 19, kRounding);
  EXPECT_THAT(prediction.stall_s, ElementsAre(0, DoubleNear(1, kRounding)));
  EXPECT_THAT(prediction.sync_s, ElementsAre(0, DoubleNear(16, kRounding)));
}

TEST(IterationModel, WhatForwardNeedsFirstGoesFirst) {
  const IterationModel model = toy({{.forward_s = 1, .backward_s = 1, .bytes = 1},
                                    {.forward_s = 1, .backward_s = 1, .bytes = 10}});
  // At 1 the top layer starts to push (20 s). At 2 the bottom layer overtakes it: up until 4, down
  // until 6. Its forward ends at 7; the top layer is up at 1 + 20 + 2 = 23, down at 43.
  const IterationPrediction prediction = play_iteration(model, {kPs, kPs});
  EXPECT_NEAR(prediction.iteration_s, 44, kRounding);
  EXPECT_THAT(prediction.stall_s, ElementsAre(DoubleNear(4, kRounding), DoubleNear(36, kRounding)));
  EXPECT_THAT(prediction.sync_s, ElementsAre(DoubleNear(4, kRounding), DoubleNear(42, kRounding)));
}

TEST(IterationModel, WhatStreamsHaveTakenIsInFrontOfWhatForwardNeedsFirst) {
  IterationModel model = toy({{.forward_s = 1, .backward_s = 1, .bytes = 1},
                              {.forward_s = 1, .backward_s = 1, .bytes = 10}});
  // As above, but at 2 the bottom layer finds 3 s of the top layer in front of it: up until 7.
  // Nothing has come down by then, so it is down at 9.
  model.in_flight_s = 3;
  IterationPrediction prediction = play_iteration(model, {kPs, kPs});
  EXPECT_NEAR(prediction.iteration_s, 44, kRounding) << "the links do the same work";
  EXPECT_THAT(prediction.stall_s, ElementsAre(DoubleNear(7, kRounding), DoubleNear(33, kRounding)));
  // And 19 s, all that is left of it, where streams take everything: up at 23, down behind what
  // came of the top layer (at 21) at 43.
  model.in_flight_s = 100;
  prediction = play_iteration(model, {kPs, kPs});
  EXPECT_NEAR(prediction.stall_s[0], 41, kRounding);
}

TEST(IterationModel, ALargeLayerComesBackWhileItStillGoesUp) {
  const IterationModel model =
      toy({{.forward_s = 0, .backward_s = 0, .bytes = 64}}, /*chunk_bytes=*/1);
  // 64 chunks of 2 s up; the last one comes down 2 s later, instead of 128 s.
  EXPECT_NEAR(iteration_s(model, {kPs}), 130, kRounding);
}

TEST(IterationModel, OnAFullDuplexNicShareBothWaysAddUp) {
  IterationModel model = toy({{.forward_s = 0, .backward_s = 0, .bytes = 64}}, 1);
  model.links = {{.push_s_per_byte = 1, .pull_s_per_byte = 1, .factor_s_per_byte = 1}};
  EXPECT_NEAR(iteration_s(model, {kPs}), 128, kRounding);
}

ModelLayer with_factors(double forward_s, double backward_s, double bytes, double factor_bytes,
                        double rebuild_s) {
  return {.forward_s = forward_s,
          .backward_s = backward_s,
          .bytes = bytes,
          .sfb_applies = true,
          .factor_bytes = factor_bytes,
          .sfb_backward_s = 0.5 * backward_s,
          .rebuild_s = rebuild_s};
}

TEST(IterationModel, FactorsAreRebuiltOnTheDevice) {
  const IterationModel model = toy({with_factors(1, 4, 100, 3, 7)});
  // backward without the weight's gradient 2, factors 3, rebuild 7, forward 1
  EXPECT_NEAR(iteration_s(model, {kSfb}), 13, kRounding);
}

TEST(IterationModel, ARebuildQueuesWithTheLayersBelow) {
  IterationModel model =
      toy({{.forward_s = 5, .backward_s = 10, .bytes = 0}, with_factors(1, 4, 100, 3, 7)});
  // backward 2, then 10 of the layer below; the factors are in at 5 and are rebuilt from 12 to 19.
  const IterationPrediction prediction = play_iteration(model, {kPs, kSfb});
  EXPECT_NEAR(prediction.iteration_s, 2 + 10 + 7 + 5 + 1, kRounding);
  EXPECT_THAT(prediction.stall_s, ElementsAre(0, 0));
  EXPECT_DOUBLE_EQ(prediction.compute_s, 20);
}

TEST(IterationModel, ARebuildFillsTheTimeThatForwardWaits) {
  IterationModel model =
      toy({{.forward_s = 5, .backward_s = 1, .bytes = 2}, with_factors(1, 4, 100, 3, 3)});
  // Backward until 3. The bottom layer is back at 3 + 4 + 4 = 11; factors (behind the bottom
  // layer's push on the worker's link) are in at 2 + 3 + 2 = 7, rebuilt until 10 for nothing.
  const IterationPrediction prediction = play_iteration(model, {kPs, kSfb});
  EXPECT_NEAR(prediction.iteration_s, 11 + 5 + 1, kRounding);
  EXPECT_THAT(prediction.stall_s, ElementsAre(DoubleNear(8 - 3, kRounding), 0));
}

TEST(IterationModel, ASmallLayerWaitsForItsFullestServer) {
  IterationModel model = toy({{.forward_s = 0, .backward_s = 0, .bytes = 1}}, 1);
  model.servers = 4;
  model.largest_share = 0.25;
  model.hot_s_per_byte = 2;
  // One chunk lies on one server: three quarters more than the average's 2 s, each way.
  EXPECT_NEAR(iteration_s(model, {kPs}), 2 + 1.5 + 2 + 1.5, kRounding);
}

TEST(IterationModel, BusyTimeIsThatOfTheBusiestLink) {
  const IterationModel model = toy({});
  const ModelLayer layer = with_factors(0, 0, 10, 3, 0);
  EXPECT_DOUBLE_EQ(link_busy_s(model, layer, kPs), 20);
  EXPECT_DOUBLE_EQ(link_busy_s(model, layer, kSfb), 3);
}

}  // namespace
}  // namespace poseidon::iteration_model_test
