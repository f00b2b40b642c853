// Invalid network files and their error messages.

#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/net/net.h"

namespace poseidon::net_bad_input_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json good() {
  return json::parse(R"({"name": "n", "input": [3, 8, 8], "layers": [
    {"name": "conv", "type": "convolution", "outputs": 4, "kernel": 3},
    {"name": "pool", "type": "pooling", "pool": "max", "kernel": 2, "stride": 2},
    {"name": "fc", "type": "fully_connected", "outputs": 5},
    {"name": "loss", "type": "softmax_cross_entropy"},
    {"name": "accuracy", "type": "accuracy", "inputs": ["fc"]}]})");
}

struct Bad {
  std::string pointer;  // where in good()
  json value;           // what to put there
  std::string message;  // what the error must say
};

std::ostream& operator<<(std::ostream& out, const Bad& bad) {
  return out << bad.pointer << " = " << bad.value.dump().substr(0, 80);
}

class BadNetwork : public ::testing::TestWithParam<Bad> {};

TEST_P(BadNetwork, IsRefused) {
  json net = good();
  ASSERT_TRUE(parse_network(net).ok());
  net[json::json_pointer(GetParam().pointer)] = GetParam().value;
  const auto result = parse_network(net);
  ASSERT_FALSE(result.ok()) << net.dump();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Whole, BadNetwork,
    ::testing::Values(
        Bad{"", json::array(), "network: expected an object {...}, got []"},
        Bad{"/name", 5, "network: name: expected a text of 1 to 4096 bytes, got 5"},
        Bad{"/name", "a b", "name: expected 1 to 128 letters, digits or any of _ - . /"},
        Bad{"/name", std::string(200, 'x'), "name: expected 1 to 128"},
        Bad{"/inputs", json::array(), "network 'n': inputs: unknown key; did you mean \"input\"?"},
        Bad{"/input", "big", "input: expected an array of 1 to 3 integers, got \"big\""},
        Bad{"/input", {3, 8}, "input: expected [features] or [channels, height, width], got 3x8"},
        Bad{"/input", {3, 0, 8}, "input[1]: expected an integer from 1 to 1048576, got 0"},
        Bad{"/input", {3, -8, 8}, "input[1]: expected an integer from 1 to 1048576, got -8"},
        Bad{"/input", {3, 8.5, 8}, "input[1]: expected an integer from 1 to 1048576, got 8.5"},
        Bad{"/input", {1000000, 1000000, 1000000}, "has more than 2147483648 elements"},
        Bad{"/layers", json::object(), "layers: expected an array of 1 to 4096 layers, got {}"},
        Bad{"/layers", json::array(), "layers: expected an array of 1 to 4096 layers, got []"},
        Bad{"/layers", json(5000, "x"), "layers: expected an array of 1 to 4096 layers, got 5000"},
        Bad{"/layers/0", 3, "network 'n': layers[0]: expected an object {...}, got 3"}));

INSTANTIATE_TEST_SUITE_P(
    Layer, BadNetwork,
    ::testing::Values(
        Bad{"/layers/0/name", json(),
            "layers[0]: name: expected a text of 1 to 4096 bytes, got null"},
        Bad{"/layers/0/name", "input", "layer 'input': this name is kept for the network's data"},
        Bad{"/layers/1/name", "conv", "layer 'conv': another layer has this name already"},
        Bad{"/layers/0/type", "convolutoin",
            "layer 'conv': type: expected one of \"convolution\", \"pooling\", "
            "\"fully_connected\", "
            "\"relu\", \"lrn\", \"dropout\", \"softmax_cross_entropy\", \"accuracy\", \"add\", "
            "\"batch_norm\", \"concat\", got "
            "\"convolutoin\"; did you mean \"convolution\"?"},
        Bad{"/layers/0/kernal", 3, "layer 'conv': kernal: unknown key; did you mean \"kernel\"?"},
        Bad{"/layers/0/colour", 3, "layer 'conv': colour: unknown key"},
        Bad{"/layers/2/stride", 3, "layer 'fc': stride: unknown key"},
        Bad{"/layers/1/inputs", "conv",
            "inputs: expected an array of 1 to 4096 texts, got \"conv\""},
        Bad{"/layers/1/inputs", {7}, "inputs[0]: expected a text of 1 to 4096 bytes, got 7"},
        Bad{"/layers/1/inputs", json::array(),
            "inputs: expected an array of 1 to 4096 texts, got []"},
        Bad{"/layers/1/inputs",
            {"covn"},
            "layer 'pool': unknown input \"covn\" (did you mean \"conv\"?)"},
        Bad{"/layers/1/inputs", {"fc"}, "input \"fc\" comes later in the file"},
        Bad{"/layers/1/inputs", {"pool"}, "input \"pool\" comes later in the file"},
        Bad{"/layers/1/inputs", {"conv", "conv"}, "pooling takes one input, got 2"},
        Bad{"/layers/4/inputs",
            {"loss"},
            "layer 'accuracy': reads 'loss', but the output of a softmax_cross_entropy layer is a "
            "result"},
        Bad{"/layers/2/inputs", {"conv"}, "layer 'pool': its output does not reach the loss"},
        Bad{"/layers/3",
            {{"name", "more"}, {"type", "fully_connected"}, {"outputs", 5}},
            "needs exactly one softmax_cross_entropy layer (the loss) that is not \"auxiliary\": "
            "true, "
            "has 0"},
        Bad{"/layers/4/type", "softmax_cross_entropy", "\"auxiliary\": true, has 2"},
        Bad{"/layers/4/inputs", {"pool"}, "accuracy needs one score per class"}));

