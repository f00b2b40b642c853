#include "common/plan/plan_pin.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::plan_pin_test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json plan_file() {
  return Json::parse(
      R"({"epoch": 4, "workers": 4, "servers": 2, "extra": [1], "chunk_bytes": 262144,
    "window_bytes": 8388608, "local_groups": [[0, 2], [3, 1]],
    "layers": [{"name": "conv1", "type": "convolution", "shape": [2, 1, 3, 3], "parameters": 20,
                "scheme": "ps", "reason": "r"},
               {"name": "fc", "type": "fully_connected", "shape": [10, 5], "parameters": 60,
                "scheme": "sfb"}],
    "chunks": [{"layer": 0, "offset": 0, "elements": 20, "server": 1}]})");
}

TEST(PlanPin, TakesWhatItNeedsOfAPlanFile) {
  const absl::StatusOr<PlanPin> pin = plan_pin_from_json(plan_file(), "plan.json");
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->workers, 4u);
  EXPECT_EQ(pin->servers, 2u);
  EXPECT_EQ(pin->chunk_bytes, 262144);
  EXPECT_EQ(pin->window_bytes, 8388608);
  EXPECT_EQ(pin->leaders,
            (std::vector{WorkerRank(0), WorkerRank(1), WorkerRank(0), WorkerRank(1)}));
  ASSERT_EQ(pin->layers.size(), 2u);
  EXPECT_EQ(pin->layers[1].scheme, Scheme::kSfb);
  EXPECT_EQ(pin->layers[1].parameters, 60);
  ASSERT_EQ(pin->chunks.size(), 1u);
  EXPECT_EQ(pin->chunks[0].server, ServerIndex(1));
  const Json again = plan_pin_to_json(*pin);
  EXPECT_EQ(plan_pin_to_json(*plan_pin_from_json(again, "x")), again);
  EXPECT_FALSE(again.contains("extra"));
}

TEST(PlanPin, ChunksTheirSizeAndGroupsMayBeMissing) {
  Json json = plan_file();
  json.erase("local_groups");
  json.erase("workers");
  json.erase("chunks");
  json.erase("chunk_bytes");
  json.erase("window_bytes");
  ASSERT_TRUE(plan_pin_from_json(json, "p").ok());
  EXPECT_TRUE(plan_pin_from_json(json, "p")->chunks.empty());
  EXPECT_TRUE(plan_pin_from_json(json, "p")->leaders.empty());
  EXPECT_EQ(plan_pin_from_json(json, "p")->workers, 0U);
  EXPECT_EQ(plan_pin_from_json(json, "p")->chunk_bytes, 0);
  EXPECT_EQ(plan_pin_from_json(json, "p")->window_bytes, 0);
}

TEST(PlanPin, RefusesByKey) {
  const struct {
    const char* where;
    Json value;
    const char* message;
  } cases[] = {
      {"/servers", 0, "servers: expected an integer from 1"},
      {"/chunk_bytes", 3, "chunk_bytes: expected 0 (not known)"},
      {"/chunk_bytes", 1 << 30, "chunk_bytes: expected an integer from 0"},
      {"/window_bytes", 4096, "window_bytes: expected 0 (not known) or at least 65536"},
      {"/window_bytes", std::int64_t{1} << 40, "window_bytes: expected an integer from 0"},
      {"/local_groups/0", Json::array(), "local_groups: expected lists of worker ranks"},
      {"/local_groups/0/1", 1, "local_groups: expected lists"},
      {"/local_groups/0/1", 4, "local_groups: expected lists"},
      {"/local_groups/0/1", -1, "local_groups: expected lists"},
      {"/local_groups/1", 1, "local_groups: expected lists"},
      {"/local_groups", 5, "local_groups: expected"},
      {"/layers", Json::array(), "layers: expected"},
      {"/layers/1/scheme", "sbf", "layers[1].scheme: expected one of"},
      {"/layers/1/shape", {10, 0}, "layers[1].shape[1]: expected"},
      {"/layers/0/parameters", "20", "layers[0].parameters: expected"},
      {"/chunks/0/server", -1, "chunks[0].server: expected"},
      {"/chunks/0/elements", 1 << 30, "chunks[0].elements: expected"},
      {"/chunks/0", 5, "chunks[0]: expected an object"},
  };
  for (const auto& test : cases) {
    Json json = plan_file();
    json[Json::json_pointer(test.where)] = test.value;
    EXPECT_THAT(std::string(plan_pin_from_json(json, "plan.json").status().message()),
                AllOf(StartsWith("plan.json"), HasSubstr(test.message)))
        << test.where;
  }
  for (const char* missing : {"servers", "layers"}) {
    Json json = plan_file();
    json.erase(missing);
    EXPECT_THAT(std::string(plan_pin_from_json(json, "p").status().message()),
                HasSubstr(std::string(missing) + ": is missing"));
  }
  EXPECT_FALSE(plan_pin_from_json(Json("path"), "p").ok());
}

}  // namespace
}  // namespace poseidon::plan_pin_test
