// Every layer type, forward and all gradients, on every device, against PyTorch in double precision
// (tests/golden/layers/generate.py).

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/engine/layer_harness.h"
#include "worker/engine/reference/reference_device.h"

namespace poseidon {
namespace {

using testing::all_near;

struct NamedDevice {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

class LayerGolden : public ::testing::TestWithParam<NamedDevice> {};

TEST_P(LayerGolden, MatchesPyTorch) {
  std::ifstream file("tests/golden/layers/layers.json");
  ASSERT_TRUE(file) << "run from the repository root";
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 30u);
  const std::unique_ptr<Device> device = GetParam().make();
  for (const nlohmann::json& golden : cases) {
    SCOPED_TRACE("seed " + golden["seed"].dump() + ": " + golden["layer"].dump());
    const LayerSpec layer = testing::layer_on(golden["layer"], golden["input"].get<Shape>());
    const std::int64_t batch = golden["batch"];
    const auto data = testing::draw_layer_data(layer, batch, golden["seed"].get<std::uint64_t>());
    const auto result = testing::run_layer(*device, layer, batch, data);
    // All values are below 1: each of the n terms of a sum may round by epsilon, and the sum of n
    // terms is of the order of sqrt(n) at most a few times over.
    const double tolerance = 2 * testing::kFloatEpsilon * testing::reduction_length(layer, batch);
    EXPECT_TRUE(all_near(result.output, golden["output"], tolerance)) << "output";
    EXPECT_TRUE(all_near(result.input_gradient, golden["input_gradient"], tolerance))
        << "input gradient";
    auto parameter_gradients = golden.value("weight_gradient", std::vector<float>{});
    const auto bias = golden.value("bias_gradient", std::vector<float>{});
    parameter_gradients.insert(parameter_gradients.end(), bias.begin(), bias.end());
    EXPECT_TRUE(all_near(result.parameter_gradients, parameter_gradients, tolerance))
        << "parameter gradients";
    if (layer.statistics.empty()) continue;
    EXPECT_TRUE(all_near(result.statistics, golden["statistics"], tolerance)) << "statistics";
    auto testing_data = data;
    testing_data.phase = Phase::kTest;
    EXPECT_TRUE(all_near(testing::run_layer(*device, layer, batch, testing_data).output,
                         golden["tested"], tolerance))
        << "output in tests";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, LayerGolden,
    ::testing::Values(NamedDevice{"reference", make_reference_device},
                      NamedDevice{"cpu_1_thread", [] { return make_cpu_device(1); }},
                      NamedDevice{"cpu_2_threads", [] { return make_cpu_device(2); }}),
    [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace poseidon