INSTANTIATE_TEST_SUITE_P(
    Sizes, BadNetwork,
    ::testing::Values(
        Bad{"/layers/0/outputs", "4",
            "layer 'conv': outputs: expected an integer from 1 to 1048576, got \"4\""},
        Bad{"/layers/0/outputs", 4.0, "got 4.0"}, Bad{"/layers/0/outputs", 0, "got 0"},
        Bad{"/layers/0/outputs", -1, "got -1"}, Bad{"/layers/0/outputs", true, "got true"},
        Bad{"/layers/0/outputs", 18446744073709551615u, "got 18446744073709551615"},
        Bad{"/layers/0/outputs", 2000000, "got 2000000"},
        Bad{"/layers/0/kernel", {3, 3, 3}, "or [height, width] of such, got [3,3,3]"},
        Bad{"/layers/0/kernel", 0, "kernel: expected an integer from 1"},
        Bad{"/layers/0/stride", 0, "stride: expected an integer from 1"},
        Bad{"/layers/0/pad", -1, "pad: expected an integer from 0"},
        Bad{"/layers/1/pad", 2, "layer 'pool': pad 2x2 must be smaller than kernel 2x2"},
        Bad{"/layers/0/groups", 2,
            "groups 2 must divide both its 4 outputs and the channels of its input shape 3x8x8 "
            "(from 'input')"},
        Bad{"/layers/0/bias", 1, "bias: expected true or false, got 1"},
        Bad{"/layers/1/pool", "mean", "pool: expected one of \"max\", \"average\", got \"mean\""},
        Bad{"/layers/1/ceil_mode", "yes", "ceil_mode: expected true or false"}));

INSTANTIATE_TEST_SUITE_P(
    Shapes, BadNetwork,
    ::testing::Values(
        Bad{"/layers/0/kernel", 9,
            "layer 'conv': kernel 9x9 is larger than its input shape 3x8x8 (from 'input') padded "
            "by 0x0"},
        Bad{"/layers/1/kernel", 7,
            "layer 'pool': kernel 7x7 is larger than its input shape 4x6x6 (from 'conv')"},
        Bad{"/layers/1",
            {{"name", "pool"},
             {"type", "pooling"},
             {"pool", "max"},
             {"kernel", 8},
             {"stride", 2},
             {"ceil_mode", true}},
            "layer 'pool': kernel 8x8 is larger than its input shape 4x6x6 (from 'conv')"},
        Bad{"/input",
            {192},
            "layer 'conv': convolution needs an image channels x height x width, but its input "
            "shape 192 (from 'input') is not one"},
        Bad{"/layers/3/inputs",
            {"pool"},
            "layer 'loss': softmax_cross_entropy needs one score per class, shape 36, but its "
            "input shape 4x3x3 (from 'pool') is an image"},
        Bad{"/layers/2/outputs", 1,
            "layer 'loss': softmax_cross_entropy needs two or more classes"},
        Bad{"/layers/3",
            {{"name", "loss"},
             {"type", "softmax_cross_entropy"},
             {"inputs", {"pool"}},
             {"loss_weight", 0.5},
             {"label_smoothing", 0.1},
             {"auxiliary", false}},
            "layer 'loss': softmax_cross_entropy needs one score per class, shape 36"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "add"}, {"inputs", {"conv", "pool"}}},
            "layer 'fc': cannot add shape 4x3x3 (from 'pool') to its input shape 4x6x6 (from "
            "'conv')"},
        Bad{"/layers/2", {{"name", "fc"}, {"type", "add"}}, "add takes two or more inputs, got 1"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "lrn"}, {"local_size", 4}},
            "local_size: must be odd, got 4"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "dropout"}, {"ratio", 1.0}},
            "ratio: expected a number from 0 to 0.999, got 1.0"},
        Bad{"/input",
            {3, 25000, 25000},
            "layer 'conv': its output shape 4x24998x24998 from its input shape 3x25000x25000 (from "
            "'input') has more than 2147483648 elements"}));

