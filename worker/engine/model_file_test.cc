#include "worker/engine/model_file.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/files/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/cpu/cpu_device.h"

namespace poseidon::model_file_test {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

json small_network() {
  return json::parse(R"({"name": "small", "input": [2, 4, 4], "layers": [
    {"name": "conv", "type": "convolution", "outputs": 3, "kernel": 3},
    {"name": "bn", "type": "batch_norm"},
    {"name": "fc", "type": "fully_connected", "outputs": 2},
    {"name": "loss", "type": "softmax_cross_entropy"}]})");
}

NetSpec parsed(const json& network) {
  auto net = resolve_network(network, ".");
  EXPECT_TRUE(net.ok()) << net.status();
  return *net;
}

/// An executor of the small network whose values count up from `first`.
std::unique_ptr<Executor> executor_from(float first) {
  auto executor = make_cpu_executor(parsed(small_network()), {.batch_size = 2, .threads = 1});
  EXPECT_TRUE(executor.ok()) << executor.status();
  for (std::uint32_t l = 0; l < 3; ++l) {
    for (float& value : (*executor)->parameters(LayerIndex(l))) value = first++;
  }
  std::vector<float> statistics(6);
  for (float& value : statistics) value = first++;
  EXPECT_TRUE((*executor)->write_statistics(statistics).ok());
  return *std::move(executor);
}

std::vector<float> values_of(Executor& executor) {
  std::vector<float> values;
  for (std::uint32_t l = 0; l < 3; ++l) {
    const auto layer = executor.parameters(LayerIndex(l));
    values.insert(values.end(), layer.begin(), layer.end());
  }
  std::vector<float> statistics(6);
  EXPECT_TRUE(executor.read_statistics(statistics).ok());
  values.insert(values.end(), statistics.begin(), statistics.end());
  return values;
}

class ModelFile : public ::testing::Test {
 protected:
  ModelFile()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("model_file_" + std::to_string(::getpid()) + ".safetensors")) {}
  ~ModelFile() override { std::filesystem::remove(path_); }

  void write(const std::vector<std::pair<std::string, Shape>>& tensors) {
    values_.assign(1000, 5.0f);
    write_values(tensors);
  }
  void write_values(const std::vector<std::pair<std::string, Shape>>& tensors) {
    std::vector<TensorView> views;
    for (const auto& [name, shape] : tensors) {
      const auto count = static_cast<std::size_t>(element_count(shape));
      views.push_back({name, shape, std::span(values_).first(count)});
    }
    std::string bytes;
    const auto encoded = encode_safetensors(views);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    bytes += encoded->header;
    for (const std::string_view piece : encoded->values) bytes += piece;
    ASSERT_TRUE(write_file_atomically(path_, bytes).ok());
  }
  /// A file of one tensor, conv.bias, as bytes of another dtype.
  void write_bias(const std::string& dtype, const std::string& bytes) {
    const std::string header =
        json{{"conv.bias", {{"dtype", dtype}, {"shape", {3}}, {"data_offsets", {0, bytes.size()}}}}}
            .dump();
    std::string length(8, '\0');
    const std::uint64_t size = header.size();
    std::memcpy(length.data(), &size, 8);
    ASSERT_TRUE(write_file_atomically(path_, length + header + bytes).ok());
  }
  absl::StatusOr<WeightsReport> load(Executor& executor, const LayerRenames& renames = {},
                                     WeightsPart part = WeightsPart::kAll) {
    return load_weights(path_, renames, part, executor);
  }
  /// The message of a refusal, which leaves everything as it was.
  std::string refusal(const LayerRenames& renames = {}) {
    const auto executor = executor_from(1);
    const auto before = values_of(*executor);
    const auto report = load(*executor, renames);
    EXPECT_EQ(values_of(*executor), before);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(check_weights(path_, renames, executor->net()).status(), report.status());
    EXPECT_THAT(std::string(report.status().message()), StartsWith(path_.string() + ": "));
    return std::string(report.status().message());
  }

  const std::filesystem::path path_;
  std::vector<float> values_;
};

TEST_F(ModelFile, RoundTripOfParametersAndStatistics) {
  const auto from = executor_from(1);
  const auto model = encode_model(*from);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(write_file_atomically(path_, model->pieces()).ok());
  const auto reader = SafetensorsReader::open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::string> tensors;
  for (const StoredTensor& tensor : reader->header().tensors) {
    tensors.push_back(tensor.name + " " + shape_to_string(tensor.shape) + " " + tensor.dtype);
  }
  EXPECT_THAT(tensors, ElementsAre("conv.weight 3x2x3x3 F32", "conv.bias 3 F32", "bn.weight 3 F32",
                                   "bn.bias 3 F32", "fc.weight 2x12 F32", "fc.bias 2 F32",
                                   "bn.running_mean 3 F32", "bn.running_var 3 F32"));
  const auto to = executor_from(1000);
  const auto report = load(*to);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(values_of(*to), values_of(*from));
  EXPECT_EQ(weights_report_to_text(*report), "8 of the network's 8 tensors loaded");
}

