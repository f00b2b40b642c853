// Every layer type, forward and all gradients, on every device, against PyTorch in double precision
// (layer_checks.h).

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/layer_checks.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::layer_golden_test {
namespace {

struct NamedDevice {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

class LayerGolden : public ::testing::TestWithParam<NamedDevice> {};

TEST_P(LayerGolden, MatchesPyTorch) { testing::layers_match_pytorch(*GetParam().make(), {}); }

INSTANTIATE_TEST_SUITE_P(
    Devices, LayerGolden,
    ::testing::Values(NamedDevice{"reference", make_reference_device},
                      NamedDevice{"cpu_1_thread", [] { return make_cpu_device(1); }},
                      NamedDevice{"cpu_2_threads", [] { return make_cpu_device(2); }}),
    [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace poseidon::layer_golden_test
