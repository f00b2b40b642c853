// cost=time through make_plan: the published figures, and properties over random networks.

#include "coordinator/planning/time_rule.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "common/plan/plan_pin.h"
#include "coordinator/planning/message_sizes.h"
#include "coordinator/planning/test_networks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::time_rule_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kGbit = 1e9 / 8;

/// The papers' Titan X: 34.6 images/s of VGG19-22K alone, K = 32 (925 ms); products at 6 TFLOP/s.
AssumedMachines titan_x(double gbit) {
  return {.device_ops_per_s = 6e12, .images_per_s = 34.6, .bandwidth_bytes_per_s = gbit * kGbit};
}

Plan plan_of(const PlannerInput& input) {
  absl::StatusOr<Plan> plan = make_plan(input);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::vector<Scheme> fully_connected_schemes(const Plan& plan) {
  std::vector<Scheme> schemes;
  for (const PlanLayer& layer : plan.layers) {
    if (layer.shape.size() == 2) schemes.push_back(layer.scheme);
  }
  return schemes;
}

TEST(Vgg19, HasThePublishedSize) {
  const auto parameters = [](const std::vector<PlannerLayer>& layers) {
    std::int64_t sum = 0;
    for (const PlannerLayer& layer : layers) sum += layer.parameters;
    return sum;
  };
  EXPECT_EQ(parameters(vgg19(1000)), 143'667'240);
  EXPECT_EQ(parameters(vgg19(21841)), 229'052'817);
}

TEST(Vgg19, RebuildingItsFullyConnectedLayersOn32NodesTakes71Ms) {
  const PlannerInput input = cluster_input(vgg19(21841), 32, 32, titan_x(40));
  double rebuild_s = 0.0;
  for (const ModelLayer& layer :
       model_layers(input.layers, 32, 32, ElementType::kFloat32, *input.calibration)) {
    rebuild_s += layer.rebuild_s;
  }
  EXPECT_NEAR(rebuild_s * 6e12, 428e9, 0.5e9);  // as printed in the issue
  EXPECT_NEAR(rebuild_s, 0.0713, 0.0001);
}

// At 40 GbE all parameters (0.18 s each way) hide behind the convolutions, so nothing needs to be
// rebuilt. The goal of the bench is 31.2; the model knows no framing and no congestion.
TEST(Vgg19, At40GbePsHidesCompletely) {
  const Plan plan = plan_of(cluster_input(vgg19(21841), 32, 32, titan_x(40)));
  EXPECT_THAT(fully_connected_schemes(plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kPs));
  EXPECT_NEAR(plan.prediction->compute_s, 0.925, 0.0005);
  EXPECT_GE(speedup(plan), 31.2);
  EXPECT_LE(speedup(plan), 32.0);
}

// The authors' system sends these layers by SFB (the byte rule), and its published raw data stay
// behind what this model predicts for it by what the model leaves out: 0.5 % to 5 %.
TEST(Vgg19, TheByteRulePredictsThePublishedSpeedups) {
  const std::pair<std::size_t, double> published[] = {
      {2, 1.96}, {4, 3.83}, {8, 7.63}, {16, 15.03}, {32, 29.45}};
  for (const auto& [nodes, measured] : published) {
    PlannerInput input = cluster_input(vgg19(21841), 32, nodes, titan_x(40));
    input.sync.cost = "bytes";
    const Plan plan = plan_of(input);
    EXPECT_THAT(fully_connected_schemes(plan),
                ElementsAre(Scheme::kSfb, Scheme::kSfb, Scheme::kSfb));
    EXPECT_GE(speedup(plan), measured) << nodes << " nodes";
    EXPECT_LE(speedup(plan), measured * 1.05) << nodes << " nodes";
    EXPECT_DOUBLE_EQ(plan.prediction->by_bytes_s, plan.prediction->iteration_s);
  }
}

// At 16 Gbit/s PS of everything takes 2 ms more (with 16 MiB under way 3 ms; with chunks of 2 MiB
// 50 ms). fc6 and fc7 by PS
// (0.45 s with all convolutions 0.53 s) fit behind 0.9 s of compute; fc8 by SFB costs 15 ms of
// rebuilding. Any other choice rebuilds more.
TEST(Vgg19, WhereNotAllFitsBehindTheConvolutionsTheBestIsAMixture) {
  const Plan plan = plan_of(cluster_input(vgg19(21841), 32, 16, titan_x(16)));
  EXPECT_THAT(fully_connected_schemes(plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kSfb));
  EXPECT_GE(speedup(plan), 15.6);
  EXPECT_LT(plan.prediction->iteration_s, plan.prediction->by_bytes_s * 0.985);
  EXPECT_LT(plan.prediction->iteration_s, plan.prediction->all_ps_s * 0.9985);
  EXPECT_THAT(plan.layers.back().reason,
              AllOf(HasSubstr("shortest iteration: 939 ms by SFB"), HasSubstr("by PS")));
}

// At 10 GbE fc6 and fc7 by PS need the links for 0.84 s of 0.94. The first layers' gradients find
// little of them in front, as chunks are small and less is under way. Measured, such an iteration
// is as long as one that rebuilds fc6 (bench/RESULTS.md).
TEST(Vgg19, At10GbeFc6HidesBehindTheConvolutions) {
  const Plan plan = plan_of(cluster_input(vgg19(21841), 32, 16, titan_x(10)));
  EXPECT_THAT(fully_connected_schemes(plan), ElementsAre(Scheme::kPs, Scheme::kPs, Scheme::kSfb));
  EXPECT_GE(speedup(plan), 15.5);
  EXPECT_LT(plan.prediction->iteration_s, plan.prediction->by_bytes_s);
  const Plan smaller = plan_of(cluster_input(vgg19(1000), 32, 16, titan_x(10)));
  EXPECT_THAT(fully_connected_schemes(smaller), Each(Scheme::kPs));
  EXPECT_GE(speedup(smaller), 15.7);
}

// More bandwidth never hurts, and no prediction beats the device.
TEST(Vgg19, BandwidthOnlyHelps) {
  double before_s = INFINITY;
  for (const double gbit : {0.1, 1.0, 2.5, 10.0, 25.0, 100.0}) {
    const Plan plan = plan_of(cluster_input(vgg19(1000), 32, 8, titan_x(gbit)));
    EXPECT_LE(plan.prediction->iteration_s, before_s * (1 + 1e-9)) << gbit;
    EXPECT_GE(plan.prediction->iteration_s, 0.98 * plan.prediction->compute_s) << gbit;
    before_s = plan.prediction->iteration_s;
  }
}

TEST(TimeRule, PinnedLayersKeepTheirScheme) {
  PlannerInput input = cluster_input(vgg19(21841), 32, 16, titan_x(10));
  input.sync.layer_schemes = {{"fc6", "sfb"}, {"fc8", "ps"}};
  const Plan plan = plan_of(input);
  EXPECT_EQ(plan.layers[16].scheme, Scheme::kSfb);
  EXPECT_EQ(plan.layers[18].scheme, Scheme::kPs);
  EXPECT_THAT(plan.layers[16].reason, HasSubstr("sync.scheme asks for it"));
  EXPECT_THAT(plan.layers[17].reason, HasSubstr("shortest iteration"));
}

TEST(TimeRule, OneWorkerAloneComputes) {
  const Plan plan = plan_of(cluster_input(vgg19(1000), 32, 1, titan_x(10)));
  for (const PlanLayer& layer : plan.layers) {
    EXPECT_EQ(layer.prediction->ps_s, 0.0);
    EXPECT_EQ(layer.prediction->sfb_s, 0.0);
  }
  EXPECT_NEAR(speedup(plan), 1.0, 0.01);
}

TEST(TimeRule, AnExtraServerMachineGetsMoreChunks) {
  // At 2.5 GbE the network is the bottleneck, so it matters.
  PlannerInput input = cluster_input(vgg19(1000), 32, 8, titan_x(2.5));
  input.sync.scheme = "ps";
  const double before_s = plan_of(input).prediction->iteration_s;
  input.server_addresses.emplace_back("extra:1");
  input.calibration->servers.push_back(input.calibration->servers[0]);
  const Plan plan = plan_of(input);
  std::vector<double> bytes(9, 0.0);
  for (const PlanChunk& chunk : plan.chunks) {
    bytes[chunk.server.value()] += 4.0 * static_cast<double>(chunk.elements);
  }
  EXPECT_GT(bytes[8], 1.3 * bytes[0]);
  // With equal shares the busiest NIC would carry 1 + 6/9 instead of 1 + 6/8 of all parameters.
  EXPECT_LT(plan.prediction->iteration_s, before_s * (1 + 6.0 / 9) / (1 + 6.0 / 8));
}

/// Some network on some cluster.
PlannerInput random_input(SplitMix64& random) {
  // One draw per statement: compilers evaluate arguments in different orders.
  const auto doubled = [&random](std::int64_t from, std::uint64_t times) {
    return from << random.below(times);
  };
  std::vector<PlannerLayer> layers;
  const std::size_t convolutions = random.below(12);
  for (std::size_t i = 0; i < convolutions; ++i) {
    const std::int64_t in = doubled(8, 7);
    const std::int64_t out = doubled(8, 7);
    const std::int64_t kernel = 1 + 2 * static_cast<std::int64_t>(random.below(3));
    layers.push_back(convolution(absl::StrCat("conv", i), in, out, kernel, doubled(16, 8)));
  }
  const std::size_t connected = 1 + random.below(5);
  for (std::size_t i = 0; i < connected; ++i) {
    const std::int64_t in = doubled(10, 11);
    layers.push_back(fully_connected(absl::StrCat("fc", i), in, doubled(10, 11)));
  }
  AssumedMachines machines;
  machines.device_ops_per_s = std::pow(10.0, 11 + static_cast<double>(random.below(4)));
  machines.bandwidth_bytes_per_s = kGbit * static_cast<double>(doubled(1, 8));
  machines.latency_s = 1e-6 * static_cast<double>(random.below(1000));
  const std::int64_t batch_size = doubled(1, 9);
  const auto nodes = static_cast<std::uint32_t>(1 + random.below(32));
  PlannerInput input =
      cluster_input(std::move(layers), batch_size, nodes, machines, random.below(2) == 0);
  if (random.below(2) == 0) {  // machines of several speeds
    for (auto* nics : {&input.calibration->workers, &input.calibration->servers}) {
      for (NicSpeed& nic : *nics) {
        nic.send_bytes_per_s *= 1.0 + static_cast<double>(random.below(4));
        nic.receive_bytes_per_s *= 1.0 + static_cast<double>(random.below(4));
      }
    }
  }
  if (random.below(3) == 0) {  // fewer servers than workers
    const std::size_t servers = 1 + random.below(input.server_addresses.size());
    input.server_addresses.resize(servers);
    input.calibration->servers.resize(servers);
  }
  input.sync.chunk_bytes = 4096 << random.below(12);
  return input;
}

TEST(TimeRule, IsNeverWorseThanPsOrSfbOrTheByteRule) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SplitMix64 random(seed);
    PlannerInput input = random_input(random);
    const Plan by_time = plan_of(input);
    const double limit = 1 + 1e-9;
    input.sync.cost = "bytes";
    const Plan by_bytes = plan_of(input);
    EXPECT_LE(by_time.prediction->iteration_s, by_bytes.prediction->iteration_s * limit) << seed;
    EXPECT_LE(by_time.prediction->by_bytes_s, by_bytes.prediction->iteration_s * limit) << seed;
    for (const char* scheme : {"ps", "sfb"}) {
      input.sync = {.scheme = scheme, .chunk_bytes = input.sync.chunk_bytes};
      const Plan other = plan_of(input);
      const bool is_ps = input.sync.scheme == "ps";
      // With its own schemes it may have more or less under way.
      const double other_s =
          other.window_bytes == by_time.window_bytes
              ? other.prediction->iteration_s
              : (is_ps ? by_time.prediction->all_ps_s : by_time.prediction->all_sfb_s);
      EXPECT_LE(by_time.prediction->iteration_s, other_s * limit)
          << "seed " << seed << " against " << scheme;
    }
  }
}

