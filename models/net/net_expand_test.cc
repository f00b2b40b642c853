#include "models/net/net_expand.h"

#include <ostream>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/net/net.h"

namespace poseidon::net_expand_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json expanded(const json& file) {
  const auto result = expand_network(file, "network 'n'");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : json();
}

std::string refusal(const json& file) {
  const auto result = expand_network(file, "network 'n'");
  EXPECT_FALSE(result.ok()) << result->dump().substr(0, 2000);
  return std::string(result.status().message());
}

// A residual network in small: blocks inside blocks, parameters, defaults, repeats.
json residual() {
  return json::parse(R"({"name": "n", "input": [3, 8, 8],
    "defaults": {"convolution": {"kernel": 3, "pad": 1, "bias": false}},
    "blocks": {
      "conv_relu": {"parameters": {"outputs": null, "stride": 1}, "layers": [
        {"name": "conv", "type": "convolution", "outputs": "$outputs", "stride": "$stride"},
        {"name": "relu", "type": "relu"}]},
      "residual": {"parameters": {"width": null}, "layers": [
        {"name": "a", "block": "conv_relu", "with": {"outputs": "$width"}},
        {"name": "b", "type": "convolution", "outputs": "$width", "kernel": 1, "pad": 0},
        {"name": "sum", "type": "add", "inputs": ["input", "b"]}]},
      "stage": {"parameters": {"width": null, "last": null}, "layers": [
        {"name": "down", "block": "conv_relu", "with": {"outputs": "$width", "stride": 2}},
        {"repeat": [1, "$last"], "layers": [
          {"name": "#", "block": "residual", "with": {"width": "$width"}}]}]}},
    "layers": [
      {"name": "stage1", "block": "stage", "with": {"width": 4, "last": 2}},
      {"name": "stage2", "block": "stage", "with": {"width": 6, "last": 1}},
      {"name": "side", "type": "convolution", "outputs": 6, "inputs": ["stage2"]},
      {"name": "sum", "type": "add", "inputs": ["side", "stage2"]},
      {"name": "fc", "type": "fully_connected", "outputs": 2},
      {"name": "loss", "type": "softmax_cross_entropy"}]})");
}

TEST(ExpandNetwork, BlocksRepeatsAndDefaultsBecomeOneList) {
  const json flat = expanded(residual());
  std::vector<std::string> lines;
  for (const json& layer : flat["layers"]) {
    lines.push_back(layer["name"].get<std::string>() + " <- " +
                    layer.value("inputs", json("before")).dump());
  }
  EXPECT_THAT(
      lines,
      ElementsAre(
          R"(stage1.down.conv <- ["input"])", R"(stage1.down.relu <- ["stage1.down.conv"])",
          R"(stage1.1.a.conv <- ["stage1.down.relu"])", R"(stage1.1.a.relu <- ["stage1.1.a.conv"])",
          R"(stage1.1.b <- ["stage1.1.a.relu"])",
          R"(stage1.1.sum <- ["stage1.down.relu","stage1.1.b"])",
          R"(stage1.2.a.conv <- ["stage1.1.sum"])", R"(stage1.2.a.relu <- ["stage1.2.a.conv"])",
          R"(stage1.2.b <- ["stage1.2.a.relu"])",
          R"(stage1.2.sum <- ["stage1.1.sum","stage1.2.b"])",
          R"(stage2.down.conv <- ["stage1.2.sum"])", R"(stage2.down.relu <- ["stage2.down.conv"])",
          R"(stage2.1.a.conv <- ["stage2.down.relu"])", R"(stage2.1.a.relu <- ["stage2.1.a.conv"])",
          R"(stage2.1.b <- ["stage2.1.a.relu"])",
          R"(stage2.1.sum <- ["stage2.down.relu","stage2.1.b"])", R"(side <- ["stage2.1.sum"])",
          R"(sum <- ["side","stage2.1.sum"])", R"(fc <- "before")", R"(loss <- "before")"));
  EXPECT_EQ(flat["layers"][0], json::parse(R"({"name": "stage1.down.conv", "type": "convolution",
      "inputs": ["input"], "outputs": 4, "stride": 2, "kernel": 3, "pad": 1, "bias": false})"));
  EXPECT_EQ(flat["layers"][4]["kernel"], 1);  // what the layer says itself stays
  EXPECT_FALSE(flat.contains("blocks"));
  EXPECT_FALSE(flat.contains("defaults"));
}

TEST(ExpandNetwork, TheResultParses) {
  const auto net = parse_network(residual());
  ASSERT_TRUE(net.ok()) << net.status().message();
  EXPECT_THAT(net->layers[9].output_shape, ElementsAre(4, 4, 4));
  EXPECT_EQ(net->source, residual()) << "the short form goes into jobs";
}

