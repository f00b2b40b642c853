#include "common/plan/calibration.h"

#include <cmath>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::calibration_test {
namespace {

using ::testing::HasSubstr;

Calibration measured() {
  return {.measured = true,
          .layers = {{"conv1", 0.25, 0.5}, {"fc \"8\"", 0.0, 1e-6}},
          .device_ops_per_s = 1.5e12,
          .server_sum_bytes_per_s = 3e9,
          .latency_s = 0.0,
          .workers = {{1e9, 2e9}, {3e9, 4e9}},
          .servers = {{5e9, 6e9}}};
}

TEST(Calibration, AsPlanJsonHasIt) {
  EXPECT_EQ(
      calibration_to_json(measured()).dump(),
      R"({"measured":true,"device_ops_per_s":1500000000000.0,"server_sum_bytes_per_s":3000000000.0,)"
      R"("latency_seconds":0.0,"workers":[{"send_bytes_per_s":1000000000.0,"receive_bytes_per_s":2000000000.0},)"
      R"({"send_bytes_per_s":3000000000.0,"receive_bytes_per_s":4000000000.0}],)"
      R"("servers":[{"send_bytes_per_s":5000000000.0,"receive_bytes_per_s":6000000000.0}],)"
      R"("layers":[{"name":"conv1","forward_seconds":0.25,"backward_seconds":0.5},)"
      R"({"name":"fc \"8\"","forward_seconds":0.0,"backward_seconds":1e-06}]})");
}

TEST(Calibration, SpeedsAndTimesMustMakeSense) {
  const auto refused = [](const std::function<void(Calibration&)>& change) {
    Calibration calibration = measured();
    change(calibration);
    return std::string(validate(calibration, "plan.json").message());
  };
  EXPECT_EQ(refused([](Calibration& c) { c.device_ops_per_s = 0; }),
            "plan.json: calibration.device_ops_per_s is 0; it must be above 0");
  EXPECT_EQ(refused([](Calibration& c) { c.latency_s = -1; }),
            "plan.json: calibration.latency_seconds is -1; it must be at least 0");
  EXPECT_EQ(refused([](Calibration& c) { c.workers[0].send_bytes_per_s = -5; }),
            "plan.json: calibration.workers[0].send_bytes_per_s is -5; it must be above 0");
  EXPECT_EQ(refused([](Calibration& c) { c.layers[0].forward_s = -1; }),
            "plan.json: calibration.layers.conv1.forward_seconds is -1; it must be at least 0");
}

TEST(Calibration, NumbersMustBeFinite) {
  Calibration calibration = measured();
  EXPECT_TRUE(validate(calibration, "x").ok());
  calibration.servers[0].send_bytes_per_s = INFINITY;
  EXPECT_THAT(std::string(validate(calibration, "x").message()), HasSubstr("servers[0]"));
  calibration = measured();
  calibration.layers[0].backward_s = NAN;
  EXPECT_THAT(std::string(validate(calibration, "x").message()), HasSubstr("layers.conv1"));
}

}  // namespace
}  // namespace poseidon::calibration_test