// At 10 GbE with 16 nodes all three differ, and the comparison says so whatever the job asks for.
TEST(TimeRule, OtherPlansArePredictedEvenWhereNothingIsFreeToChoose) {
  PlannerInput input = cluster_input(vgg19(21841), 32, 16, titan_x(10));
  const auto predicted_by = [&input](const SyncSpec& sync) {
    input.sync = sync;
    input.sync.chunk_bytes = kDefaultChunkBytes;  // "auto" is what suits the layers' own schemes
    return *plan_of(input).prediction;
  };
  const double bytes_s = predicted_by({.cost = "bytes"}).by_bytes_s;
  const double ps_s = predicted_by({.scheme = "ps"}).all_ps_s;
  const double sfb_s = predicted_by({.scheme = "sfb"}).all_sfb_s;
  EXPECT_GT(ps_s, 1.2 * sfb_s);
  for (const SyncSpec& sync : {SyncSpec{.cost = "bytes"}, SyncSpec{.scheme = "ps"},
                               SyncSpec{.scheme = "sfb"}, SyncSpec{}}) {
    const PlanPrediction predicted = predicted_by(sync);
    EXPECT_DOUBLE_EQ(predicted.by_bytes_s, bytes_s) << sync.scheme << " " << sync.cost;
    EXPECT_DOUBLE_EQ(predicted.all_ps_s, ps_s) << sync.scheme << " " << sync.cost;
    EXPECT_DOUBLE_EQ(predicted.all_sfb_s, sfb_s) << sync.scheme << " " << sync.cost;
  }
}

