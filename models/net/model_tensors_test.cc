#include "models/net/model_tensors.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::model_tensors_test {
namespace {

using ::testing::HasSubstr;

NetSpec network() {
  const auto net = parse_network(nlohmann::json::parse(R"({
      "name": "small", "input": [1, 4, 4], "layers": [
        {"name": "conv", "type": "convolution", "outputs": 2, "kernel": 3, "pad": 1},
        {"name": "norm", "type": "batch_norm"},
        {"name": "fc", "type": "fully_connected", "outputs": 3},
        {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  EXPECT_TRUE(net.ok()) << net.status();
  return *net;
}

/// What a file of this model says of itself.
SafetensorsHeader header_of(const std::vector<ModelTensor>& tensors) {
  SafetensorsHeader header;
  for (const ModelTensor& tensor : tensors) {
    header.tensors.push_back({.name = tensor.name, .dtype = "F32", .shape = tensor.shape});
  }
  return header;
}

TEST(ModelTensorsTest, ParametersComeFirstAndStatisticsAfterThem) {
  const std::vector<ModelTensor> tensors = model_tensors(layout_of(network()));
  std::vector<std::string> names;
  for (const ModelTensor& tensor : tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::ElementsAre("conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                            "fc.weight", "fc.bias", "norm.running_mean",
                                            "norm.running_var"));
  EXPECT_EQ(tensors[1].offset, 18u);
  EXPECT_EQ(tensors[7].offset, 2u);
  EXPECT_TRUE(tensors[7].is_statistic);
}

TEST(ModelTensorsTest, AFileThatDiffersIsRefusedByTheNameOfTheTensor) {
  const std::vector<ModelTensor> tensors = model_tensors(layout_of(network()));
  EXPECT_TRUE(check_model_tensors(header_of(tensors), tensors).ok());
  const auto complaint = [&](const std::function<void(SafetensorsHeader&)>& change) {
    SafetensorsHeader header = header_of(tensors);
    change(header);
    const absl::Status status = check_model_tensors(header, tensors);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(complaint([](auto& h) { h.tensors.pop_back(); }),
              HasSubstr("lacks tensor norm.running_var"));
  EXPECT_THAT(
      complaint([](auto& h) {
        h.tensors[4].shape = {32, 3};
      }),
      HasSubstr("tensor fc.weight of the model has shape 32x3, the job's network has 3x32"));
  EXPECT_THAT(complaint([](auto& h) { h.tensors[0].dtype = "F16"; }),
              HasSubstr("conv.weight of the model is F16"));
  EXPECT_THAT(
      complaint([](auto& h) { h.tensors.push_back({.name = "x.y", .dtype = "F32", .shape = {}}); }),
      HasSubstr("\"x.y\", which the job's network does not have"));
  EXPECT_THAT(complaint([](auto& h) { h.tensors.clear(); }), HasSubstr("conv.weight"));
}

}  // namespace
}  // namespace poseidon::model_tensors_test