TEST_F(ModelFile, WhatIsNoEnginesIsTheSameFileOrRefused) {
  const auto from = executor_from(1);
  std::vector<std::span<const float>> parameters;
  for (std::uint32_t l = 0; l < 3; ++l) parameters.emplace_back(from->parameters(LayerIndex(l)));
  std::vector<float> statistics(6);
  ASSERT_TRUE(from->read_statistics(statistics).ok());
  const auto encoded = EncodedModel::encode(layout_of(from->net()), parameters, statistics);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_EQ(encoded->pieces(), encode_model(*from)->pieces());
  statistics.pop_back();
  EXPECT_THAT(
      EncodedModel::encode(layout_of(from->net()), parameters, statistics).status().ToString(),
      HasSubstr("bn.running_var"));
  statistics.push_back(0);
  parameters[0] = parameters[0].first(5);
  EXPECT_THAT(
      EncodedModel::encode(layout_of(from->net()), parameters, statistics).status().ToString(),
      HasSubstr("conv.weight has 54 elements"));
}

// Workers other than the first take the statistics alone.
TEST_F(ModelFile, StatisticsAlone) {
  const auto from = executor_from(1);
  ASSERT_TRUE(write_file_atomically(path_, encode_model(*from)->pieces()).ok());
  const auto to = executor_from(1000);
  const auto untouched = values_of(*to);
  ASSERT_TRUE(load(*to, {}, WeightsPart::kStatistics).ok());
  const auto values = values_of(*to);
  EXPECT_TRUE(std::equal(values.begin(), values.end() - 6, untouched.begin()));
  EXPECT_TRUE(std::equal(values.end() - 6, values.end(), values_of(*from).end() - 6));
}

TEST_F(ModelFile, WhatIsMissingOnEitherSideIsReported) {
  write({{"conv.weight", {3, 2, 3, 3}},
         {"fc.weight", {2, 12}},
         {"head.weight", {7}},
         {"bn.running_var", {3}}});
  const auto executor = executor_from(100);
  const auto report = load(*executor);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->loaded, ElementsAre("conv.weight", "fc.weight", "bn.running_var"));
  EXPECT_THAT(report->not_in_file,
              ElementsAre("conv.bias", "bn.weight", "bn.bias", "fc.bias", "bn.running_mean"));
  EXPECT_THAT(report->not_in_network, ElementsAre("head.weight"));
  EXPECT_EQ(weights_report_to_text(*report),
            "3 of the network's 8 tensors loaded; not in the file, so they begin as the network "
            "says: conv.bias, bn.weight, bn.bias, fc.bias, bn.running_mean; in the file, but not "
            "in the network, so ignored: head.weight");
  EXPECT_EQ(executor->parameters(LayerIndex(0))[53], 5.0f);    // the last weight
  EXPECT_EQ(executor->parameters(LayerIndex(0))[54], 154.0f);  // the first bias
}

TEST_F(ModelFile, LongListsAreCut) {
  const WeightsReport report{
      .loaded = {"a"}, .not_in_file = std::vector<std::string>(300, "n"), .not_in_network = {}};
  EXPECT_EQ(weights_report_to_text(report),
            "1 of the network's 301 tensors loaded; not in the file, so they begin as the network "
            "says: n, n, n, n, n, n, n, n and 292 more");
}

TEST_F(ModelFile, RefusesWhatDoesNotFit) {
  write({{"conv.weight", {3, 2, 3, 3}}, {"fc.weight", {12, 2}}});
  EXPECT_THAT(refusal(), HasSubstr("tensor fc.weight has shape 12x2, the network wants 2x12"));
  write({{"head.weight", {7}}});
  EXPECT_THAT(refusal(), HasSubstr("none of its 1 tensors has a name of the network: the file has "
                                   "\"head.weight\", the network conv.weight; init.rename"));
  write({});
  EXPECT_THAT(refusal(), HasSubstr("none of its 0 tensors"));
  write_bias("I64", std::string(24, '\0'));
  EXPECT_THAT(refusal(), HasSubstr("tensor conv.bias has dtype I64; F32, F64, F16 and BF16"));
}

TEST_F(ModelFile, RefusesValuesThatTrainingWouldStumbleOver) {
  const auto error = [this] {
    const auto executor = executor_from(1);
    const absl::Status status = load(*executor).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(path_.string() + ": "));
    return std::string(status.message());
  };
  write_bias("F32", std::string("\x00\x00\x80\x3f\x00\x00\xc0\x7f\x00\x00\x00\x00", 12));
  EXPECT_THAT(error(), HasSubstr("tensor conv.bias has values that are no finite float32"));
  const double too_large = 1e39;  // of float64, whose largest float32 is 3.4e38
  std::string bytes(24, '\0');
  std::memcpy(bytes.data() + 8, &too_large, 8);
  write_bias("F64", bytes);
  EXPECT_THAT(error(), HasSubstr("tensor conv.bias has values that are no finite float32"));
}