/// Thirty convolutions of 3 MB each, 16 nodes, half as long on the wire as computed at 10 GbE.
PlannerInput convolutions(double gbit) {
  std::vector<PlannerLayer> layers;
  for (int i = 0; i < 30; ++i) {
    layers.push_back({.name = absl::StrCat("conv", i),
                      .type = "convolution",
                      .shape = {768, 1024},
                      .parameters = 768 * 1024,
                      .is_fully_connected = false,
                      .tensors = {},
                      .multiply_adds = 1'000'000});
  }
  AssumedMachines machines = titan_x(gbit);
  machines.images_per_s = 32 / 0.15;
  return cluster_input(std::move(layers), 32, 16, machines);
}

TEST(TimeRule, ChunksAreSmallWhereTheNetworkIsTheBottleneck) {
  PlannerInput input = convolutions(10);
  const Plan open = plan_of(input);
  EXPECT_LT(open.chunk_bytes, kDefaultChunkBytes);
  for (const PlanChunk& chunk : open.chunks) {
    EXPECT_LE(chunk.elements * std::int64_t{sizeof(float)}, open.chunk_bytes);
  }
  input.sync.chunk_bytes = kDefaultChunkBytes;
  const Plan given = plan_of(input);
  EXPECT_EQ(given.chunk_bytes, kDefaultChunkBytes);
  EXPECT_LT(open.prediction->iteration_s,
            given.prediction->iteration_s * (1.0 - kLeastGainOfSmallerMessages));
}

