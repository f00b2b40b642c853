// Small networks of the large ones' blocks, whole passes through the executor, on every device,
// against PyTorch in double precision (network_checks.h).

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/network_checks.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::block_golden_test {
namespace {

struct NamedDevice {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

class BlockGolden : public ::testing::TestWithParam<NamedDevice> {};

TEST_P(BlockGolden, MatchesPyTorch) { testing::blocks_match_pytorch(GetParam().make); }

INSTANTIATE_TEST_SUITE_P(
    Devices, BlockGolden,
    ::testing::Values(NamedDevice{"reference", make_reference_device},
                      NamedDevice{"cpu_1_thread", [] { return make_cpu_device(1); }},
                      NamedDevice{"cpu_2_threads", [] { return make_cpu_device(2); }}),
    [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace poseidon::block_golden_test
