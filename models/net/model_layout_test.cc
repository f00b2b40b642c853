#include "models/net/model_layout.h"

#include "common/job/declared_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::model_layout_test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json example() {
  return Json::parse(R"({
      "name": "train.py",
      "declared": [
        {"name": "pos_emb", "tensors": [{"shape": [16, 8]}]},
        {"name": "h.0.fc", "type": "linear", "multiply_adds": 2048,
         "tensors": [{"name": "weight", "shape": [32, 8]}, {"name": "bias", "shape": [32]}]},
        {"name": "scale", "type": "plain", "tensors": [{"name": "value", "shape": []}]}],
      "state": [{"name": "norm.running_mean", "shape": [8]}, {"name": "norm.count", "shape": []}]})");
}

/// The error of the example with `value` at the JSON pointer `where`.
std::string error_with(const std::string& where, const Json& value) {
  Json model = example();
  model[Json::json_pointer(where)] = value;
  return std::string(parse_declared_model(model).status().message());
}

TEST(DeclaredModel, HasTheLayersInTheirOrder) {
  ASSERT_TRUE(is_declared_model(example()));
  const auto layout = parse_declared_model(example());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->name, "train.py");
  ASSERT_EQ(layout->layers.size(), 3u);
  EXPECT_EQ(layout->layers[0].type, "plain");
  EXPECT_FALSE(layout->layers[0].is_linear);
  EXPECT_EQ(layout->layers[0].parameter_count(), 128);
  EXPECT_TRUE(layout->layers[1].is_linear);
  EXPECT_EQ(layout->layers[1].multiply_adds, 2048);
  EXPECT_EQ(layout->layers[1].parameter_count(), 32 * 8 + 32);
  EXPECT_EQ(layout->layers[2].parameter_count(), 1) << "a scalar";
  EXPECT_EQ(layout->statistics_count(), 9);
  EXPECT_EQ(layout->statistics[1].offset, 8);
}

TEST(DeclaredModel, TensorsAreCalledAsInTheProgram) {
  EXPECT_EQ(full_tensor_name("pos_emb", ""), "pos_emb");
  EXPECT_EQ(full_tensor_name("h.0.fc", "weight"), "h.0.fc.weight");
}

TEST(DeclaredModel, RefusesByName) {
  EXPECT_EQ(error_with("/declared/1/name", "pos_emb"),
            "model 'train.py': layer 'pos_emb': another layer has this name already; names must "
            "differ");
  EXPECT_THAT(error_with("/declared/1/name", "h 0"), HasSubstr("expected 1 to 128 letters"));
  EXPECT_THAT(error_with("/declared/1/type", "conv"), HasSubstr("type"));
  EXPECT_THAT(error_with("/declared/1/tensors/0/shape", Json::array({8})),
              HasSubstr("layer 'h.0.fc': a linear layer's first tensor is its weight"));
  EXPECT_THAT(error_with("/declared/1/tensors/1/name", "weight"),
              HasSubstr("another tensor is called h.0.fc.weight already"));
  EXPECT_THAT(error_with("/declared/0/tensors/0/shape", Json::array({1 << 20, 1 << 20})),
              HasSubstr("tensors[0].shape: expected at most 2147483648 elements, got "
                        "1048576x1048576"));
  EXPECT_THAT(error_with("/declared/0/tensors/0/shape", Json::array({0})), HasSubstr("shape"));
  EXPECT_THAT(error_with("/declared/0/tensors", Json::array()), HasSubstr("tensors"));
  EXPECT_THAT(error_with("/declared", Json::array()), HasSubstr("declared"));
  EXPECT_THAT(error_with("/state/0/name", "h.0.fc.bias"),
              HasSubstr("another tensor is called h.0.fc.bias already"));
  EXPECT_THAT(error_with("/declared/0/kernel", 3), HasSubstr("kernel"));
  // Two tensors that fit alone, but not in one layer.
  EXPECT_THAT(error_with("/declared/1/tensors/1/shape", Json::array({std::int64_t{1} << 31})),
              HasSubstr("the layer has more than"));
}

TEST(DeclaredModel, TheFirstDifferenceIsNamed) {
  const auto difference = [](const std::string& where, const Json& value) {
    Json other = example();
    other[Json::json_pointer(where)] = value;
    return layout_difference(*parse_declared_model(example()), *parse_declared_model(other));
  };
  EXPECT_EQ(difference("/name", "other.py"), "") << "the file's name is for people";
  EXPECT_EQ(difference("/declared/1/tensors/0/shape", Json::array({32, 4})),
            "layer 1, h.0.fc: tensor h.0.fc.weight has shape 32x8 here, 32x4 there");
  EXPECT_EQ(difference("/declared/2/tensors/0/shape", Json::array({1})),
            "layer 2, scale: tensor scale.value has shape of one value here, 1 there");
  EXPECT_EQ(difference("/declared/0/name", "emb"), "layer 0 is pos_emb here, emb there");
  EXPECT_EQ(difference("/declared/1/type", "plain"),
            "layer 1, h.0.fc: it is linear here, plain there");
  EXPECT_EQ(difference("/state/0/shape", Json::array({4})),
            "state norm.running_mean has shape 8 here, 4 there");
  Json shorter = example();
  shorter["declared"].erase(2);
  EXPECT_EQ(layout_difference(*parse_declared_model(shorter), *parse_declared_model(example())),
            "2 layers here, 3 there");
}

TEST(ModelLayout, OfANetworkHasItsParameterLayersAlone) {
  const auto layout = resolve_layout("lenet", ".");
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::vector<std::string> names;
  for (const LayoutLayer& layer : layout->layers) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("conv1", "conv2", "ip1", "ip2"));
  EXPECT_EQ(layout->layers[0].type, "convolution");
  EXPECT_TRUE(layout->layers[2].is_linear);
  EXPECT_EQ(layout->layers[2].tensors[0].shape, Shape({500, 800}));
}

TEST(ModelLayout, ADeclaredModelIsNoNetworkToCompute) {
  EXPECT_TRUE(resolve_layout(example(), ".").ok());
  EXPECT_EQ(resolve_network(example(), ".").status().message(),
            "model 'train.py' is declared by a program, which trains it: there is no network here "
            "to compute");
}

}  // namespace
}  // namespace poseidon::model_layout_test
