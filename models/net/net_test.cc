#include "models/net/net.h"
#include "models/net/model_layout.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/shipped.h"

namespace poseidon::net_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

NetSpec resolved(const json& model) {
  auto net = resolve_network(model, ".");
  EXPECT_TRUE(net.ok()) << net.status().message();
  return net.ok() ? *net : NetSpec{};
}

const LayerSpec& layer_named(const NetSpec& net, const std::string& name) {
  for (const LayerSpec& layer : net.layers) {
    if (layer.name == name) return layer;
  }
  ADD_FAILURE() << "no layer " << name;
  return net.layers.front();
}

struct Known {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t multiply_adds = 0;
};

// Parameters as in the papers' reference implementations (Caffe's AlexNet and GoogLeNet,
// torchvision's others). Multiply-adds of one image forward, of convolution and fully connected
// layers, as published for the same: AlexNet 0.72, GoogLeNet 1.58, Inception-V3 5.71, ResNet-18
// 1.81, -50 4.09, -152 11.51, VGG19 19.63 billion.
const std::vector<Known>& known_networks() {
  static const std::vector<Known> kKnown = {
      {"alexnet", 60'965'224, 724'406'816},
      {"cifar10_quick", 145'578, 12'354'176},
      {"googlenet", 6'998'552, 1'582'671'872},
      {"googlenet_aux", 13'378'280,
       1'582'671'872 + (512 + 528) * 128 * 16 + 2 * (2048 * 1024 + 1024 * 1000)},
      {"inception_v3", 23'834'568, 5'713'216'096},
      {"inception_v3_aux", 27'161'264,
       5'713'216'096 + 768 * 128 * 25 + 128 * 768 * 25 + 768 * 1000},
      {"lenet", 431'080, 2'293'000},
      {"mlp", (784 + 1) * 256 + (256 + 1) * 128 + (128 + 1) * 10, 784 * 256 + 256 * 128 + 128 * 10},
      {"resnet152", 60'192'808, 11'513'626'624},
      {"resnet18", 11'689'512, 1'814'073'344},
      {"resnet50", 25'557'032, 4'089'184'256},
      {"vgg19", 143'667'240, 19'632'062'464},
      {"vgg19_22k", 229'052'817, 19'632'062'464 + 4096 * (21'841 - 1000)},
  };
  return kKnown;
}

TEST(ShippedNetworks, NamesAreSortedAndAllKnown) {
  std::vector<std::string> names;
  for (const Known& known : known_networks()) names.push_back(known.name);
  EXPECT_EQ(shipped_model_names(), names);
  EXPECT_FALSE(shipped_model("nothing").has_value());
}

TEST(ShippedNetworks, ParametersAndMultiplyAdds) {
  for (const Known& known : known_networks()) {
    SCOPED_TRACE(known.name);
    const NetSpec net = resolved(known.name);
    EXPECT_EQ(net.name, known.name);
    EXPECT_EQ(net.parameter_count(), known.parameters);
    EXPECT_EQ(net.multiply_adds(), known.multiply_adds);
  }
}

TEST(ShippedNetworks, ShapesOnTheWay) {
  const std::vector<std::tuple<std::string, std::string, std::string>> shapes = {
      {"alexnet", "conv1", "96x55x55"},
      {"alexnet", "pool2", "256x13x13"},
      {"alexnet", "pool5", "256x6x6"},
      {"googlenet", "pool1", "64x56x56"},
      {"googlenet", "pool2", "192x28x28"},
      {"googlenet", "inception_3a.output", "256x28x28"},
      {"googlenet", "inception_3b.output", "480x28x28"},
      {"googlenet", "inception_4d.output", "528x14x14"},
      {"googlenet", "inception_5b.output", "1024x7x7"},
      {"googlenet", "pool5", "1024x1x1"},
      {"googlenet_aux", "aux1.pool", "512x4x4"},
      {"googlenet_aux", "aux2.pool", "528x4x4"},
      {"inception_v3", "Conv2d_2b_3x3.conv", "64x147x147"},
      {"inception_v3", "maxpool2", "192x35x35"},
      {"inception_v3", "Mixed_5b.output", "256x35x35"},
      {"inception_v3", "Mixed_5d.output", "288x35x35"},
      {"inception_v3", "Mixed_6a.output", "768x17x17"},
      {"inception_v3", "Mixed_6e.output", "768x17x17"},
      {"inception_v3", "Mixed_7a.output", "1280x8x8"},
      {"inception_v3", "Mixed_7c.output", "2048x8x8"},
      {"inception_v3_aux", "AuxLogits.conv1.conv", "768x1x1"},
      {"resnet18", "layer1.1.relu2", "64x56x56"},
      {"resnet18", "layer4.1.relu2", "512x7x7"},
      {"resnet50", "layer1.0.downsample.0", "256x56x56"},
      {"resnet50", "layer2.0.conv1", "128x56x56"},  // v1.5: the 3x3 has the stride
      {"resnet50", "layer2.0.conv2", "128x28x28"},
      {"resnet152", "layer2.7.relu3", "512x28x28"},
      {"resnet152", "layer3.35.relu3", "1024x14x14"},
      {"resnet152", "layer4.2.relu3", "2048x7x7"},
      {"vgg19", "conv3_4", "256x56x56"},
      {"vgg19", "pool5", "512x7x7"},
      {"vgg19_22k", "fc8", "21841"},
  };
  for (const auto& [network, layer, shape] : shapes) {
    EXPECT_EQ(shape_to_string(layer_named(resolved(network), layer).output_shape), shape)
        << network << " " << layer;
  }
}

TEST(ShippedNetworks, WeightsOfKnownSize) {
  const auto weight = [](const std::string& network, const std::string& layer) {
    return shape_to_string(layer_named(resolved(network), layer).parameters[0].shape);
  };
  EXPECT_EQ(weight("alexnet", "conv2"), "256x48x5x5");  // two groups
  EXPECT_EQ(weight("vgg19", "fc6"), "4096x25088");
  EXPECT_EQ(weight("vgg19_22k", "fc8"), "21841x4096");
  EXPECT_EQ(weight("inception_v3", "Mixed_6b.branch7x7_2.conv"), "128x128x1x7");
  EXPECT_EQ(weight("resnet152", "layer1.0.downsample.0"), "256x64x1x1");
}

TEST(ShippedNetworks, AreTheFilesByteForByte) {
  for (const std::string& name : shipped_model_names()) {
    std::ifstream file("models/" + name + ".json", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    EXPECT_EQ(*shipped_model(name), text);
  }
}

TEST(ShippedNetworks, LeNetShapes) {
  const NetSpec net = resolved("lenet");
  EXPECT_THAT(net.input_shape, ElementsAre(1, 28, 28));
  EXPECT_EQ(net.classes, 10);
  EXPECT_THAT(layer_named(net, "conv1").output_shape, ElementsAre(20, 24, 24));
  EXPECT_THAT(layer_named(net, "pool1").output_shape, ElementsAre(20, 12, 12));
  EXPECT_THAT(layer_named(net, "conv2").output_shape, ElementsAre(50, 8, 8));
  EXPECT_THAT(layer_named(net, "pool2").output_shape, ElementsAre(50, 4, 4));
  EXPECT_THAT(layer_named(net, "ip1").output_shape, ElementsAre(500));
  EXPECT_THAT(layer_named(net, "conv2").parameters[0].shape, ElementsAre(50, 20, 5, 5));
  EXPECT_THAT(layer_named(net, "ip1").parameters[0].shape, ElementsAre(500, 800));
  EXPECT_THAT(layer_named(net, "ip1").parameters[1].shape, ElementsAre(500));
  EXPECT_THAT(net.parameter_layers(), ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(net.multiply_adds(), 20 * 25 * 24 * 24 + 50 * 500 * 8 * 8 + 800 * 500 + 500 * 10);
}

TEST(ShippedNetworks, Cifar10QuickShapes) {
  const NetSpec net = resolved("cifar10_quick");
  EXPECT_THAT(layer_named(net, "pool1").output_shape, ElementsAre(32, 16, 16));
  EXPECT_THAT(layer_named(net, "pool2").output_shape, ElementsAre(32, 8, 8));
  EXPECT_THAT(layer_named(net, "pool3").output_shape, ElementsAre(64, 4, 4));
}

// The whole models among the README's examples are what it says they are.
TEST(ModelsReadme, ExamplesAreModels) {
  std::ifstream file("models/README.md");
  int examples = 0;
  std::string line, example;
  const auto check = [&] {
    if (example.rfind("    {\"name\"", 0) == 0) {
      const auto model = resolve_layout(json::parse(example), ".");
      EXPECT_TRUE(model.ok()) << example << model.status().message();
      ++examples;
    }
    example.clear();
  };
  while (std::getline(file, line)) {
    if (line.rfind("    ", 0) == 0) {
      example += line + "\n";
    } else {
      check();
    }
  }
  EXPECT_GE(examples, 4);
}

TEST(ParseNetwork, GroupsPairsAndDefaults) {
  const NetSpec net = resolved(json::parse(R"({"name": "n", "input": [4, 9, 8], "layers": [
    {"name": "c", "type": "convolution", "outputs": 6, "kernel": [3, 1], "stride": [2, 1],
     "pad": [1, 0], "groups": 2, "bias": false,
     "init": {"weight": {"type": "constant", "value": 0.5}}},
    {"name": "p", "type": "pooling", "pool": "average", "kernel": 2},
    {"name": "f", "type": "fully_connected", "outputs": 3},
    {"name": "d", "type": "dropout"},
    {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  const LayerSpec& conv = layer_named(net, "c");
  EXPECT_THAT(conv.output_shape, ElementsAre(6, 5, 8));
  EXPECT_THAT(conv.parameters[0].shape, ElementsAre(6, 2, 3, 1));
  EXPECT_EQ(conv.parameters.size(), 1u);
  EXPECT_EQ(conv.parameters[0].initialiser.value, 0.5);
  EXPECT_EQ(conv.multiply_adds, 6 * 2 * 3 * 5 * 8);
  EXPECT_THAT(layer_named(net, "p").output_shape, ElementsAre(6, 2, 4));
  EXPECT_EQ(layer_named(net, "d").dropout_ratio, 0.5);
  EXPECT_THAT(layer_named(net, "c").inputs, ElementsAre(kNetworkInput));
}

TEST(ParseNetwork, CeilModeDropsWindowsThatBeginBehindTheImage) {
  const auto rows = [](int size, int kernel, int stride, int pad, bool ceil_mode) {
    const NetSpec net = resolved({{"name", "n"},
                                  {"input", {1, size, size}},
                                  {"layers",
                                   {{{"name", "p"},
                                     {"type", "pooling"},
                                     {"pool", "max"},
                                     {"kernel", kernel},
                                     {"stride", stride},
                                     {"pad", pad},
                                     {"ceil_mode", ceil_mode}},
                                    {{"name", "f"}, {"type", "fully_connected"}, {"outputs", 2}},
                                    {{"name", "l"}, {"type", "softmax_cross_entropy"}}}}});
    return net.layers[0].output_shape[1];
  };
  EXPECT_EQ(rows(32, 3, 2, 0, false), 15);
  EXPECT_EQ(rows(32, 3, 2, 0, true), 16);
  EXPECT_EQ(rows(5, 2, 3, 0, true), 2);
  EXPECT_EQ(rows(4, 1, 3, 0, true), 2);
  EXPECT_EQ(rows(3, 2, 3, 1, true), 2);
  EXPECT_EQ(rows(6, 1, 4, 0, true), 2);  // a third window would begin at 8
}

TEST(ParseNetwork, InCeilModeTheOnlyWindowMayHangOver) {
  const auto shape = [](const json& kernel, int stride) {
    const NetSpec net = resolved({{"name", "n"},
                                  {"input", {1, 2, 7}},
                                  {"layers",
                                   {{{"name", "p"},
                                     {"type", "pooling"},
                                     {"pool", "average"},
                                     {"kernel", kernel},
                                     {"stride", stride},
                                     {"ceil_mode", true}},
                                    {{"name", "f"}, {"type", "fully_connected"}, {"outputs", 2}},
                                    {{"name", "l"}, {"type", "softmax_cross_entropy"}}}}});
    return net.layers[0].output_shape;
  };
  EXPECT_THAT(shape(3, 2), ElementsAre(1, 1, 3));
  EXPECT_THAT(shape({4, 9}, 3), ElementsAre(1, 1, 1));
}

TEST(ParseNetwork, AConvolutionMayHavePaddingBeyondItsKernel) {
  const NetSpec net = resolved(json::parse(R"({"name": "n", "input": [4, 9, 8], "layers": [
    {"name": "c", "type": "convolution", "outputs": 6, "kernel": 1, "pad": 1},
    {"name": "f", "type": "fully_connected", "outputs": 3},
    {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  EXPECT_THAT(layer_named(net, "c").output_shape, ElementsAre(6, 11, 10));
}

TEST(ParseNetwork, LayersOfTheLargeNetworks) {
  const NetSpec net = resolved(json::parse(R"({"name": "n", "input": [4, 9, 8], "layers": [
    {"name": "c", "type": "convolution", "outputs": 6, "kernel": 1},
    {"name": "bn", "type": "batch_norm", "epsilon": 0.001, "momentum": 0.2,
     "init": {"weight": {"type": "constant", "value": 0}}},
    {"name": "all", "type": "concat", "inputs": ["bn", "input", "c"]},
    {"name": "p", "type": "pooling", "pool": "average", "kernel": 3, "stride": 1, "pad": 1,
     "count_padding": true},
    {"name": "g", "type": "pooling", "pool": "average", "global": true},
    {"name": "f", "type": "fully_connected", "outputs": 3},
    {"name": "loss", "type": "softmax_cross_entropy", "label_smoothing": 0.1, "loss_weight": 2}]})"));
  const LayerSpec& norm = layer_named(net, "bn");
  EXPECT_EQ(norm.epsilon, 0.001);
  EXPECT_EQ(norm.momentum, 0.2);
  ASSERT_EQ(norm.parameters.size(), 2u);
  EXPECT_THAT(norm.parameters[0].shape, ElementsAre(6));
  EXPECT_EQ(norm.parameters[0].initialiser.value, 0.0) << "as init says";
  EXPECT_EQ(norm.parameters[1].initialiser.value, 0.0);
  EXPECT_EQ(norm.statistics[1].name, "running_var");
  EXPECT_EQ(norm.statistics[1].initialiser.value, 1.0);
  EXPECT_EQ(net.parameter_count(), 4 * 6 + 6 + 12 + 16 * 3 + 3) << "statistics are no parameters";
  EXPECT_EQ(net.statistics_count(), 12);
  EXPECT_THAT(layer_named(net, "all").output_shape, ElementsAre(16, 9, 8));
  EXPECT_TRUE(layer_named(net, "p").count_padding);
  EXPECT_THAT(layer_named(net, "p").output_shape, ElementsAre(16, 9, 8));
  EXPECT_THAT(layer_named(net, "g").output_shape, ElementsAre(16, 1, 1));
  EXPECT_EQ(layer_named(net, "g").kernel_w, 8);
  EXPECT_EQ(layer_named(net, "loss").loss_weight, 2.0);
  EXPECT_EQ(layer_named(net, "loss").label_smoothing, 0.1);
}

TEST(ParseNetwork, BatchNormBeginsWithOnes) {
  const NetSpec net = resolved(json::parse(R"({"name": "n", "input": [4], "layers": [
    {"name": "bn", "type": "batch_norm"}, {"name": "l", "type": "softmax_cross_entropy"}]})"));
  EXPECT_EQ(net.layers[0].parameters[0].initialiser.type, Initialiser::Type::kConstant);
  EXPECT_EQ(net.layers[0].parameters[0].initialiser.value, 1.0);
  EXPECT_EQ(net.layers[0].epsilon, 1e-5);
  EXPECT_EQ(net.layers[0].momentum, 0.1);
}

TEST(ParseNetwork, WhatLeadsToAuxiliaryLossesAloneIsForTraining) {
  const NetSpec net = resolved(json::parse(R"({"name": "n", "input": [8], "layers": [
    {"name": "trunk", "type": "fully_connected", "outputs": 9},
    {"name": "side", "type": "fully_connected", "outputs": 5},
    {"name": "counted", "type": "fully_connected", "outputs": 5, "inputs": ["side"]},
    {"name": "aux1", "type": "softmax_cross_entropy", "auxiliary": true},
    {"name": "more", "type": "relu", "inputs": ["side"]},
    {"name": "aux2", "type": "softmax_cross_entropy", "auxiliary": true},
    {"name": "main", "type": "fully_connected", "outputs": 5, "inputs": ["trunk"]},
    {"name": "loss", "type": "softmax_cross_entropy"},
    {"name": "top1", "type": "accuracy", "inputs": ["counted"]}]})"));
  for (const LayerSpec& layer : net.layers) {
    const bool expected = layer.name == "aux1" || layer.name == "aux2" || layer.name == "more";
    EXPECT_EQ(layer.train_only, expected) << layer.name;
  }
  EXPECT_EQ(net.classes, 5);
}

TEST(ParseNetwork, SourceParsesToTheSameNetwork) {
  const NetSpec net = resolved("cifar10_quick");
  EXPECT_EQ(resolved(net.source).source, net.source);
}

TEST(ResolveNetwork, ReadsAFileRelativeToTheFolder) {
  const auto net = resolve_network("models/lenet.json", std::filesystem::current_path());
  ASSERT_TRUE(net.ok()) << net.status().message();
  EXPECT_EQ(net->name, "lenet");
}

TEST(ResolveNetwork, AKeyThatIsThereTwiceIsRefused) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) /
                                     ("poseidon_net_test_" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << R"({"name": "n", "input": [3], "input": [4], "layers": []})";
  const auto net = resolve_network(file.string(), ".");
  std::filesystem::remove(file);
  EXPECT_EQ(std::string(net.status().message()),
            "network file " + file.string() + ": input: the key is there twice; keep one of them");
}

TEST(ResolveNetwork, SaysWhatItDoesNotFind) {
  EXPECT_THAT(std::string(resolve_network("lennet", ".").status().message()),
              HasSubstr("unknown network \"lennet\" (did you mean \"lenet\"?): shipped are "
                        "alexnet, cifar10_quick, googlenet"));
  EXPECT_THAT(std::string(resolve_network("models/none.json", ".").status().message()),
              HasSubstr("network file ./models/none.json: cannot open: No such file"));
  EXPECT_THAT(std::string(resolve_network("models/", ".").status().message()),
              HasSubstr("is a folder, not a file"));
  EXPECT_THAT(std::string(resolve_network("models/README.md", ".").status().message()),
              HasSubstr("network file ./models/README.md: parse error at line 1, column 1"));
  EXPECT_THAT(std::string(resolve_network(7, ".").status().message()),
              HasSubstr("\"model\" must be the name of a shipped network, a path, or a network "
                        "object, got 7"));
}

}  // namespace
}  // namespace poseidon::net_test
