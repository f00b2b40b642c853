#include "cli/commands/job_file.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::job_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class JobFileTest : public ::testing::Test {
 protected:
  JobFileTest() : folder_(fs::path(::testing::TempDir()) / "job_file_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  fs::path write(const std::string& name, const nlohmann::json& json) const {
    std::ofstream(folder_ / name) << json.dump();
    return folder_ / name;
  }

  static nlohmann::json job() {
    return nlohmann::json::parse(R"({
      "name": "j", "model": "lenet", "batch_size": 4, "iterations": 2,
      "data": {"train": {"format": "idx", "images": "i.gz", "labels": "l.gz"}},
      "optimizer": {"type": "sgd", "learning_rate": 0.1}})");
  }

  const fs::path folder_;
};

TEST_F(JobFileTest, PathsBecomeAbsoluteAndTheNetworkInline) {
  const auto prepared = prepare_job(write("job.json", job()));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->net.parameter_count(), 431080);
  const auto json = nlohmann::json::parse(prepared->json);
  EXPECT_TRUE(json["model"].is_object());
  EXPECT_EQ(json["data"]["train"]["images"], (folder_ / "i.gz").string());
  // What is submitted is itself a valid job.
  EXPECT_TRUE(parse_job(prepared->json).ok());
}

TEST_F(JobFileTest, ADeclaredModelIsPlannedAndNotSentToWorkers) {
  const fs::path path = write("declared.json", nlohmann::json::parse(R"({
      "name": "script", "optimizer": {"type": "sgd", "learning_rate": 0.1},
      "model": {"name": "train.py", "declared": [
          {"name": "fc", "type": "linear", "tensors": [{"name": "weight", "shape": [10, 4]}]}]}})"));
  const auto prepared = prepare_job(path);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_EQ(prepared->layout.layers.size(), 1U);
  EXPECT_TRUE(prepared->layout.layers[0].is_linear);
  EXPECT_TRUE(parse_job(prepared->json).ok());
  EXPECT_EQ(std::string(prepare_job_of_workers(path).status().message()),
            path.string() +
                ": model: model 'train.py' is declared by a program, which trains it: there is no "
                "network here to compute");
  EXPECT_TRUE(prepare_job_of_workers(write("job.json", job())).ok());
}

// As the system goes: `link/..` is not the folder that `link` is in.
TEST_F(JobFileTest, TheWayOutOfALinkIsTheSystems) {
  fs::create_directories(folder_ / "elsewhere" / "inside");
  write("elsewhere/job.json", job());
  fs::create_symlink("elsewhere/inside", folder_ / "link");
  const auto prepared = prepare_job(folder_ / "link" / ".." / "job.json");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->spec.data.train.images,
            (fs::canonical(folder_ / "elsewhere") / "i.gz").string());
}

// What is sent would name another file.
TEST_F(JobFileTest, PathsThatAreNotUtf8AreRefused) {
  const fs::path folder = folder_ / "r\xE9s";
  fs::create_directories(folder);
  std::ofstream(folder / "job.json") << job().dump();
  const absl::Status refused = prepare_job(folder / "job.json").status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("data.train.images: not UTF-8"));

  nlohmann::json absolute = job();
  absolute["data"]["train"] = {{"format", "idx"}, {"images", "/i.gz"}, {"labels", "/l.gz"}};
  std::ofstream(folder / "job.json") << absolute.dump();
  EXPECT_TRUE(prepare_job(folder / "job.json").ok());
}

TEST_F(JobFileTest, ANetworkThatCannotBeSentIsNamed) {
  nlohmann::json net = {{"name", "long"}, {"input", {8}}, {"layers", nlohmann::json::array()}};
  nlohmann::json names;
  for (int i = 0; i < 20; ++i) {
    names.push_back(std::string(100, 'x') + std::to_string(i));
    net["layers"].push_back({{"name", names.back()}, {"type", "relu"}});
  }
  for (int i = 0; i < 2000; ++i) {
    const std::string sum = "sum" + std::to_string(i);
    net["layers"].push_back({{"name", sum}, {"type", "add"}, {"inputs", names}});
    names.back() = sum;  // the next one reads it
  }
  net["layers"].push_back({{"name", "fc"}, {"type", "fully_connected"}, {"outputs", 2}});
  net["layers"].push_back({{"name", "loss"}, {"type", "softmax_cross_entropy"}});
  write("net.json", net);
  nlohmann::json json = job();
  json["model"] = "./net.json";
  const absl::Status refused = prepare_job(write("job.json", json)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("model: with its 2022 layers"));
}

TEST_F(JobFileTest, ANetworkFileIsFoundBesideTheJob) {
  write("net.json", nlohmann::json::parse(R"({
    "name": "tiny", "input": [1, 28, 28], "layers": [
      {"name": "ip", "type": "fully_connected", "outputs": 10},
      {"name": "loss", "type": "softmax_cross_entropy"}]})"));
  nlohmann::json json = job();
  json["model"] = "./net.json";
  const auto prepared = prepare_job(write("job.json", json));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->net.name, "tiny");
}

TEST_F(JobFileTest, BatchNormalisationOfOneValueIsRefused) {
  nlohmann::json json = job();
  json["model"] = nlohmann::json::parse(R"({
    "name": "tiny", "input": [1, 28, 28], "layers": [
      {"name": "ip", "type": "fully_connected", "outputs": 10},
      {"name": "bn", "type": "batch_norm"},
      {"name": "loss", "type": "softmax_cross_entropy"}]})");
  json["micro_batches"] = 2;
  EXPECT_TRUE(prepare_job(write("job.json", json)).ok());
  json["micro_batches"] = 4;
  const absl::Status status = prepare_job(write("job.json", json)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("layer 'bn'"));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("let batch_size / micro_batches be 2 or more"));
}