INSTANTIATE_TEST_SUITE_P(
    LargeNetworks, BadNetwork,
    ::testing::Values(
        Bad{"/layers/1/global", true,
            "layer 'pool': kernel: has no meaning with \"global\": true; remove it"},
        Bad{"/layers/1/global", "yes", "layer 'pool': global: expected true or false"},
        Bad{"/layers/1/count_padding", true,
            "layer 'pool': count_padding: is for average pooling; a maximum never takes padding"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "concat"}},
            "layer 'fc': concat takes two or more inputs, got 1"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "concat"}, {"inputs", {"pool", "conv"}}},
            "layer 'fc': cannot put shape 4x6x6 (from 'conv') behind its input shape 4x3x3 (from "
            "'pool'): height and width must be the same"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "batch_norm"}, {"epsilon", 0}},
            "layer 'fc': epsilon: expected a number from 1e-30 to 1"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "batch_norm"}, {"momentum", 1.5}},
            "layer 'fc': momentum: expected a number from 0 to 1"},
        Bad{"/layers/2",
            {{"name", "fc"}, {"type", "batch_norm"}, {"eps", 0.1}},
            "layer 'fc': eps: unknown key"},
        Bad{"/layers/2",
            {{"name", "fc"},
             {"type", "batch_norm"},
             {"init", {{"running_mean", {{"type", "constant"}}}}}},
            "init.running_mean: unknown key"},
        Bad{"/layers/3/label_smoothing", 1.0,
            "layer 'loss': label_smoothing: expected a number from 0 to less than 1, got 1.0"},
        Bad{"/layers/3/loss_weight", -1, "layer 'loss': loss_weight: expected a number from 0"},
        Bad{"/layers/4/label_smoothing", 0.1, "layer 'accuracy': label_smoothing: unknown key"},
        Bad{"/layers/3/auxiliary", 1, "layer 'loss': auxiliary: expected true or false, got 1"},
        Bad{"/layers/3/auxiliary", true,
            "(the loss) that is not \"auxiliary\": true, has 0 besides 1 auxiliary"},
        Bad{"/layers/4",
            {{"name", "aux"},
             {"type", "softmax_cross_entropy"},
             {"auxiliary", true},
             {"inputs", {"fc6"}}},
            "layer 'aux': unknown input \"fc6\""}));

TEST(BadNetworks, AnAuxiliaryLossHasAsManyClasses) {
  json net = good();
  net["layers"].push_back({{"name", "side"}, {"type", "fully_connected"}, {"outputs", 6}});
  net["layers"].back()["inputs"] = {"pool"};
  net["layers"].push_back(
      {{"name", "aux"}, {"type", "softmax_cross_entropy"}, {"auxiliary", true}});
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("layer 'aux': its input shape 6 differs from the loss's 5 classes"));
}

INSTANTIATE_TEST_SUITE_P(
    Initialisers, BadNetwork,
    ::testing::Values(
        Bad{"/layers/0/init", 3, "layer 'conv': init: expected an object {...}, got 3"},
        Bad{"/layers/0/init",
            {{"wieght", json::object()}},
            "layer 'conv': init.wieght: unknown key; did you mean \"weight\"?"},
        Bad{"/layers/0/init", {{"weight", 0.5}}, "init.weight: expected an object {...}, got 0.5"},
        Bad{"/layers/0/init",
            {{"weight", {{"type", "xavir"}}}},
            "layer 'conv': init.weight.type: expected one of \"constant\", \"gaussian\", \"he\", "
            "\"truncated_gaussian\", \"uniform\", \"xavier\", got \"xavir\"; did you mean "
            "\"xavier\"?"},
        Bad{"/layers/0/init",
            {{"weight", {{"type", "xavier"}, {"std", 1}}}},
            "init.weight.std: unknown key"},
        Bad{"/layers/0/init",
            {{"weight", {{"type", "gaussian"}, {"std", -1}}}},
            "init.weight.std: expected a number from 0"},
        Bad{"/layers/0/init",
            {{"weight", {{"type", "he"}, {"mode", "fanout"}}}},
            "init.weight.mode: expected one of \"average\", \"fan_in\", \"fan_out\", got "
            "\"fanout\"; "
            "did you mean \"fan_out\"?"},
        Bad{"/layers/0/init",
            {{"weight", {{"type", "uniform"}, {"bound", -1}}}},
            "init.weight.bound: expected a number from 0"},
        Bad{"/layers/1/init", json::object(), "layer 'pool': init: unknown key"}));