TEST_F(ModelFile, RefusesNegativeVariances) {
  write({{"bn.running_var", {3}}});
  const auto executor = executor_from(1);
  ASSERT_TRUE(load(*executor).ok());
  values_.assign(1000, -1.0f);
  write_values({{"bn.running_var", {3}}});
  EXPECT_THAT(
      std::string(load(*executor).status().message()),
      HasSubstr("tensor bn.running_var has negative values, but a variance cannot be negative"));
}

TEST_F(ModelFile, OtherFloatingDtypesAreConverted) {
  write_bias("BF16", std::string("\x80\x3f\x20\xc0\x00\x00", 6));
  const auto executor = executor_from(1);
  ASSERT_TRUE(load(*executor).ok());
  const auto bias = executor->parameters(LayerIndex(0)).subspan(54, 3);
  EXPECT_THAT(bias, ElementsAre(1.0f, -2.5f, 0.0f));
}

TEST_F(ModelFile, Renames) {
  write({{"features.0.weight", {3, 2, 3, 3}}, {"features.0.bias", {3}}, {"conv.bias", {3}}});
  EXPECT_THAT(refusal({{"features.1", "conv"}}),
              HasSubstr("rename: the file has no tensors of a layer \"features.1\" (did you mean "
                        "\"features.0\"?)"));
  EXPECT_THAT(refusal({{"features.0", "cnov"}}),
              HasSubstr("rename: the network has no layer \"cnov\" with tensors (did you mean "
                        "\"conv\"?)"));
  EXPECT_THAT(refusal({{"features.0", "conv"}}),
              HasSubstr("rename: two tensors of the file become \"conv.bias\""));
  write({{"features.0.weight", {3, 2, 3, 3}}, {"features.0.bias", {3}}});
  const auto executor = executor_from(1);
  const auto report = load(*executor, {{"features.0", "conv"}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->loaded, ElementsAre("conv.weight", "conv.bias"));
  EXPECT_THAT(report->not_in_network, IsEmpty());
}

// ---- torchvision's names ----

/// All tensors of a shipped network: asked with a file that has one of them.
std::set<std::string> tensors_of(const std::filesystem::path& path, const std::string& network) {
  const auto report = check_weights(path, {}, parsed(network));
  EXPECT_TRUE(report.ok()) << report.status();
  std::set<std::string> names(report->not_in_file.begin(), report->not_in_file.end());
  names.insert(report->loaded.begin(), report->loaded.end());
  return names;
}

void add_batch_norm(std::set<std::string>& names, const std::string& layer) {
  for (const char* tensor : {"weight", "bias", "running_mean", "running_var"}) {
    names.insert(layer + "." + tensor);
  }
}

TEST_F(ModelFile, ResidualNetworksAreNamedAsInTorchvision) {
  write({{"fc.bias", {1000}}});
  const struct {
    const char* network;
    std::vector<int> blocks;
    int convolutions;
  } cases[] = {{"resnet18", {2, 2, 2, 2}, 2},
               {"resnet50", {3, 4, 6, 3}, 3},
               {"resnet152", {3, 8, 36, 3}, 3}};
  for (const auto& test : cases) {
    std::set<std::string> names = {"conv1.weight", "fc.weight", "fc.bias"};
    add_batch_norm(names, "bn1");
    for (std::size_t stage = 0; stage < 4; ++stage) {
      for (int block = 0; block < test.blocks[stage]; ++block) {
        const std::string prefix =
            "layer" + std::to_string(stage + 1) + "." + std::to_string(block) + ".";
        for (int i = 1; i <= test.convolutions; ++i) {
          names.insert(prefix + "conv" + std::to_string(i) + ".weight");
          add_batch_norm(names, prefix + "bn" + std::to_string(i));
        }
        if (block > 0 || (stage == 0 && test.convolutions == 2)) continue;
        names.insert(prefix + "downsample.0.weight");
        add_batch_norm(names, prefix + "downsample.1");
      }
    }
    EXPECT_EQ(tensors_of(path_, test.network), names) << test.network;
  }
}

TEST_F(ModelFile, InceptionIsNamedAsInTorchvision) {
  write({{"fc.bias", {1000}}});
  const auto names = tensors_of(path_, "inception_v3_aux");
  EXPECT_EQ(names.size(), 96u * 5 + 4);  // 94 units of convolution and normalisation and 2 in the
                                         // head, and two classifiers
  for (const char* name :
       {"Conv2d_1a_3x3.conv.weight", "Conv2d_4a_3x3.bn.running_var", "Mixed_5b.branch1x1.bn.bias",
        "Mixed_5d.branch_pool.conv.weight", "Mixed_6a.branch3x3dbl_3.conv.weight",
        "Mixed_6e.branch7x7dbl_5.bn.weight", "AuxLogits.conv0.conv.weight",
        "AuxLogits.conv1.bn.running_mean", "AuxLogits.fc.bias",
        "Mixed_7a.branch7x7x3_4.conv.weight", "Mixed_7c.branch3x3dbl_3b.conv.weight",
        "Mixed_7b.branch3x3_2a.bn.bias", "fc.weight"}) {
    EXPECT_THAT(names, Contains(name));
  }
  EXPECT_THAT(names, Not(Contains("Conv2d_1a_3x3.conv.bias")));
}

}  // namespace
}  // namespace poseidon::model_file_test