TEST(TimeRule, ChunksAreSmallWhereManyOfThemWouldBeInFrontOfTheFirstLayers) {
  const auto chunk_bytes = [](std::uint32_t nodes, double gbit) {
    return plan_of(cluster_input(vgg19(1000), 32, nodes, titan_x(gbit))).chunk_bytes;
  };
  EXPECT_EQ(chunk_bytes(2, 40), kDefaultChunkBytes);
  EXPECT_EQ(chunk_bytes(4, 40), kDefaultChunkBytes);
  EXPECT_LE(chunk_bytes(16, 40), chunk_bytes(8, 40));
  EXPECT_LT(chunk_bytes(16, 10), kDefaultChunkBytes) << "64 MiB are 54 ms, each way";
  EXPECT_LE(chunk_bytes(32, 10), chunk_bytes(16, 10));
}

TEST(TimeRule, ChunksStayLargeWhereSmallOnesSaveNothingOrMayNotBeChosen) {
  EXPECT_EQ(plan_of(convolutions(1000)).chunk_bytes, kDefaultChunkBytes);
  PlannerInput by_bytes = convolutions(10);
  by_bytes.sync.cost = "bytes";
  EXPECT_EQ(plan_of(by_bytes).chunk_bytes, kDefaultChunkBytes);
  PlannerInput with_norms = convolutions(10);
  with_norms.norm_scope = NormScope::kLayer;
  EXPECT_EQ(plan_of(with_norms).chunk_bytes, kDefaultChunkBytes);
  PlannerInput unmeasured = convolutions(10);
  unmeasured.calibration.reset();
  EXPECT_EQ(plan_of(unmeasured).chunk_bytes, kDefaultChunkBytes);
}