TEST(ExpandNetwork, NamesOfBlocksAndLayersDiffer) {
  const auto refusal_of = [](const std::string& layers) {
    return refusal(json::parse(R"({"name": "n", "input": [1, 8, 8], "blocks": {"b": {"layers": [
        {"name": "c", "type": "relu"}]}}, "layers": [)" +
                               layers + "]}"));
  };
  const std::string use = R"({"name": "unit", "block": "b"})";
  EXPECT_THAT(refusal_of(use + R"(, {"name": "unit", "type": "relu"})"),
              HasSubstr("layer 'unit': a block stands under this name; names must differ"));
  EXPECT_THAT(refusal_of(R"({"name": "unit", "type": "relu"}, )" + use),
              HasSubstr("a name that no other layer has"));
  EXPECT_THAT(refusal_of(use + ", " + use), HasSubstr("a name that no other layer has"));
  EXPECT_THAT(refusal_of(use + R"(, {"name": "unit.c", "block": "b"})"),
              HasSubstr("a name that no other layer has"));
}

TEST(ExpandNetwork, ADefaultThatMeansNothingToALayerIsLeftOut) {
  const json flat = expanded(json::parse(R"({"name": "n", "input": [1, 8, 8],
      "defaults": {"pooling": {"pool": "average", "kernel": 2, "stride": 2, "pad": 1,
                               "ceil_mode": true, "count_padding": true}},
      "layers": [{"name": "a", "type": "pooling"},
                 {"name": "b", "type": "pooling", "pool": "max"},
                 {"name": "c", "type": "pooling", "global": false},
                 {"name": "d", "type": "pooling", "global": true}]})"));
  const json& layers = flat["layers"];
  EXPECT_EQ(layers[0]["count_padding"], true);
  EXPECT_FALSE(layers[1].contains("count_padding"));
  EXPECT_EQ(layers[1]["kernel"], 2);
  EXPECT_EQ(layers[2]["kernel"], 2);
  EXPECT_EQ(layers[3], json::parse(R"({"name": "d", "type": "pooling", "global": true,
                                       "pool": "average"})"));
}

TEST(ExpandNetwork, APlainFileStaysAsItIs) {
  const json plain = json::parse(R"({"name": "n", "input": [3], "colour": 1, "layers": [
      {"name": "a", "type": "relu", "inputs": ["$x", 3, "later#"]}, 7, {"name": "a"}, {}]})");
  EXPECT_EQ(expanded(plain), plain);
  for (const json& odd : {json(), json(3), json::array(), json{{"layers", 3}}, json{{"a", 1}}}) {
    EXPECT_EQ(expanded(odd), odd);
  }
}

TEST(ExpandNetwork, ARepeatNumbersPlainLayers) {
  const json flat = expanded(json::parse(R"({"layers": [{"repeat": [3, 4], "layers": [
      {"name": "conv#_a#", "type": "relu", "inputs": ["input"]},
      {"name": "r#", "type": "relu"}]}]})"));
  ASSERT_EQ(flat["layers"].size(), 4u);
  EXPECT_EQ(flat["layers"][2]["name"], "conv4_a4");
  EXPECT_EQ(flat["layers"][3], (json{{"name", "r4"}, {"type", "relu"}}));
}

TEST(ExpandNetwork, ParametersOfTheWholeFile) {
  json file = json::parse(R"({"name": "n", "input": [3], "parameters": {"classes": 7},
      "layers": [{"name": "fc", "type": "fully_connected", "outputs": "$classes"},
                 {"name": "loss", "type": "softmax_cross_entropy"}]})");
  EXPECT_EQ(parse_network(file)->classes, 7);
  file["parameters"]["clases"] = 3;
  EXPECT_THAT(refusal(file), HasSubstr("network 'n': the network: no layer reads its parameter "
                                       "\"clases\" (as \"$clases\"); remove it"));
  file["parameters"] = {{"class", 3}};
  EXPECT_THAT(refusal(file), HasSubstr("network 'n': \"$classes\" is no parameter of the network "
                                       "(did you mean \"class\"?), which has class"));
  file["parameters"] = {{"classes", nullptr}};
  EXPECT_THAT(refusal(file),
              HasSubstr("network 'n': parameters.classes: has no default: give it "));
  file["parameters"] = 3;
  EXPECT_THAT(refusal(file), HasSubstr("parameters: expected an object"));
}

struct Bad {
  std::string pointer;  // where in residual()
  json value;           // what to put there; "erase" removes
  std::string message;
};

std::ostream& operator<<(std::ostream& out, const Bad& bad) {
  return out << bad.pointer << " = " << bad.value.dump().substr(0, 80);
}

