#include "models/net/initialise.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace poseidon::initialise_test {
namespace {

using nlohmann::json;

std::vector<std::vector<float>> initialised(const json& model, std::uint64_t seed) {
  const auto net = resolve_network(model, ".");
  EXPECT_TRUE(net.ok()) << net.status().message();
  std::vector<std::vector<float>> parameters;
  for (const std::size_t i : net->parameter_layers()) {
    parameters.emplace_back(static_cast<std::size_t>(net->layers[i].parameter_count()), -7.0f);
  }
  initialise_parameters(*net, seed,
                        [&](LayerIndex layer) { return std::span(parameters[layer.value()]); });
  return parameters;
}

json one_layer(const std::string& name, const json& weight, int extra_layers = 0) {
  json net = {{"name", "n"}, {"input", {400}}, {"layers", json::array()}};
  for (int i = 0; i < extra_layers; ++i) {
    net["layers"].push_back(
        {{"name", "extra" + std::to_string(i)}, {"type", "fully_connected"}, {"outputs", 400}});
  }
  net["layers"].push_back(
      {{"name", name},
       {"type", "fully_connected"},
       {"outputs", 100},
       {"init", {{"weight", weight}, {"bias", {{"type", "constant"}, {"value", 0.25}}}}}});
  net["layers"].push_back({{"name", "l"}, {"type", "softmax_cross_entropy"}});
  return net;
}

struct Moments {
  double mean = 0.0, deviation = 0.0, largest = 0.0;
};
Moments moments(std::span<const float> values) {
  Moments m;
  for (const float v : values) {
    m.mean += v / static_cast<double>(values.size());
    m.largest = std::max(m.largest, std::abs(static_cast<double>(v)));
  }
  for (const float v : values) {
    m.deviation += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
  }
  m.deviation = std::sqrt(m.deviation);
  return m;
}

TEST(Initialise, DistributionsHaveTheirMoments) {
  const double bound = std::sqrt(3.0 / 400.0);
  const auto xavier = initialised(one_layer("f", {{"type", "xavier"}}), 1)[0];
  const Moments uniform = moments(std::span(xavier).first(40000));
  // 40,000 draws: the mean's error is deviation / 200, the deviation's about half a percent.
  EXPECT_NEAR(uniform.mean, 0.0, 4 * bound / 200);
  EXPECT_NEAR(uniform.deviation, bound / std::sqrt(3.0), 0.02 * bound);
  EXPECT_LE(uniform.largest, bound);
  EXPECT_GT(uniform.largest, 0.99 * bound);
  for (const float bias : std::span(xavier).subspan(40000)) EXPECT_EQ(bias, 0.25f);

  const auto he = initialised(one_layer("f", {{"type", "he"}}), 1)[0];
  EXPECT_NEAR(moments(std::span(he).first(40000)).deviation, std::sqrt(2.0 / 400), 0.0015);
  const auto gaussian = initialised(one_layer("f", {{"type", "gaussian"}, {"std", 3.0}}), 1)[0];
  EXPECT_NEAR(moments(std::span(gaussian).first(40000)).deviation, 3.0, 0.06);
  const auto constant = initialised(one_layer("f", {{"type", "constant"}, {"value", 2}}), 1)[0];
  EXPECT_EQ(constant[39999], 2.0f);
}

// 400 inputs, 100 outputs.
TEST(Initialise, FanModes) {
  const auto deviation = [](const json& weight) {
    return moments(std::span(initialised(one_layer("f", weight), 1)[0]).first(40000)).deviation;
  };
  EXPECT_NEAR(deviation({{"type", "he"}, {"mode", "fan_out"}}), std::sqrt(2.0 / 100), 0.003);
  EXPECT_NEAR(deviation({{"type", "he"}, {"mode", "average"}}), std::sqrt(2.0 / 250), 0.002);
  EXPECT_NEAR(deviation({{"type", "xavier"}, {"mode", "fan_out"}}), std::sqrt(1.0 / 100), 0.002);
  // PyTorch's xavier_uniform_: within sqrt(6 / (fan-in + fan-out)).
  const auto glorot = initialised(one_layer("f", {{"type", "xavier"}, {"mode", "average"}}), 1)[0];
  const double largest = moments(std::span(glorot).first(40000)).largest;
  EXPECT_LE(largest, std::sqrt(6.0 / 500));
  EXPECT_GT(largest, 0.99 * std::sqrt(6.0 / 500));
}

TEST(Initialise, FanOfAConvolutionCountsTheKernel) {
  json net = one_layer("f", {{"type", "constant"}});
  net["input"] = {8, 5, 5};
  const json conv = {{"name", "c"},
                     {"type", "convolution"},
                     {"outputs", 64},
                     {"kernel", {3, 5}},
                     {"groups", 2},
                     {"bias", false},
                     {"init", {{"weight", {{"type", "xavier"}, {"mode", "fan_out"}}}}}};
  net["layers"].insert(net["layers"].begin(), conv);
  const Moments drawn = moments(initialised(net, 1)[0]);
  const double bound = std::sqrt(3.0 / (64 * 15));
  EXPECT_LE(drawn.largest, bound);
  EXPECT_GT(drawn.largest, 0.99 * bound);
}

TEST(Initialise, TruncatedAndUniform) {
  const auto truncated =
      initialised(one_layer("f", {{"type", "truncated_gaussian"}, {"std", 0.5}}), 1)[0];
  const Moments drawn = moments(std::span(truncated).first(40000));
  EXPECT_LE(drawn.largest, 1.0);
  EXPECT_GT(drawn.largest, 0.99);
  // A normal variable cut at 2 deviations has 0.8796 of its deviation left.
  EXPECT_NEAR(drawn.deviation, 0.8796 * 0.5, 0.005);
  const auto uniform = initialised(one_layer("f", {{"type", "uniform"}, {"bound", 0.25}}), 1)[0];
  EXPECT_NEAR(moments(std::span(uniform).first(40000)).deviation, 0.25 / std::sqrt(3.0), 0.002);
  EXPECT_LE(moments(std::span(uniform).first(40000)).largest, 0.25);
}

TEST(Initialise, DependsOnSeedAndNameAlone) {
  const json xavier = {{"type", "xavier"}};
  const auto once = initialised(one_layer("f", xavier), 1)[0];
  EXPECT_EQ(initialised(one_layer("f", xavier), 1)[0], once);
  EXPECT_EQ(initialised(one_layer("f", xavier, 2), 1)[2], once) << "other layers do not matter";
  EXPECT_NE(initialised(one_layer("f", xavier), 2)[0], once);
  EXPECT_NE(initialised(one_layer("g", xavier), 1)[0], once);
}

// From tests/data/sampling.py: initial_uniform(1, "conv1.weight", 4, 0.5),
// initial_normal(1, "fc6.weight", 4, 0.01), initial_normal(3, "a.weight", 100, 1, 2)[83:85].
TEST(Initialise, KnownAnswers) {
  const auto first = [](const std::string& layer, const json& weight, std::uint64_t seed) {
    return initialised(one_layer(layer, weight), seed)[0];
  };
  const auto uniform = first("conv1", {{"type", "uniform"}, {"bound", 0.5}}, 1);
  EXPECT_EQ(uniform[0], 0.38323885202407837f);
  EXPECT_EQ(uniform[1], -0.1835334300994873f);
  EXPECT_EQ(uniform[2], -0.48317986726760864f);
  EXPECT_EQ(uniform[3], -0.1380971074104309f);
  const auto normal = first("fc6", {{"type", "gaussian"}, {"std", 0.01}}, 1);
  EXPECT_FLOAT_EQ(normal[0], 0.005078419577330351f);
  EXPECT_FLOAT_EQ(normal[1], 0.0071076396852731705f);
  EXPECT_FLOAT_EQ(normal[2], -0.002752781379967928f);
  const auto truncated = first("a", {{"type", "truncated_gaussian"}, {"std", 1}}, 3);
  EXPECT_FLOAT_EQ(truncated[83], -0.8355014324188232f) << "the first draw was -2.2";
}

// Ranges of any size, in any order.
TEST(Initialise, HowTheWorkIsDividedDoesNotMatter) {
  const RangeRunner backwards = [](std::int64_t items, const auto& body) {
    constexpr std::int64_t kPiece = 77;
    for (std::int64_t begin = (items - 1) / kPiece * kPiece; begin >= 0; begin -= kPiece) {
      body(begin, std::min(items, begin + kPiece));
    }
  };
  for (const char* type : {"xavier", "he", "gaussian", "truncated_gaussian", "uniform"}) {
    const json model = one_layer("f", {{"type", type}});
    const auto net = resolve_network(model, ".");
    ASSERT_TRUE(net.ok()) << net.status();
    std::vector<float> values(static_cast<std::size_t>(net->layers[0].parameter_count()));
    initialise_parameters(
        *net, 5, [&](LayerIndex) { return std::span(values); }, backwards);
    EXPECT_EQ(values, initialised(model, 5)[0]) << type;
  }
}

TEST(Initialise, StopsBetweenTwoPieces) {
  const json model = one_layer("f", {{"type", "gaussian"}});
  const auto net = resolve_network(model, ".");
  ASSERT_TRUE(net.ok()) << net.status();
  std::vector<float> values(static_cast<std::size_t>(net->layers[0].parameter_count()), -7.0f);
  const auto parameters = [&](LayerIndex) { return std::span(values); };
  int looks = 0;
  initialise_parameters(*net, 5, parameters,
                        until_stopped(run_here, 100, [&looks] { return ++looks > 3; }));
  const std::vector<float> all = initialised(model, 5)[0];
  EXPECT_TRUE(std::equal(values.begin(), values.begin() + 300, all.begin()));
  EXPECT_EQ(std::count(values.begin(), values.end(), -7.0f),
            static_cast<std::ptrdiff_t>(values.size()) - 300)
      << "nothing more, of no tensor";
  initialise_parameters(*net, 5, parameters, until_stopped(run_here, 100, [] { return false; }));
  EXPECT_EQ(values, all);
}

TEST(Initialise, BiasesAreZeroByDefault) {
  for (const auto& layer : initialised("lenet", 3)) EXPECT_EQ(layer.back(), 0.0f);
}

}  // namespace
}  // namespace poseidon::initialise_test