/// A card ten times as fast.
AssumedMachines modern(double gbit) {
  AssumedMachines machines = titan_x(gbit);
  machines.device_ops_per_s = 10.0 * *machines.device_ops_per_s;
  *machines.images_per_s *= 10.0;
  return machines;
}

// Two messages may go to each other machine in any case: with small windows alone nothing is won.
TEST(TimeRule, SmallestChunksAndWindowsAreForMachinesThatWaitForTheirFirstLayers) {
  const Plan waiting = plan_of(cluster_input(vgg19(1000), 32, 16, modern(25)));
  EXPECT_LT(waiting.chunk_bytes, 256 << 10);
  EXPECT_EQ(waiting.window_bytes, 32 * waiting.chunk_bytes);
  const Plan few = plan_of(cluster_input(vgg19(1000), 32, 2, modern(25)));
  EXPECT_GE(few.chunk_bytes, 256 << 10);
  EXPECT_EQ(few.window_bytes, kShortWorkerWindowBytes);
  // Links are busier here: the CPU that small chunks cost would buy nothing.
  const Plan of_links = plan_of(convolutions(4));
  EXPECT_EQ(of_links.chunk_bytes, 256 << 10);
  EXPECT_EQ(of_links.window_bytes, kWorkerWindowBytes);
}

TEST(TimeRule, LessIsUnderWayWhereDevicesAreBusierThanLinks) {
  EXPECT_LE(plan_of(convolutions(10)).window_bytes, kShortWorkerWindowBytes);
  EXPECT_EQ(plan_of(convolutions(4)).window_bytes, kWorkerWindowBytes);
  PlannerInput by_bytes = convolutions(10);
  by_bytes.sync.cost = "bytes";
  EXPECT_EQ(plan_of(by_bytes).window_bytes, kWorkerWindowBytes);
  PlannerInput unmeasured = convolutions(10);
  unmeasured.calibration.reset();
  EXPECT_EQ(plan_of(unmeasured).window_bytes, kWorkerWindowBytes);
}

// Factors count as factors: by PS these layers would keep a link of 10 Gbit/s busy for longer.
TEST(TimeRule, WhatIsUnderWayDependsOnTheSchemes) {
  PlannerInput input = cluster_input(vgg19(1000), 32, 16, titan_x(10));
  EXPECT_LE(plan_of(input).window_bytes, kShortWorkerWindowBytes);
  input.sync.scheme = "ps";
  input.calibration->device_ops_per_s *= 4.0;
  for (LayerTimes& layer : input.calibration->layers) {
    layer.forward_s /= 4.0;
    layer.backward_s /= 4.0;
  }
  EXPECT_EQ(plan_of(input).window_bytes, kWorkerWindowBytes);
  input.sync.scheme = "auto";
  EXPECT_LE(plan_of(input).window_bytes, kShortWorkerWindowBytes);
}

// By the byte rule all fully connected layers go as factors and links have little to do, so that
// chunks of 256 KiB will do. But rebuilding them takes a Titan X too long, and with the schemes
// that are chosen links are nearly full.
TEST(TimeRule, SizesAreThoseOfTheSchemesThatAreChosen) {
  PlannerInput input = cluster_input(vgg19(1000), 32, 16, titan_x(10));
  const Plan chosen = plan_of(input);
  EXPECT_LT(chosen.chunk_bytes, 256 << 10);
  PlannerInput pinned = input;
  for (const PlanLayer& layer : chosen.layers) {
    pinned.sync.layer_schemes[layer.name] = layer.scheme == Scheme::kSfb ? "sfb" : "ps";
  }
  EXPECT_EQ(plan_of(pinned).chunk_bytes, chosen.chunk_bytes);
  EXPECT_EQ(plan_of(pinned).window_bytes, chosen.window_bytes);
  input.sync.scheme = "sfb";
  EXPECT_EQ(plan_of(input).chunk_bytes, 256 << 10);
  // Nor are they filled to the last percent, which no link carries.
  double busy_s = 0.0;
  for (const PlanLayer& layer : chosen.layers) {
    busy_s += layer.scheme == Scheme::kSfb ? layer.prediction->sfb_s : layer.prediction->ps_s;
  }
  EXPECT_LT(busy_s, chosen.prediction->compute_s);
}

