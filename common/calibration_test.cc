#include "common/calibration.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Calibration measured() {
  return {.measured = true,
          .layers = {{"conv1", 0.25, 0.5}, {"fc \"8\"", 0.0, 1e-6}},
          .device_ops_per_s = 1.5e12,
          .server_sum_bytes_per_s = 3e9,
          .latency_s = 0.0,
          .workers = {{1e9, 2e9}, {3e9, 4e9}},
          .servers = {{5e9, 6e9}}};
}

Json as_json() { return Json::parse(calibration_to_json(measured()).dump()); }

TEST(Calibration, RoundTrip) {
  const absl::StatusOr<Calibration> back = calibration_from_json(as_json(), "plan.json");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(calibration_to_json(*back), calibration_to_json(measured()));
  EXPECT_TRUE(back->measured);
  EXPECT_EQ(back->workers[1].receive_bytes_per_s, 4e9);
  EXPECT_EQ(back->layers[1].backward_s, 1e-6);
}

TEST(Calibration, RefusesWhatIsWrongByItsKey) {
  const struct {
    const char* where;
    Json value;
    const char* message;
  } cases[] = {
      {"/device_ops_per_s", 0, "calibration.device_ops_per_s is 0; it must be above 0"},
      {"/device_ops_per_s", "fast", "calibration.device_ops_per_s: expected a number"},
      {"/latency_seconds", -1, "calibration.latency_seconds is -1; it must be at least 0"},
      {"/workers", Json::array(), "calibration.workers: expected"},
      {"/workers/0/send_bytes_per_s", -5, "calibration.workers[0].send_bytes_per_s is -5"},
      {"/servers/0/receive", 1, "calibration.servers[0].receive: unknown key"},
      {"/layers/1/forward_seconds", -1e-3, "forward_seconds is -0.001"},
      {"/layers/0/name", 3, "calibration.layers[0].name: expected a text"},
      {"/speed", 3, "calibration.speed: unknown key"},
  };
  for (const auto& test : cases) {
    Json json = as_json();
    json[Json::json_pointer(test.where)] = test.value;
    const absl::Status status = calibration_from_json(json, "plan.json").status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("plan.json"), HasSubstr(test.message)))
        << test.where;
  }
  Json json = as_json();
  json.erase("workers");
  EXPECT_THAT(std::string(calibration_from_json(json, "p").status().message()),
              HasSubstr("calibration.workers: is missing"));
  EXPECT_FALSE(calibration_from_json(Json(3), "p").ok());
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
}  // namespace poseidon
