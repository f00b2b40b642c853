#include "coordinator/planning/cost/scheme_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::scheme_search_test {
namespace {

double uniform(SplitMix64& random) {
  return static_cast<double>(random.below(1 << 20)) / (1 << 20);
}

struct Problem {
  IterationModel model;
  std::vector<std::size_t> free;
  std::vector<std::vector<Scheme>> starts;
};

/// Networks in which neither the network nor the device is always the bottleneck.
Problem random_problem(SplitMix64& random, std::size_t layers, std::size_t free) {
  Problem problem;
  IterationModel& model = problem.model;
  for (std::size_t i = 0; i < layers; ++i) {
    const double backward_s = 1e-3 * uniform(random);
    ModelLayer layer{.forward_s = 0.5 * backward_s,
                     .backward_s = backward_s,
                     .bytes = std::pow(10.0, 3 + 4 * uniform(random))};
    if (layers - i <= free) {
      layer.sfb_applies = true;
      layer.factor_bytes = layer.bytes * uniform(random);
      layer.sfb_backward_s = 0.5 * backward_s;
      layer.rebuild_s = 4e-3 * uniform(random);
      problem.free.push_back(i);
    }
    model.layers.push_back(layer);
  }
  const double rate = std::pow(10.0, 8.5 + 2 * uniform(random));
  model.links = {
      {.push_s_per_byte = 1 / rate, .pull_s_per_byte = 1 / rate, .factor_s_per_byte = 2 / rate},
      {.push_s_per_byte = 1.5 / rate,
       .pull_s_per_byte = 0.7 / rate,
       .factor_s_per_byte = 1 / rate}};
  model.latency_s = 1e-5;
  model.sum_s_per_byte = 0.3 / rate;
  model.chunk_bytes = 1 << 18;
  model.stripe_bytes = 1 << 19;
  model.servers = 2;
  model.largest_share = 0.5;
  problem.starts.assign(3, std::vector<Scheme>(layers, Scheme::kPs));
  for (const std::size_t layer : problem.free) {
    problem.starts[1][layer] = Scheme::kSfb;
    if (random.below(2) == 0) problem.starts[2][layer] = Scheme::kSfb;
  }
  return problem;
}

double least_of_all(const Problem& problem) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<Scheme> schemes = problem.starts[0];
  for (std::size_t mask = 0; mask < std::size_t{1} << problem.free.size(); ++mask) {
    for (std::size_t i = 0; i < problem.free.size(); ++i) {
      schemes[problem.free[i]] = (mask >> i & 1) != 0 ? Scheme::kSfb : Scheme::kPs;
    }
    least = std::min(least, play_iteration(problem.model, schemes).iteration_s);
  }
  return least;
}

TEST(SchemeSearch, SmallCasesAreExact) {
  SplitMix64 random(7);
  for (int round = 0; round < 60; ++round) {
    const Problem problem = random_problem(random, 4 + random.below(12), random.below(5));
    const SearchResult result = search_schemes(problem.model, problem.starts, problem.free);
    EXPECT_TRUE(result.exact);
    EXPECT_NEAR(result.iteration_s, least_of_all(problem), 1e-9 * result.iteration_s)
        << "round " << round;
    EXPECT_DOUBLE_EQ(play_iteration(problem.model, result.schemes).iteration_s, result.iteration_s);
    for (const std::size_t layer : problem.free) {
      EXPECT_GE(result.flipped_s[layer], result.iteration_s * (1 - 1e-9));
    }
  }
}

TEST(SchemeSearch, BeyondTheExactLimitItIsNeverWorseThanItsStartsAndHardlyThanTheBest) {
  SplitMix64 random(11);
  double worst = 1.0;
  for (int round = 0; round < 60; ++round) {
    const Problem problem = random_problem(random, 10 + random.below(10), 8);
    const SearchResult result = search_schemes(problem.model, problem.starts, problem.free,
                                               {.exact_limit = 0, .work_limit = 150'000});
    EXPECT_FALSE(result.exact);
    for (const std::vector<Scheme>& start : problem.starts) {
      EXPECT_LE(result.iteration_s, play_iteration(problem.model, start).iteration_s);
    }
    worst = std::max(worst, result.iteration_s / least_of_all(problem));
  }
  // Single flips and pairs can end in a local optimum; over these seeds within 2 %.
  EXPECT_LE(worst, 1.02);
}

TEST(SchemeSearch, WorkIsBoundedAndStartsAreKeptWhateverTheBudget) {
  SplitMix64 random(13);
  const Problem problem = random_problem(random, 500, 500);
  for (const std::int64_t work_limit : {1, 10'000, 150'000}) {
    const SearchResult result = search_schemes(problem.model, problem.starts, problem.free,
                                               {.exact_limit = 10, .work_limit = work_limit});
    EXPECT_LE(result.plays, 3 + work_limit / 564 + 1);
    for (const std::vector<Scheme>& start : problem.starts) {
      EXPECT_LE(result.iteration_s, play_iteration(problem.model, start).iteration_s);
    }
  }
}

TEST(SchemeSearch, LayersThatAreNotFreeKeepTheirScheme) {
  SplitMix64 random(17);
  Problem problem = random_problem(random, 12, 6);
  for (std::vector<Scheme>& start : problem.starts)
    start[10] = Scheme::kSfb, start[11] = Scheme::kPs;
  problem.free.resize(4);
  const SearchResult result = search_schemes(problem.model, problem.starts, problem.free);
  EXPECT_EQ(result.schemes[10], Scheme::kSfb);
  EXPECT_EQ(result.schemes[11], Scheme::kPs);
  EXPECT_TRUE(std::isnan(result.flipped_s[10]));
}

TEST(SchemeSearch, EquallyFastChoicesKeepTheNetworkLessBusy) {
  SplitMix64 random(19);
  Problem problem = random_problem(random, 3, 1);
  // All hidden, and the rebuild costs exactly what backward saves.
  for (LinkLoad& link : problem.model.links) link = {1e-13, 1e-13, 1e-13};
  problem.model.latency_s = problem.model.sum_s_per_byte = 0.0;
  ModelLayer& layer = problem.model.layers[2];
  layer.rebuild_s = layer.backward_s - layer.sfb_backward_s;
  layer.factor_bytes = 0.5 * layer.bytes;
  const SearchResult result = search_schemes(problem.model, problem.starts, problem.free);
  EXPECT_EQ(result.schemes[2], Scheme::kSfb);
}

}  // namespace
}  // namespace poseidon::scheme_search_test