// Of a plan that the job gives, or of the epoch before.
TEST(TimeRule, APinnedPlanKeepsItsSizeOfChunksAndOfWindows) {
  PlannerInput input = convolutions(10);
  const Plan chosen = plan_of(input);
  ASSERT_LT(chosen.chunk_bytes, kDefaultChunkBytes);
  ASSERT_LT(chosen.window_bytes, kWorkerWindowBytes);
  input.sync.plan = plan_pin_to_json(pin_of(chosen));
  EXPECT_EQ(plan_of(input).window_bytes, chosen.window_bytes);
  EXPECT_EQ(plan_of(input).chunk_bytes, chosen.chunk_bytes);
}

TEST(TimeRule, TheSameInputGivesTheSamePlan) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SplitMix64 random(seed);
    const PlannerInput input = random_input(random);
    EXPECT_EQ(plan_to_json(plan_of(input)), plan_to_json(plan_of(input))) << seed;
  }
}

// Two measurements of one cluster differ by some noise; the byte rule's choice is what they share.
TEST(TimeRule, AMeasuredCalibrationLeavesTheByteRuleOnlyForAGainThatItCanTell) {
  int kept = 0, left = 0, of_other_sizes = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SplitMix64 random(seed);
    PlannerInput input = random_input(random);
    const Plan best = plan_of(input);
    input.calibration->measured = true;
    const Plan measured = plan_of(input);
    PlannerInput bytes_input = input;
    bytes_input.sync.cost = "bytes";
    const Plan by_bytes = plan_of(bytes_input);
    // The same schemes under cost=time, for the same sizes of messages.
    for (const PlanLayer& layer : by_bytes.layers) {
      input.sync.layer_schemes[layer.name] = layer.scheme == Scheme::kSfb ? "sfb" : "ps";
    }
    const Plan same = plan_of(input);
    if (same.window_bytes != best.window_bytes || same.chunk_bytes != best.chunk_bytes) {
      ++of_other_sizes;
      continue;
    }
    const double gain = 1 - best.prediction->iteration_s / same.prediction->iteration_s;
    if (fully_connected_schemes(best) == fully_connected_schemes(by_bytes)) {
      EXPECT_EQ(fully_connected_schemes(measured), fully_connected_schemes(by_bytes)) << seed;
    } else if (gain < kLeastMeasuredGain) {
      ++kept;
      EXPECT_EQ(fully_connected_schemes(measured), fully_connected_schemes(by_bytes)) << seed;
      EXPECT_LE(measured.prediction->iteration_s,
                best.prediction->iteration_s / (1 - kLeastMeasuredGain) * (1 + 1e-9));
      const bool said =
          std::any_of(measured.layers.begin(), measured.layers.end(), [](const PlanLayer& layer) {
            return layer.reason.find("less than a measurement tells") != std::string::npos;
          });
      EXPECT_TRUE(said) << seed;
    } else {
      ++left;
      EXPECT_EQ(fully_connected_schemes(measured), fully_connected_schemes(best)) << seed;
    }
  }
  EXPECT_GT(kept, 5);
  EXPECT_GT(left, 5);
  EXPECT_LT(of_other_sizes, 50);
}

