#include "cli/commands/models_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::models_command_test {
namespace {

using ::testing::HasSubstr;

TEST(ModelsCommandTest, JsonHasTheFieldsOfTheContract) {
  const auto net = resolve_network(nlohmann::json("lenet"), ".");
  ASSERT_TRUE(net.ok()) << net.status();
  const nlohmann::json json = network_to_json(*net);
  EXPECT_EQ(json["name"], "lenet");
  EXPECT_EQ(json["parameters"], 431080);
  // 24x24x20x25 + 8x8x50x500 + 800x500 + 500x10
  EXPECT_EQ(json["multiply_adds"], 288000 + 1600000 + 400000 + 5000);
  const nlohmann::json& conv1 = json["layers"][0];
  EXPECT_EQ(conv1["name"], "conv1");
  EXPECT_EQ(conv1["type"], "convolution");
  EXPECT_EQ(conv1["parameters"], 520);
  EXPECT_EQ(conv1["output_shape"], nlohmann::json({20, 24, 24}));
}

TEST(ModelsCommandTest, TextIsATableOfLayers) {
  const auto net = resolve_network(nlohmann::json("lenet"), ".");
  ASSERT_TRUE(net.ok()) << net.status();
  const std::string text = network_to_text(*net);
  EXPECT_THAT(text, HasSubstr("lenet: input 1x28x28, 10 classes, 431,080 parameters"));
  EXPECT_THAT(text, HasSubstr("conv1"));
  EXPECT_THAT(text, HasSubstr("20x24x24"));
  EXPECT_THAT(text, HasSubstr("relu1     relu                   500       -           -"));
  EXPECT_THAT(text, HasSubstr("convolution            2       25,570      1,888,000"));
  EXPECT_THAT(text, HasSubstr("all                    9       431,080     2,293,000"));
}

}  // namespace
}  // namespace poseidon::models_command_test
