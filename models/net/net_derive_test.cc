#include "models/net/net_derive.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/net/net.h"

namespace poseidon::net_derive_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const json& model) {
  const auto net = resolve_network(model, ".");
  EXPECT_FALSE(net.ok()) << model.dump();
  return std::string(net.status().message());
}

TEST(DeriveNetwork, OtherClassesAndInput) {
  const auto net = resolve_network(
      {{"network", "resnet50"}, {"with", {{"classes", 10}}}, {"input", {3, 64, 64}}}, ".");
  ASSERT_TRUE(net.ok()) << net.status().message();
  EXPECT_EQ(net->name, "resnet50");
  EXPECT_EQ(net->classes, 10);
  EXPECT_THAT(net->input_shape, ElementsAre(3, 64, 64));
  // What jobs carry stands for itself.
  const auto again = parse_network(net->source);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->parameter_count(), net->parameter_count());
}

TEST(DeriveNetwork, FromANetworkThatDerives) {
  const auto net = resolve_network(
      {{"name", "mine"}, {"network", "inception_v3_aux"}, {"with", {{"classes", 5}}}}, ".");
  ASSERT_TRUE(net.ok()) << net.status().message();
  EXPECT_EQ(net->name, "mine");
  EXPECT_EQ(net->classes, 5);
  EXPECT_EQ(net->layers.back().name, "AuxLogits.loss");
  EXPECT_TRUE(net->layers.back().auxiliary);
}

TEST(DeriveNetwork, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal({{"network", "resnet5"}}), HasSubstr("did you mean \"resnet50\"?"));
  EXPECT_THAT(refusal({{"network", 7}}),
              HasSubstr("network: expected the name of a shipped network or a path"));
  EXPECT_THAT(refusal({{"network", "resnet50"}, {"with", {{"clases", 3}}}}),
              HasSubstr("network: with.clases: unknown key; did you mean \"classes\"?"));
  EXPECT_THAT(refusal({{"name", "n"}, {"network", "resnet50"}, {"with", 3}}),
              HasSubstr("network 'n': with: expected an object {...}, got 3"));
  EXPECT_THAT(
      refusal({{"network", "resnet50"}, {"with", {{"classes", "many"}}}}),
      HasSubstr("layer 'fc': outputs: expected an integer from 1 to 1048576, got \"many\""));
  EXPECT_THAT(refusal({{"network", "resnet50"}, {"classes", 3}}),
              HasSubstr("classes: unknown key"));
  EXPECT_THAT(refusal({{"network", "resnet50"}, {"blocks", {{"stage", json::object()}}}}),
              HasSubstr("blocks: the network has a block \"stage\" already"));
  EXPECT_THAT(refusal({{"network", "resnet50"}, {"blocks", 3}}),
              HasSubstr("blocks: expected an object {...}, got 3"));
  EXPECT_THAT(refusal({{"network", "resnet50"}, {"layers", 3}}),
              HasSubstr("layers: expected an array"));
  EXPECT_THAT(refusal({{"network", "lenet"}, {"with", {{"classes", 3}}}}),
              HasSubstr("with.classes: unknown key"));
}

// Files: a base is looked for beside the file that names it, and a circle is no way to go.
TEST(DeriveNetwork, FilesOfTheirFolder) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("net_derive_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "sub");
  std::ofstream(folder / "sub/base.json") << R"({"name": "base", "input": [3], "layers": [
             {"name": "fc", "type": "fully_connected", "outputs": 2},
             {"name": "loss", "type": "softmax_cross_entropy"}]})";
  std::ofstream(folder / "sub/more.json") << R"({"name": "more", "network": "./base.json"})";
  std::ofstream(folder / "circle.json") << R"({"network": "./circle.json"})";
  std::ofstream(folder / "list.json") << "[1]";
  const auto net = resolve_network("sub/more.json", folder);
  ASSERT_TRUE(net.ok()) << net.status().message();
  EXPECT_EQ(net->name, "more");
  EXPECT_EQ(net->layers.size(), 2u);
  const auto circle = resolve_network("./circle.json", folder);
  EXPECT_THAT(std::string(circle.status().message()), HasSubstr("at most 8 of them"));
  const auto list = resolve_network({{"network", "./list.json"}}, folder);
  EXPECT_THAT(std::string(list.status().message()), HasSubstr("expected a network {...}, got [1]"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace poseidon::net_derive_test