// The schemes of an earlier run, whatever rule gave them then.
TEST(TimeRule, TheSchemesOfAnEarlierRunStayUnlessAMeasurementTellsAGain) {
  int kept = 0, left = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SplitMix64 random(seed);
    PlannerInput input = random_input(random);
    const Plan best = plan_of(input);
    EarlierPlan earlier{.job_id = "net-3", .schemes = {}};
    for (const PlannerLayer& layer : input.layers) {
      if (layer.is_fully_connected) {
        earlier.schemes[layer.name] = random.below(2) == 0 ? Scheme::kPs : Scheme::kSfb;
      }
    }
    input.earlier = earlier;
    EXPECT_EQ(plan_to_json(plan_of(input)), plan_to_json(best)) << "nothing was measured";
    input.calibration->measured = true;
    const Plan again = plan_of(input);
    std::vector<Scheme> as_before;
    for (const PlanLayer& layer : again.layers) {
      if (layer.shape.size() == 2) as_before.push_back(earlier.schemes.at(layer.name));
    }
    PlannerInput fresh = input;
    fresh.earlier.reset();
    const Plan chosen = plan_of(fresh);
    if (fully_connected_schemes(chosen) == as_before) {
      EXPECT_EQ(plan_to_json(again), plan_to_json(chosen)) << seed;
    } else if (fully_connected_schemes(again) == as_before) {
      ++kept;
      EXPECT_LE(again.prediction->iteration_s,
                best.prediction->iteration_s / (1 - kLeastMeasuredGain) * (1 + 1e-9))
          << seed;
      const bool said = std::ranges::any_of(again.layers, [](const PlanLayer& layer) {
        return layer.reason.find("as in net-3: ") == 0;
      });
      EXPECT_TRUE(said) << seed;
      // Its measured neighbour: with the schemes in force there is nothing to leave.
      PlannerInput third = input;
      third.earlier->job_id = "net-4";
      for (LayerTimes& times : third.calibration->layers) times.forward_s *= 1.002;
      EXPECT_EQ(fully_connected_schemes(plan_of(third)), as_before) << seed;
    } else {
      ++left;
      EXPECT_EQ(plan_to_json(again), plan_to_json(chosen)) << seed;
    }
  }
  EXPECT_GT(kept, 5);
  EXPECT_GT(left, 5);
}

TEST(TimeRule, AnEarlierRunOfOtherLayersIsNoGuide) {
  PlannerInput input = cluster_input(vgg19(1000), 32, 8, titan_x(10));
  input.calibration->measured = true;
  const std::string chosen = plan_to_json(plan_of(input));
  input.earlier = EarlierPlan{.job_id = "net-3", .schemes = {{"fc6", Scheme::kPs}}};
  EXPECT_EQ(plan_to_json(plan_of(input)), chosen);
}

// What the job asks for by name is no choice, of this run or an earlier one.
TEST(TimeRule, AnEarlierRunChangesNoLayerThatTheJobNames) {
  PlannerInput input = cluster_input(vgg19(1000), 32, 8, titan_x(10));
  input.calibration->measured = true;
  input.sync.layer_schemes = {{"fc6", "ps"}, {"fc7", "sfb"}};
  input.earlier =
      EarlierPlan{.job_id = "net-3",
                  .schemes = {{"fc6", Scheme::kSfb}, {"fc7", Scheme::kPs}, {"fc8", Scheme::kPs}}};
  const std::vector<Scheme> schemes = fully_connected_schemes(plan_of(input));
  EXPECT_EQ(schemes[0], Scheme::kPs);
  EXPECT_EQ(schemes[1], Scheme::kSfb);
}

TEST(TimeRule, ReasonsSpeakInFittingUnits) {
  PlannerInput input = cluster_input({fully_connected("fc", 16, 16)}, 1, 4, titan_x(40));
  input.calibration->layers[0] = {"fc", 1e-6, 2e-6};
  input.calibration->latency_s = 1e-6;
  EXPECT_THAT(plan_of(input).layers[0].reason, HasSubstr(" us by "));
  input.calibration->layers[0] = {"fc", 1.0, 2.0};
  EXPECT_THAT(plan_of(input).layers[0].reason, HasSubstr(" s by "));
}

TEST(TimeRule, ACalibrationOfSomethingElseIsRefused) {
  const PlannerInput good = cluster_input(vgg19(1000), 32, 4, titan_x(10));
  PlannerInput input = good;
  input.calibration->workers.pop_back();
  EXPECT_THAT(std::string(make_plan(input).status().message()),
              HasSubstr("of 3 workers and 4 servers"));
  input = good;
  input.calibration->layers[3].name = "other";
  EXPECT_THAT(std::string(make_plan(input).status().message()), HasSubstr("calibrate again"));
  input = good;
  input.calibration->device_ops_per_s = NAN;
  EXPECT_THAT(std::string(make_plan(input).status().message()), HasSubstr("device_ops_per_s"));
}

}  // namespace
}  // namespace poseidon::time_rule_test
