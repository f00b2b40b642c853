#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/engine/executor.h"

namespace poseidon {
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

TEST(Initialise, DependsOnSeedAndNameAlone) {
  const json xavier = {{"type", "xavier"}};
  const auto once = initialised(one_layer("f", xavier), 1)[0];
  EXPECT_EQ(initialised(one_layer("f", xavier), 1)[0], once);
  EXPECT_EQ(initialised(one_layer("f", xavier, 2), 1)[2], once) << "other layers do not matter";
  EXPECT_NE(initialised(one_layer("f", xavier), 2)[0], once);
  EXPECT_NE(initialised(one_layer("g", xavier), 1)[0], once);
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

TEST(Initialise, TruncatedValuesStayWithinTwoDeviations) {
  const json model = one_layer("f", {{"type", "truncated_gaussian"}, {"std", 3.0}});
  const auto values = initialised(model, 1)[0];
  const Moments m = moments(std::span(values).first(40000));
  EXPECT_LE(m.largest, 6.0);
  EXPECT_GT(m.largest, 5.9);
  EXPECT_NEAR(m.deviation, 3.0 * 0.8796, 0.05);  // of a standard normal cut at 2: 0.8796
  EXPECT_NEAR(m.mean, 0.0, 4 * 3.0 / 200);
}

TEST(Initialise, BiasesAreZeroByDefault) {
  for (const auto& layer : initialised("lenet", 3)) EXPECT_EQ(layer.back(), 0.0f);
}

}  // namespace
}  // namespace poseidon