TEST(BadNetworks, MissingKeysAreNamed) {
  json net = good();
  net["layers"][0].erase("kernel");
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("network 'n': layer 'conv': kernel: is missing"));
  net["layers"][0]["kernal"] = 3;
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("kernal: unknown key; did you mean \"kernel\"?"));
  // Of a key without which the others cannot be judged, too.
  net = good();
  net["layers"][0].erase("type");
  net["layers"][0]["tpye"] = "convolution";
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("layer 'conv': type: is missing; it has no default (is \"tpye\" a misspelt "
                        "one?)"));
  net = good();
  net.erase("input");
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("network 'n': input: is missing"));
}

TEST(BadNetworks, AShapeErrorIsNotTakenForUnknownKeys) {
  json net = good();
  net["layers"][0]["kernel"] = 9;
  net["layers"][0]["init"] = {{"weight", {{"type", "xavier"}}}};
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("layer 'conv': kernel 9x9 is larger than its input shape 3x8x8"));
}

TEST(BadNetworks, WithoutParametersThereIsNothingToTrain) {
  const json net = json::parse(R"({"name": "n", "input": [3],
      "layers": [{"name": "l", "type": "softmax_cross_entropy"}]})");
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("no layer has parameters: nothing to train"));
}

TEST(BadNetworks, HugeWeightsAreRefusedBeforeTheyAreComputed) {
  const json net = json::parse(R"({"name": "n", "input": [1000000], "layers": [
      {"name": "f", "type": "fully_connected", "outputs": 1000000},
      {"name": "l", "type": "softmax_cross_entropy"}]})");
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("layer 'f': its weight 1000000x1000000 from its input shape 1000000 (from "
                        "'input') has more than 2147483648 elements"));
}

TEST(BadNetworks, AbsurdWorkIsRefused) {
  const json net = json::parse(R"({"name": "n", "input": [1, 46000, 46000], "layers": [
      {"name": "c", "type": "convolution", "outputs": 1, "kernel": 1000},
      {"name": "l", "type": "softmax_cross_entropy"}]})");
  EXPECT_THAT(std::string(parse_network(net).status().message()),
              HasSubstr("layer 'c': more than 1125899906842624 multiply-adds per sample"));
}

// A product of 2^64, which would be 0, and windows whose places 32 bits cannot count.
TEST(BadNetworks, AbsurdWindowsAreRefused) {
  const auto message_of = [](const json& pool) {
    json net = json::parse(R"({"name": "n", "input": [1, 1, 1], "layers": [{},
        {"name": "g", "type": "pooling", "pool": "average", "global": true},
        {"name": "f", "type": "fully_connected", "outputs": 2},
        {"name": "l", "type": "softmax_cross_entropy"}]})");
    net["layers"][0] = pool;
    return std::string(parse_network(net).status().message());
  };
  json pool = {{"name", "p"},       {"type", "pooling"}, {"pool", "max"},
               {"kernel", 1048576}, {"stride", 1},       {"pad", 526335}};
  EXPECT_THAT(message_of(pool),
              HasSubstr("layer 'p': kernel 1048576x1048576 has more than 2147483647 places"));
  pool["kernel"] = {40000, 40000};
  pool["pad"] = {20500, 20500};
  EXPECT_THAT(message_of(pool), HasSubstr("layer 'p': more than 1125899906842624 values read per "
                                          "sample on its input shape 1x1x1 (from 'input')"));
}

TEST(BadNetworks, HostileTextIsCutInMessages) {
  json net = good();
  net["layers"][0]["type"] = std::string(100'000, 'k') + "\xff\n";
  const std::string message(parse_network(net).status().message());
  EXPECT_LT(message.size(), 500u);
}

}  // namespace
}  // namespace poseidon::net_bad_input_test