TEST_F(JobFileTest, ErrorsStartWithThePathAndNameTheKey) {
  nlohmann::json json = job();
  json["model"] = "lenett";
  const fs::path path = write("job.json", json);
  const auto prepared = prepare_job(path);
  ASSERT_FALSE(prepared.ok());
  EXPECT_THAT(std::string(prepared.status().message()), StartsWith(path.string() + ": "));
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("model"));
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("lenet"));
}

TEST_F(JobFileTest, SchemesMustFitTheNetwork) {
  nlohmann::json json = job();
  json["sync"]["scheme"] = {{"ip3", "sfb"}};
  const fs::path path = write("job.json", json);
  auto prepared = prepare_job(path);
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(prepared.status().message()),
              ::testing::AllOf(StartsWith(path.string()), HasSubstr("sync.scheme.ip3"),
                               HasSubstr("did you mean \"ip1\"?")));
  json["sync"]["scheme"] = {{"conv1", "sfb"}};
  prepared = prepare_job(write("job.json", json));
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("sync.scheme.conv1"));
}

TEST_F(JobFileTest, APinnedPlanTravelsWithTheJob) {
  nlohmann::json json = job();
  json["sync"]["plan"] = "./plan.json";
  nlohmann::json plan = {{"epoch", 3}, {"servers", 1}, {"layers", nlohmann::json::array()}};
  const struct {
    const char* name;
    std::vector<std::int64_t> shape;
    std::int64_t parameters;
    const char* scheme;
  } layers[] = {{"conv1", {20, 1, 5, 5}, 520, "ps"},
                {"conv2", {50, 20, 5, 5}, 25050, "ps"},
                {"ip1", {500, 800}, 400500, "ps"},
                {"ip2", {10, 500}, 5010, "sfb"}};
  for (const auto& layer : layers) {
    plan["layers"].push_back({{"name", layer.name},
                              {"shape", layer.shape},
                              {"parameters", layer.parameters},
                              {"scheme", layer.scheme},
                              {"reason", "because"}});
  }
  const fs::path path = write("job.json", json);
  EXPECT_THAT(std::string(prepare_job(path).status().message()),
              ::testing::AllOf(HasSubstr("sync.plan: no such file"), HasSubstr("plan.json")));
  write("plan.json", plan);
  auto prepared = prepare_job(path);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto sent = parse_job(prepared->json);
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->sync.plan["layers"][3]["scheme"], "sfb");
  json["checkpoint"]["replicas"] = 2;
  json["optimizer"]["momentum"] = 0.9;
  write("job.json", json);
  EXPECT_TRUE(prepare_job(path).ok());
  plan["chunk_bytes"] = 64 << 20;
  write("plan.json", plan);
  EXPECT_THAT(std::string(prepare_job(path).status().message()),
              ::testing::AllOf(HasSubstr("sync.plan: expected chunks of at most 33554432 bytes"),
                               HasSubstr("got 67108864")));
  plan.erase("chunk_bytes");
  plan["layers"][2]["parameters"] = 400000;
  write("plan.json", plan);
  EXPECT_THAT(std::string(prepare_job(path).status().message()),
              HasSubstr("sync.plan: layer ip1 is 500x800 with 400500 parameters in the network"));
  plan["layers"].erase(2);
  write("plan.json", plan);
  EXPECT_THAT(std::string(prepare_job(path).status().message()),
              HasSubstr("parameter layer 3 is \"ip1\" in the network and \"ip2\" in the plan"));
}

TEST_F(JobFileTest, AMissingDataFileIsNamedWithItsKey) {
  const auto prepared = prepare_job(write("job.json", job()));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  std::ofstream(folder_ / "i.gz") << "x";
  const absl::Status status = check_files(prepared->spec);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith("data.train.labels: no such file: " + (folder_ / "l.gz").string()));
  std::ofstream(folder_ / "l.gz") << "x";
  EXPECT_TRUE(check_files(prepared->spec).ok());
}

// As everywhere else on the system: ".." leads out of where the link leads.
TEST_F(JobFileTest, PathsThroughLinksAreTheSystems) {
  fs::create_directories(folder_ / "disk/set/images");
  fs::create_directory_symlink(folder_ / "disk/set/images", folder_ / "images");
  std::ofstream(folder_ / "disk/set/i.gz") << "x";
  nlohmann::json json = job();
  json["data"]["train"]["images"] = "images/../i.gz";
  json["data"]["train"]["labels"] = "./images/../i.gz";
  const auto prepared = prepare_job(write("job.json", json));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const absl::Status status = check_files(prepared->spec);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(JobFileTest, AFolderIsNoDataFile) {
  auto prepared = prepare_job(write("job.json", job()));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  prepared->spec.data.train.images = folder_.string();
  EXPECT_TRUE(absl::IsInvalidArgument(check_files(prepared->spec)));
}

TEST(CheckData, NamesTheKeyOfWhatDoesNotFit) {
  auto prepared = prepare_job("deploy/jobs/digits.json");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(check_data(prepared->spec, prepared->net, 4).ok());
  prepared->spec.data.transform.resize = {20, 20};
  prepared->spec.data.transform.random_crop.clear();
  prepared->spec.data.transform.pad = 0;
  const absl::Status shape = check_data(prepared->spec, prepared->net, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(shape)) << shape;
  EXPECT_THAT(std::string(shape.message()), StartsWith("data.train: "));
  EXPECT_THAT(std::string(shape.message()), HasSubstr("20x20"));
  EXPECT_THAT(std::string(shape.message()), HasSubstr("28x28"));
}

}  // namespace
}  // namespace poseidon::job_file_test
