#include "tests/support/network_checks.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/support/layer_harness.h"

namespace poseidon::testing {
namespace {

using nlohmann::json;

// make_tensor of the generator.
std::vector<float> draw(const ParameterSpec& tensor, const std::string& name, std::uint64_t seed) {
  std::vector<float> result = values(mix_seed(seed, fnv1a_64(name)), element_count(tensor.shape));
  const double fan_in =
      static_cast<double>(element_count(tensor.shape)) / static_cast<double>(tensor.shape.front());
  for (float& value : result) {
    const double v = value;
    double scaled = 0.25 * v;
    if (tensor.shape.size() > 1) {
      scaled = v * std::sqrt(6.0 / fan_in);
    } else if (tensor.name == "weight") {
      scaled = 1.0 + 0.5 * v;
    }
    value = static_cast<float>(scaled);
  }
  return result;
}

// Rounding errors of a value go through every layer above and below: they add up like random
// numbers, over the layers (at most 30 here) and over the longest sums (256 terms) of each. 8 to
// spare, for what batch normalisation divides by deviations below 1.
const double kTolerance = 8 * std::sqrt(30.0 * 256.0) * kFloatEpsilon;

void compare_gradients(Executor& executor, const json& golden) {
  const auto gradients = gradients_by_name(executor);
  EXPECT_EQ(gradients.size(), golden["gradients"].size());
  for (const json& wanted : golden["gradients"]) {
    SCOPED_TRACE(wanted["name"]);
    const std::vector<float>& gradient = gradients.at(wanted["name"].get<std::string>());
    std::vector<float> sampled;
    double squares = 0.0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      if (i % wanted["step"].get<std::size_t>() == 0) sampled.push_back(gradient[i]);
      squares += static_cast<double>(gradient[i]) * gradient[i];
    }
    EXPECT_TRUE(all_near(sampled, wanted["values"], kTolerance * wanted["largest"].get<double>()));
    const double norm = wanted["norm"];
    EXPECT_NEAR(std::sqrt(squares), norm, kTolerance * norm);
  }
}

void compare_statistics(Executor& executor, const json& golden) {
  std::vector<float> all(static_cast<std::size_t>(executor.net().statistics_count()));
  ASSERT_TRUE(executor.read_statistics(all).ok());
  const std::vector<StatisticPlace> places = statistic_places(executor.net());
  EXPECT_EQ(places.size(), golden["statistics"].size());
  for (const StatisticPlace& place : places) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(place.offset);
    const std::vector<float> got(begin,
                                 begin + static_cast<std::ptrdiff_t>(element_count(place.shape)));
    EXPECT_TRUE(all_near(got, golden["statistics"].at(place.name), kTolerance)) << place.name;
  }
}

}  // namespace

json golden_blocks() {
  std::ifstream file("tests/golden/networks/blocks.json");
  EXPECT_TRUE(file) << "run from the repository root";
  return file ? json::parse(file) : json::array();
}

void fill_golden_parameters(Executor& executor, const json& golden) {
  const auto seed = golden["seed"].get<std::uint64_t>();
  LayerIndex index;
  for (const std::size_t i : executor.net().parameter_layers()) {
    const LayerSpec& layer = executor.net().layers[i];
    auto target = executor.parameters(index).begin();
    for (const ParameterSpec& tensor : layer.parameters) {
      const auto drawn = draw(tensor, absl::StrCat(layer.name, ".", tensor.name), seed);
      target = std::copy(drawn.begin(), drawn.end(), target);
    }
    index = index.next();
  }
}

std::map<std::string, std::vector<float>> gradients_by_name(Executor& executor) {
  std::map<std::string, std::vector<float>> result;
  LayerIndex index;
  for (const std::size_t i : executor.net().parameter_layers()) {
    auto all = executor.gradients(index);
    for (const ParameterSpec& tensor : executor.net().layers[i].parameters) {
      const auto count = static_cast<std::size_t>(element_count(tensor.shape));
      const auto part = all.first(count);
      all = all.subspan(count);
      result[absl::StrCat(executor.net().layers[i].name, ".", tensor.name)] = {part.begin(),
                                                                               part.end()};
    }
    index = index.next();
  }
  return result;
}

Batch golden_batch(const json& golden, const NetSpec& net) {
  Batch batch;
  batch.samples = batch.valid_samples = golden["batch"];
  const auto seed = golden["seed"].get<std::uint64_t>();
  batch.images = values(mix_seed(seed, 0), batch.samples * element_count(net.input_shape));
  batch.labels = golden["labels"].get<std::vector<std::int32_t>>();
  return batch;
}

void blocks_match_pytorch(const std::function<std::unique_ptr<Device>()>& make) {
  const json cases = golden_blocks();
  ASSERT_EQ(cases.size(), 6u);
  for (const json& golden : cases) {
    SCOPED_TRACE(golden["network"]["name"]);
    const auto net = parse_network(golden["network"]);
    ASSERT_TRUE(net.ok()) << net.status().message();
    const Batch batch = golden_batch(golden, *net);
    auto device = make();
    ASSERT_NE(device, nullptr);
    const auto executor = NetworkExecutor::create(*net, {batch.samples, 1, 2}, std::move(device));
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    fill_golden_parameters(**executor, golden);

    const auto trained = (*executor)->forward(batch, Phase::kTrain, {});
    ASSERT_TRUE(trained.ok()) << trained.status().message();
    EXPECT_NEAR(trained->mean_loss(), golden["loss"].get<double>(), kTolerance);
    const absl::Status backward = (*executor)->backward({});
    ASSERT_TRUE(backward.ok()) << backward;
    compare_gradients(**executor, golden);
    compare_statistics(**executor, golden);

    const auto tested = (*executor)->forward(batch, Phase::kTest, {});
    ASSERT_TRUE(tested.ok()) << tested.status().message();
    EXPECT_NEAR(tested->mean_loss(), golden["tested_loss"].get<double>(), kTolerance);
    EXPECT_EQ(tested->correct, golden["hits"].get<std::int64_t>());
    compare_statistics(**executor, golden);
  }
}

}  // namespace poseidon::testing