class BadBlocks : public ::testing::TestWithParam<Bad> {};

TEST_P(BadBlocks, AreRefused) {
  json file = residual();
  const json::json_pointer pointer(GetParam().pointer);
  file[pointer] = GetParam().value;
  if (GetParam().value == "erase") file[pointer.parent_pointer()].erase(pointer.back());
  EXPECT_THAT(refusal(file), HasSubstr(GetParam().message));
  EXPECT_FALSE(parse_network(file).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Definitions, BadBlocks,
    ::testing::Values(
        Bad{"/blocks", 3, "network 'n': blocks: expected an object {name: block} of at most 256"},
        Bad{"/blocks/a b", json::object(), "blocks: a name has 1 to 128 letters"},
        Bad{"/blocks/stage", 3, "network 'n': block 'stage': expected an object {...}, got 3"},
        Bad{"/blocks/stage/layers", "erase", "block 'stage': layers: is missing"},
        Bad{"/blocks/stage/layers", json::array(),
            "block 'stage': layers: expected an array of 1 to 4096 layers, got []"},
        Bad{"/blocks/stage/paramters", 1,
            "block 'stage': paramters: unknown key; did you mean \"parameters\"?"},
        Bad{"/blocks/stage/parameters", json::array(),
            "block 'stage': parameters: expected an object {name: default, or null where it must "
            "be given} of at most 64, got []"},
        Bad{"/blocks/stage/parameters/more", 1,
            "block 'stage': no layer reads its parameter \"more\" (as \"$more\"); remove it"},
        Bad{"/blocks/unused",
            {{"layers", {{{"name", "x"}, {"type", "relu"}}}}},
            "block 'unused': no layer uses it"},
        Bad{"/defaults/convolutoin", json::object(),
            "defaults.convolutoin: unknown key; did you mean \"convolution\"?"},
        Bad{"/defaults/lrn", {{"k", 2}}, "defaults.lrn: no layer has this type; remove it"},
        Bad{"/defaults/lrn", 2, "defaults.lrn: expected an object {...}, got 2"},
        Bad{"/defaults/convolution/name", "x", "defaults.convolution: \"name\" has no default"},
        Bad{"/defaults", 5, "network 'n': defaults: expected an object {...}, got 5"}));

INSTANTIATE_TEST_SUITE_P(
    Uses, BadBlocks,
    ::testing::Values(
        Bad{"/layers/0/block", "stagee",
            "network 'n': layer 'stage1': block: expected one of \"conv_relu\", \"residual\", "
            "\"stage\", got \"stagee\"; did you mean \"stage\"?"},
        Bad{"/layers/0/block", 3, "layer 'stage1': block: expected one of"},
        Bad{"/layers/0/name", "erase", "layers[0]: name: is missing"},
        Bad{"/layers/0/name", "a b", "name: expected 1 to 128 letters"},
        Bad{"/layers/0/name", "input", "and not \"input\"; got \"input\""},
        Bad{"/layers/1/name", "stage1", "a name that no other layer has"},
        Bad{"/layers/0/type", "relu", "layer 'stage1': type: unknown key"},
        Bad{"/layers/0/inputs", {"input", "input"}, "inputs: expected an array of 1 texts"},
        Bad{"/layers/0/with", 7, "layer 'stage1': with: expected an object {...}, got 7"},
        Bad{"/layers/0/with/wdith", 7,
            "layer 'stage1': with.wdith: unknown key; did you mean \"width\"?"},
        Bad{"/layers/0/with/width", "erase",
            "layer 'stage1': with: block 'stage' needs \"width\", which has no default"},
        Bad{"/blocks/conv_relu/layers/0/outputs", "$output",
            "block 'conv_relu': \"$output\" is no parameter of block 'conv_relu' (did you mean "
            "\"outputs\"?), which has outputs, stride"},
        Bad{"/blocks/residual/layers/2/inputs",
            {"input", "bb"},
            "block 'residual': layer 'stage1.1.sum': unknown input \"bb\"; a "
            "layer of a block reads earlier layers of the block, or \"input\": the block's input"},
        Bad{"/blocks/residual/layers/1", 3,
            "block 'residual': layers[1]: expected a layer {\"name\": ...}, got 3"},
        Bad{"/blocks/residual/layers/1/name", "erase",
            "block 'residual': layers[1]: expected a layer"},
        Bad{"/blocks/residual/layers/0/block", "stage",
            "block 'stage' contains itself (stage, residual, stage)"}));

INSTANTIATE_TEST_SUITE_P(
    Repeats, BadBlocks,
    ::testing::Values(
        Bad{"/layers/0",
            {{"repeat", 3}, {"layers", {1}}},
            "network 'n': layers[0].repeat: expected an array of 2 integers, got 3"},
        Bad{"/layers/0",
            {{"repeat", {0, 4097}}, {"layers", {1}}},
            "repeat[1]: expected an integer from 0 to 4096, got 4097"},
        Bad{"/layers/0", {{"repeat", {-1, 1}}, {"layers", {1}}}, "repeat[0]: expected an integer"},
        Bad{"/layers/0",
            {{"repeat", {2, 1}}, {"layers", {1}}},
            "layers[0].repeat: expected [first, last] number, got [2,1]"},
        Bad{"/layers/0", {{"repeat", {1, 2}}}, "layers[0].layers: is missing"},
        Bad{"/layers/0",
            {{"repeat", {1, 2}}, {"layers", {1}}, {"name", "x"}},
            "layers[0].name: unknown key"},
        Bad{"/layers/0",
            {{"repeat", {1, 2}}, {"layers", {{{"repeat", {1, 2}}, {"layers", {1}}}}}},
            "layers[0]: a repeat inside a repeat; put the inner one into a block of its own"},
        Bad{"/layers/0/with/last", 4000, "network 'n': layers: its blocks give more than 4096"}));

TEST(ExpandNetwork, WithoutBlocksThereIsNoneToUse) {
  EXPECT_THAT(refusal({{"layers", {{{"name", "a"}, {"block", "b"}}}}}),
              HasSubstr("network 'n': layer 'a': block: the network has no \"blocks\""));
}

// Ten lines that ask for 10^9 layers, or for 40 GB of text: refused, and soon.
TEST(ExpandNetwork, GrowthIsBounded) {
  json file = {{"layers", {{{"name", "x"}, {"block", "b0"}}}}};
  for (int i = 0; i < 7; ++i) {
    const std::string next = "b" + std::to_string(i + 1);
    json& block = file["blocks"]["b" + std::to_string(i)];
    block["layers"] = {{{"repeat", {0, 1000}}, {"layers", {{{"name", "#"}, {"block", next}}}}}};
  }
  file["blocks"]["b7"]["layers"] = {{{"name", "l"}, {"type", "relu"}}};
  EXPECT_THAT(refusal(file), HasSubstr("its blocks give more than 4096 layers"));
  file["blocks"]["b7"]["layers"][0] = {{"name", "l"}, {"block", "b8"}};
  file["blocks"]["b8"]["layers"] = {{{"name", "l"}, {"type", "relu"}}};
  EXPECT_THAT(refusal(file), HasSubstr("more than 8 blocks inside each other"));

  const json large = {{"name", "x#"}, {"junk", std::string(100'000, 'x')}};
  EXPECT_THAT(refusal({{"layers", {{{"repeat", {1, 4000}}, {"layers", {large}}}}}}),
              HasSubstr("its blocks grow to more than 67108864 bytes"));
  json defaults = {{"defaults", {{"relu", {{"junk", std::string(100'000, 'x')}}}}}};
  defaults["layers"] = {{{"repeat", {1, 4000}}, {"layers", {{{"name", "#"}, {"type", "relu"}}}}}};
  EXPECT_THAT(refusal(defaults), HasSubstr("its blocks grow to more than 67108864 bytes"));
}

// Silly values in every place: whatever they do, they neither crash nor hang.
TEST(ExpandNetwork, SillyValuesAnywhere) {
  const std::vector<json> silly = {json(),
                                   true,
                                   -1,
                                   1e308,
                                   "",
                                   "$",
                                   "$width",
                                   "#",
                                   "input",
                                   json::array(),
                                   json::object(),
                                   {{"block", "stage"}},
                                   {1, 2},
                                   {{"repeat", {0, 3}}, {"layers", {{{"name", "#"}}}}},
                                   std::string(5000, '#')};
  const json flat = residual().flatten();
  SplitMix64 random(7);
  const auto pick = [&](std::size_t count) {
    return static_cast<std::size_t>(random.uniform() * static_cast<float>(count)) % count;
  };
  std::vector<std::string> places;
  for (const auto& [pointer, value] : flat.items()) {
    for (std::size_t cut = pointer.size(); cut != std::string::npos && cut > 0;
         cut = pointer.rfind('/', cut - 1)) {
      places.push_back(pointer.substr(0, cut));
    }
  }
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    json file = residual();
    for (int changes = 0; changes < 1 + i % 3; ++changes) {
      const json::json_pointer pointer(places[pick(places.size())]);
      if (file.contains(pointer)) file[pointer] = silly[pick(silly.size())];
    }
    refused += parse_network(file).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 2000);
  EXPECT_LT(refused, 3000);
}

}  // namespace
}  // namespace poseidon::net_expand_test
