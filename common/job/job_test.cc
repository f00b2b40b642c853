#include "common/job/job.h"

#include <fstream>
#include <string>
#include <vector>

#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/job/job_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::job_test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// DESIGN section 9's example, with its placeholders filled in.
Json example() {
  return Json::parse(R"({
    "name": "digits",
    "model": "lenet",
    "init": {"seed": 1},
    "data": {"train": {"format": "idx", "images": "train-images-idx3-ubyte.gz",
                       "labels": "train-labels-idx1-ubyte.gz"},
             "test": {"format": "idx", "images": "t10k-images", "labels": "/abs/t10k-labels"},
             "shuffle": true, "seed": 1,
             "transform": {"resize": [28, 28], "scale": 0.00392156862745098}},
    "batch_size": 32,
    "iterations": 500,
    "optimizer": {"type": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0005,
                  "schedule": {"type": "step", "step_iterations": 100, "gamma": 0.5}},
    "sync": {"scheme": "auto", "cost": "time", "consistency": "bsp", "chunk_bytes": 2097152,
             "wire_dtype": "fp32"},
    "checkpoint": {"every_iterations": 100, "keep": 3, "replicas": 1},
    "membership": {"min_workers": 1, "max_workers": 64, "replace_timeout_ms": 30000},
    "test_every_iterations": 100})");
}

/// The error of the example with `value` at the JSON pointer `where`.
std::string error_with(const std::string& where, const Json& value) {
  Json job = example();
  job[Json::json_pointer(where)] = value;
  return std::string(parse_job(job.dump()).status().message());
}

std::string error_without(const std::string& parent, const std::string& key) {
  Json job = example();
  job[Json::json_pointer(parent)].erase(key);
  return std::string(parse_job(job.dump()).status().message());
}

TEST(Job, ReadsTheExample) {
  const absl::StatusOr<JobSpec> job = parse_job(example().dump());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name, "digits");
  EXPECT_EQ(job->model, "lenet");
  EXPECT_EQ(job->init.seed, 1u);
  EXPECT_EQ(job->data.train.format, "idx");
  EXPECT_EQ(job->data.train.images, "train-images-idx3-ubyte.gz");
  ASSERT_TRUE(job->data.test.has_value());
  EXPECT_EQ(job->data.test->labels, "/abs/t10k-labels");
  EXPECT_TRUE(job->data.shuffle);
  EXPECT_THAT(job->data.transform.resize, ElementsAre(28, 28));
  EXPECT_EQ(job->data.transform.scale, 0.00392156862745098);
  EXPECT_EQ(job->batch_size, 32);
  EXPECT_EQ(job->iterations, 500);
  EXPECT_EQ(job->optimizer.type, OptimizerType::kSgd);
  EXPECT_EQ(job->optimizer.momentum, 0.9);
  EXPECT_EQ(job->optimizer.schedule.type, LearningRateSchedule::Type::kStep);
  EXPECT_EQ(job->optimizer.schedule.step_iterations, 100);
  EXPECT_EQ(job->sync.chunk_bytes, 2 << 20);
  EXPECT_EQ(job->sync.wire_dtype, ElementType::kFloat32);
  EXPECT_EQ(job->precision, "fp32");
  EXPECT_EQ(job->checkpoint.every_iterations, 100);
  EXPECT_THAT(job_warnings(*job), ::testing::IsEmpty());
  JobSpec without = *job;
  without.checkpoint.every_iterations = 0;
  without.iterations = 5000;
  EXPECT_THAT(job_warnings(without),
              ::testing::ElementsAre(HasSubstr("checkpoint.every_iterations is 0")));
  without.checkpoint.every_iterations = 5000;
  without.optimizer.schedule.warmup_iterations = 5001;
  EXPECT_THAT(job_warnings(without),
              ElementsAre(HasSubstr("checkpoint.every_iterations is 5000: should a server be lost"),
                          HasSubstr("warmup_iterations is 5001, but the job ends after 5000")));
  without = *job;
  without.data.test.reset();
  EXPECT_THAT(
      job_warnings(without),
      ::testing::ElementsAre(HasSubstr("test_every_iterations is 100, but there is no data.test")));
  EXPECT_EQ(job->membership.max_workers, 64);
  EXPECT_EQ(job->test_every_iterations, 100);
}

TEST(Job, DefaultsStandWithoutTheirKeys) {
  const absl::StatusOr<JobSpec> job = parse_job(R"({"name": "n", "model": {"layers": []},
      "data": {"train": {"format": "cifar10", "files": ["a.bin", "b.bin"]}},
      "batch_size": 1, "iterations": 1})");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->model.is_object());
  EXPECT_FALSE(job->data.test.has_value());
  EXPECT_THAT(job->data.train.files, ElementsAre("a.bin", "b.bin"));
  EXPECT_EQ(job->sync.scheme, "auto");
  EXPECT_EQ(job->checkpoint.every_iterations, 0);
  EXPECT_THAT(job_warnings(*job), ::testing::IsEmpty());
}

TEST(Job, AChunkWithItsStateFitsIntoOneMessageToItsSecondServer) {
  const auto status_of = [](const std::string& optimizer, std::int64_t chunk_bytes, int replicas) {
    return parse_job(str_cat(R"({"name": "n", "model": "mlp", "batch_size": 1, "iterations": 1,
        "data": {"train": {"format": "cifar10", "files": ["a.bin"]}},
        "optimizer": )",
                             optimizer, R"(, "sync": {"chunk_bytes": )", chunk_bytes,
                             R"(}, "checkpoint": {"replicas": )", replicas, "}}"))
        .status();
  };
  const std::string momentum = R"({"type": "sgd", "learning_rate": 0.1, "momentum": 0.9})";
  const std::string adam = R"({"type": "adam", "learning_rate": 0.1})";
  EXPECT_EQ(status_of(momentum, 64 << 20, 1), absl::OkStatus());
  EXPECT_EQ(status_of(momentum, 32 << 20, 2), absl::OkStatus());
  EXPECT_THAT(std::string(status_of(momentum, (32 << 20) + 4, 2).message()),
              HasSubstr("sync.chunk_bytes: expected at most 33554432 with checkpoint.replicas 2"));
  EXPECT_EQ(status_of(adam, 22369620, 2), absl::OkStatus());
  EXPECT_FALSE(status_of(adam, 22369624, 2).ok());
}

TEST(Job, EveryKeyIsInTheReference) {
  const absl::StatusOr<std::string> reference = read_file("docs/job.md", 1 << 20);
  ASSERT_TRUE(reference.ok()) << reference.status();
  Json text = example();
  text["init"]["weights"] = "/w.safetensors";
  text["init"]["rename"] = {{"a", "b"}};
  const absl::StatusOr<JobSpec> job = parse_job(text.dump());
  ASSERT_TRUE(job.ok()) << job.status();
  const auto expect_named = [&](const std::string& key) {
    EXPECT_THAT(*reference, HasSubstr("`" + key + "`"));
  };
  const Json written = Json::parse(job_to_json(*job));
  ASSERT_GE(written.size(), 10u);
  for (const auto& [key, value] : written.items()) {
    // What is in these stands in pages of their own.
    if (!value.is_object() || key == "model" || key == "optimizer") {
      expect_named(key);
      continue;
    }
    for (const auto& [inner, ignored] : value.items()) expect_named(key + "." + inner);
  }
  expect_named("sync.plan");
}

TEST(Job, WireDtypesByName) {
  Json json = example();
  json["sync"]["wire_dtype"] = "bf16";
  EXPECT_EQ(parse_job(json.dump())->sync.wire_dtype, ElementType::kBfloat16);
  json["sync"]["wire_dtype"] = "fp16";
  EXPECT_EQ(parse_job(json.dump())->sync.wire_dtype, ElementType::kFloat16);
  json["sync"].erase("wire_dtype");
  EXPECT_EQ(parse_job(json.dump())->sync.wire_dtype, ElementType::kFloat32) << "off by default";
}

TEST(Job, SendOrdersByName) {
  Json json = example();
  EXPECT_EQ(parse_job(json.dump())->sync.send_order, SendOrder::kNeed) << "unless it is asked for";
  for (const SendOrder order : kSendOrders) {
    json["sync"]["send_order"] = send_order_name(order);
    EXPECT_EQ(parse_job(json.dump())->sync.send_order, order);
  }
}

TEST(Job, LocalAggregationIsOnUnlessItIsOff) {
  Json json = example();
  EXPECT_TRUE(parse_job(json.dump())->sync.local_aggregation);
  for (const char* value : {"off", "auto"}) {
    json["sync"]["local_aggregation"] = value;
    const JobSpec job = *parse_job(json.dump());
    EXPECT_EQ(job.sync.local_aggregation, value == std::string("auto"));
    EXPECT_EQ(Json::parse(job_to_json(job))["sync"]["local_aggregation"], value);
  }
}

TEST(Job, APinnedPlanStandsAlone) {
  Json json = example();
  json["sync"]["plan"] = "plan.json";
  EXPECT_EQ(parse_job(json.dump())->sync.plan, "plan.json");
  json["sync"]["scheme"] = "ps";
  EXPECT_THAT(std::string(parse_job(json.dump()).status().message()),
              HasSubstr("sync.plan: cannot be combined with sync.scheme"));
  json["sync"]["scheme"] = {{"fc6", "sfb"}};
  EXPECT_FALSE(parse_job(json.dump()).ok());
}

TEST(Job, SchemesByLayer) {
  Json json = example();
  json["sync"]["scheme"] = {{"fc6", "sfb"}, {"fc7", "ps"}};
  const absl::StatusOr<JobSpec> job = parse_job(json.dump());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->sync.scheme, "auto") << "for the layers that are not named";
  EXPECT_THAT(job->sync.layer_schemes,
              ElementsAre(::testing::Pair("fc6", "sfb"), ::testing::Pair("fc7", "ps")));
  EXPECT_THAT(parse_job(example().dump())->sync.layer_schemes, ::testing::IsEmpty());
}

TEST(Job, SchedulesEndWithTheJobUnlessTheySayWhere) {
  for (const char* type : {"polynomial", "cosine"}) {
    Json job = example();
    job["optimizer"]["schedule"] = {{"type", type}};
    EXPECT_EQ(parse_job(job.dump())->optimizer.schedule.end_iteration, 500);
    job["optimizer"]["schedule"]["end_iteration"] = 70;
    EXPECT_EQ(parse_job(job.dump())->optimizer.schedule.end_iteration, 70);
  }
}

TEST(Job, RoundTrip) {
  std::vector<Json> jobs(9, example());
  jobs[1]["init"] = {{"weights", "w.safetensors"}, {"rename", {{"features.0", "conv1_1"}}}};
  jobs[1]["optimizer"] = {{"type", "adam"}, {"beta1", 0.1}, {"epsilon", 1e-7}};
  jobs[1]["data"]["seed"] = 18446744073709551615u;
  jobs[2]["optimizer"] = {{"type", "adamw"},
                          {"schedule",
                           {{"type", "multistep"},
                            {"milestones_iterations", {3, 9}},
                            {"gamma", 0.1},
                            {"warmup_iterations", 2}}}};
  jobs[2]["data"]["train"] = {{"format", "cifar10"}, {"files", Json::array({"x"})}};
  jobs[2]["data"].erase("test");
  jobs[3]["data"]["transform"] = {{"pad", 4},
                                  {"random_crop", {32, 31}},
                                  {"mirror", true},
                                  {"mean", {1.5, 2, 3}},
                                  {"scale", 0.1}};
  jobs[3]["model"] = Json::object({{"layers", {1, 2.5, "x"}}});
  jobs[4]["data"]["transform"] = Json::object({{"mean", 33.25}});
  jobs[4]["optimizer"] = {{"nesterov", true}, {"momentum", 0.3}};
  jobs[5]["optimizer"]["schedule"] = {{"type", "inverse"}, {"gamma", 0.01}, {"power", 0.75}};
  jobs[6]["optimizer"]["layers"] = {
      {{"match", "*.bias"}, {"learning_rate_multiplier", 2}, {"weight_decay_multiplier", 0}},
      {{"match", "conv1.*"}, {"learning_rate_multiplier", 0}, {"weight_decay_multiplier", 1}}};
  jobs[6]["micro_batches"] = 8;
  jobs[4]["precision"] = "bf16";
  jobs[8]["optimizer"] = {{"type", "lars"},
                          {"momentum", 0.9},
                          {"trust_coefficient", 0.02},
                          {"clip_norm", 2.5},
                          {"layers",
                           {{{"match", "*.bias"},
                             {"learning_rate_multiplier", 1},
                             {"weight_decay_multiplier", 0},
                             {"trust_ratio", false}}}}};
  jobs[6]["optimizer"]["schedule"] = {{"type", "cosine"}, {"minimum", 0.001}};
  jobs[7]["optimizer"]["schedule"] = {{"type", "polynomial"}, {"end_iteration", 7}, {"power", 2}};
  jobs[2]["sync"]["wire_dtype"] = "bf16";
  jobs[2]["sync"].erase("chunk_bytes");
  jobs[3]["sync"]["chunk_bytes"] = "auto";
  jobs[3]["sync"]["wire_dtype"] = "fp16";
  jobs[5]["sync"]["scheme"] = "sfb";
  jobs[7]["sync"]["plan"] = "plan.json";
  jobs[8]["sync"]["plan"] = {{"servers", 2}, {"layers", Json::array({1})}};
  jobs[6]["sync"]["scheme"] = {{"fc6", "sfb"}, {"fc 7/a", "ps"}, {"fc8", "auto"}};
  jobs.resize(12, example());
  jobs[9]["data"]["train"] = {{"format", "image_folder"}, {"path", "folder"}};
  jobs[9]["data"]["test"] = {{"format", "records"}, {"path", "packed"}};
  jobs[9]["data"]["max_corrupt_share"] = 0.25;
  jobs[9]["data"]["transform"] = {
      {"random_resized_crop", {{"size", {224, 224}}, {"scale", {0.2, 0.9}}, {"ratio", {0.5, 2.0}}}},
      {"resize_shorter", 256},
      {"mirror", true},
      {"color_jitter", {{"brightness", 0.4}, {"contrast", 0.3}, {"saturation", 0.2}, {"hue", 0.1}}},
      {"lighting", 0.1},
      {"mean", {123.675, 116.28, 103.53}},
      {"std", {58.395, 57.12, 57.375}}};
  jobs[10]["data"]["train"] = {
      {"format", "cifar100"}, {"files", Json::array({"x"})}, {"labels", "coarse"}};
  jobs[11]["data"]["transform"] = {{"resize_shorter", 40}, {"random_crop", {32, 32}}};
  for (const Json& json : jobs) {
    const absl::StatusOr<JobSpec> job = parse_job(json.dump());
    ASSERT_TRUE(job.ok()) << job.status();
    const std::string text = job_to_json(*job);
    const absl::StatusOr<JobSpec> again = parse_job(text);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(job_to_json(*again), text);
    // Everything that the file said is in the text that came out.
    Json merged = Json::parse(text);
    merged.merge_patch(json);
    if (json["data"]["transform"].contains("mean") &&
        json["data"]["transform"]["mean"].is_number()) {
      // Json::array: compilers disagree about braces around a single value.
      merged["data"]["transform"]["mean"] = Json::array({json["data"]["transform"]["mean"]});
    }
    EXPECT_EQ(merged, Json::parse(text));
  }
}

TEST(Job, WrongTypesAndRangesNameTheKey) {
  EXPECT_EQ(error_with("/optimizer/momentum", "x"),
            "job file: optimizer.momentum: expected a number from 0 to less than 1, got \"x\"");
  EXPECT_EQ(error_with("/batch_size", 1.0),
            "job file: batch_size: expected an integer from 1 to 1048576, without point or "
            "exponent, got 1.0");
  const struct {
    const char* where;
    Json value;
    const char* message;
  } cases[] = {
      {"/name", "", "name: expected a text"},
      {"/name", 3, "name: expected a text"},
      {"/model", 3, "model: expected the name of a shipped network"},
      {"/model", Json::object(), "model: expected"},
      {"/model", "", "model: expected a text"},
      {"/batch_size", "32", "batch_size: expected an integer"},
      {"/batch_size", 0, "batch_size: expected an integer from 1"},
      {"/batch_size", 1 << 21, "batch_size: expected"},
      {"/iterations", 0, "iterations: expected an integer from 1"},
      {"/iterations", -5, "iterations: expected"},
      {"/iterations", 1e3, "iterations: expected an integer"},
      {"/test_every_iterations", -1, "test_every_iterations: expected"},
      {"/init", 1, "init: expected an object {...}, got 1"},
      {"/init/seed", -1, "init.seed: expected an integer from 0"},
      {"/init/rename", Json::object(), "init.rename: is about init.weights, which is missing"},
      {"/init",
       {{"weights", "w"}, {"rename", {"a"}}},
       "init.rename: expected an object {layer in the file: layer of the network}"},
      {"/init", {{"weights", "w"}, {"rename", {{"a", 3}}}}, "init.rename.a: expected a text"},
      {"/data", nullptr, "data: expected an object {...}, got null"},
      {"/data/shuffle", "yes", "data.shuffle: expected true or false"},
      {"/data/seed", 1.5, "data.seed: expected an integer"},
      {"/data/train/format", "idxx", "did you mean \"idx\"?"},
      {"/data/train/files", Json::array({"x"}),
       "data.train.files: belongs to the formats \"cifar10\" and"},
      {"/data/train/images", 3, "data.train.images: expected a text"},
      {"/data/test/format", "cifar10", "data.test.files: is missing"},
      {"/data/transform/resize", Json::array({28}),
       "data.transform.resize: expected an array of 2 integers"},
      {"/data/transform/resize", {28, 0}, "data.transform.resize[1]: expected"},
      {"/data/train/path", "x", "data.train.path: belongs to the formats \"image_folder\" and"},
      {"/data/train", {{"format", "image_folder"}}, "data.train.path: is missing"},
      {"/data/train",
       {{"format", "records"}, {"path", "p"}, {"labels", "fine"}},
       "data.train.labels: belongs to the formats \"idx\" and \"cifar100\""},
      {"/data/train",
       {{"format", "cifar100"}, {"files", {"x"}}, {"labels", "fin"}},
       "data.train.labels: expected"},
      {"/data/max_corrupt_share", 1.5, "data.max_corrupt_share: expected a number from 0 to 1"},
      {"/data/transform/resize_shorter", 9, "resize_shorter: cannot be combined with resize"},
      {"/data/transform",
       {{"random_resized_crop", {{"size", {8, 8}}}}, {"random_crop", {8, 8}}},
       "random_crop: cannot be combined with random_resized_crop"},
      {"/data/transform",
       {{"random_resized_crop", {{"size", {8, 9}}}}, {"resize_shorter", 8}},
       "resize_shorter: expected at least 9"},
      {"/data/transform", {{"random_resized_crop", Json::object()}}, "size: is missing"},
      {"/data/transform",
       {{"random_resized_crop", {{"size", {8, 8}}, {"scale", {0.5, 0.1}}}}},
       "random_resized_crop.scale: expected [least, greatest], got"},
      {"/data/transform",
       {{"random_resized_crop", {{"size", {8, 8}}, {"ratio", {0, 1}}}}},
       "random_resized_crop.ratio[0]: expected a number from 0.001"},
      {"/data/transform/color_jitter",
       {{"hue", 0.6}},
       "color_jitter.hue: expected a number from 0"},
      {"/data/transform/lighting", -1, "lighting: expected a number from 0"},
      {"/data/transform/std", {1, 0}, "std[1]: expected a number"},
      {"/data/transform", {{"std", 1e-30}, {"scale", 1e30}}, "when divided by std"},
      {"/data/transform/resize", 28, "data.transform.resize: expected an array"},
      {"/data/transform/pad", -1, "data.transform.pad: expected"},
      {"/data/transform/random_crop", {1.0, 2}, "data.transform.random_crop[0]: expected"},
      {"/data/transform/mirror", 1, "data.transform.mirror: expected true or false"},
      {"/data/transform/mean", "0.5", "data.transform.mean: expected an array"},
      {"/data/transform/mean", {1, 1e39}, "mean[1]: expected a number from -1e+30 to 1e+30"},
      {"/data/transform/mean", -1e31, "data.transform.mean: expected a number from -1e+30"},
      {"/data/transform/mean", {1, "x"}, "data.transform.mean[1]: expected a number"},
      {"/data/transform/scale", 0, "data.transform.scale: expected a number other than 0"},
      {"/data/transform/scale", 1e-60, "data.transform.scale: expected a number other than 0"},
      {"/optimizer/type", "sdg", "did you mean \"sgd\"?"},
      {"/optimizer/learning_rate", -1, "optimizer.learning_rate: expected a number, at least 0"},
      {"/optimizer/momentum", 1, "optimizer.momentum: expected a number from 0"},
      {"/optimizer/beta1", 0.5, "optimizer.beta1: belongs to the types \"adam\""},
      {"/optimizer/type", "adam", "optimizer.momentum: belongs to the types \"sgd\" and \"lars\""},
      {"/optimizer/momentum", 0.99999999,
       "optimizer.momentum: expected a number from 0 to less than 1 (as float32), got 0.99999999"},
      {"/optimizer/learning_rate", 1e39, "a finite number (as float32), at least 0, got 1e+39"},
      {"/optimizer/trust_coefficient", 0.1, "trust_coefficient: belongs to type \"lars\""},
      {"/optimizer", Json::object({{"type", "lars"}, {"trust_coefficient", 0}}),
       "optimizer.trust_coefficient: expected a finite number (as float32) above 0"},
      {"/optimizer", Json::object({{"type", "lars"}, {"nesterov", true}}),
       "optimizer.nesterov: belongs to type \"sgd\""},
      {"/optimizer/layers", Json::array({{{"match", "*"}, {"trust_ratio", false}}}),
       "optimizer.layers[0].trust_ratio: belongs to optimizer.type \"lars\""},
      {"/optimizer/clip_norm", -1, "optimizer.clip_norm: expected"},
      {"/optimizer/clip_norm", 1e300, "optimizer.clip_norm: expected a finite number"},
      {"/optimizer/clip_norm", "1", "optimizer.clip_norm: expected"},
      {"/optimizer/schedule/type", "linear", "optimizer.schedule.type: expected one of"},
      {"/optimizer/schedule/step_iterations", 0, "optimizer.schedule.step_iterations: expected"},
      {"/optimizer/schedule/type", "multistep", "milestones_iterations: is missing"},
      {"/optimizer/schedule/type", "constant", "belongs to the types \"step\""},
      {"/optimizer/schedule/type", "cosin", "did you mean \"cosine\"?"},
      {"/optimizer/schedule/power", 2, "optimizer.schedule.power: belongs to the types"},
      {"/optimizer/schedule", Json::object({{"type", "inverse"}}), "schedule.gamma: is missing"},
      {"/optimizer/schedule", Json::object({{"type", "exponential"}, {"gamma", 2}}),
       "optimizer.schedule.gamma: expected a number from 0 to 1"},
      {"/optimizer/schedule", Json::object({{"type", "polynomial"}, {"end_iteration", 0}}),
       "optimizer.schedule.end_iteration: expected"},
      {"/optimizer/schedule", Json::object({{"type", "cosine"}, {"minimum", -1}}),
       "optimizer.schedule.minimum: expected"},
      {"/optimizer/layers", 3, "optimizer.layers: expected an array"},
      {"/optimizer/layers", Json::array({3}), "optimizer.layers[0]"},
      {"/optimizer/layers", Json::array({Json::object()}), "layers[0].match: is missing"},
      {"/optimizer/layers",
       {{{"match", "*"}}, {{"match", "*"}, {"learning_rate_multiplier", -1}}},
       "optimizer.layers[1].learning_rate_multiplier: expected a number, at least 0"},
      {"/optimizer/layers", Json::array({{{"match", "*"}, {"weight_decay_multiplier", 1e300}}}),
       "optimizer.layers[0].weight_decay_multiplier: expected a finite number"},
      {"/optimizer/layers", Json::array({{{"match", "*"}, {"decay_multiplier", 1}}}),
       "decay_multiplier: unknown key; did you mean \"weight_decay_multiplier\"?"},
      {"/micro_batches", 0, "micro_batches: expected"},
      {"/micro_batches", 3, "micro_batches: expected a divisor of batch_size 32, got 3"},
      {"/micro_batches", 64, "micro_batches: expected a divisor of batch_size 32, got 64"},
      {"/precision", "bf61", "did you mean \"bf16\"?"},
      {"/precision", "double",
       "precision: expected one of \"fp32\", \"tf32\", \"bf16\", \"fp16\", got \"double\""},
      {"/precision", 16, "precision: expected one of"},
      {"/precison", "bf16", "precison: unknown key; did you mean \"precision\"?"},
      {"/sync/scheme", "pss", "did you mean \"ps\"?"},
      {"/sync/scheme", "ring",
       "sync.scheme: expected one of \"auto\", \"ps\", \"sfb\", got \"ring\""},
      {"/sync/scheme", 3, "sync.scheme: expected one of"},
      {"/sync/scheme", Json::object(), "sync.scheme: names no layer"},
      {"/sync/scheme", Json::object({{"fc6", "sbf"}}), "sync.scheme.fc6: expected one of"},
      {"/sync/scheme", Json::object({{"fc6", nullptr}}), "sync.scheme.fc6: expected"},
      {"/sync/cost", "money", "sync.cost: expected one of \"time\", \"bytes\""},
      {"/sync/consistency", "ssp", "\"ssp\" is not in this version; use \"bsp\""},
      {"/sync/wire_dtype", "fp64", "sync.wire_dtype: expected one of \"fp32\", \"bf16\""},
      {"/sync/wire_dtype", "bfloat16", "bf16"},
      {"/sync/wire_dtype", 16, "sync.wire_dtype"},
      {"/sync/local_aggregation", true,
       "sync.local_aggregation: expected one of \"auto\", \"off\""},
      {"/sync/send_order", "fifo", "sync.send_order: expected one of \"need\", \"ready\""},
      {"/sync/chunk_bytes", 4095, "sync.chunk_bytes: expected an integer from 4096 to 67108864"},
      {"/sync/chunk_bytes", "2MiB",
       R"(sync.chunk_bytes: expected "auto" or an integer from 4096 to 67108864, got "2MiB")"},
      {"/sync/chunk_bytes", 4098, "sync.chunk_bytes: expected a multiple of 4"},
      {"/sync/chunk_bytes", 1 << 27, "sync.chunk_bytes: expected"},
      {"/sync/plan", 3, "sync.plan: expected a text"},
      {"/sync/plan", "", "sync.plan: expected a text"},
      {"/checkpoint/keep", 0, "checkpoint.keep: expected"},
      {"/checkpoint/replicas", 3, "checkpoint.replicas: expected an integer from 1 to 2"},
      {"/checkpoint/every_iterations", -1, "checkpoint.every_iterations: expected"},
      {"/membership/min_workers", 0, "membership.min_workers: expected an integer from 1"},
      {"/membership/min_workers", 65, "65 is more than membership.max_workers 64"},
      {"/membership/replace_timeout_ms", "30s", "membership.replace_timeout_ms: expected"},
  };
  for (const auto& test : cases) {
    const std::string message = error_with(test.where, test.value);
    EXPECT_THAT(message, HasSubstr(test.message)) << test.where << " = " << test.value;
    EXPECT_THAT(message, StartsWith("job file: ")) << test.where << " = " << test.value;
  }
}

// It stands in logs, metrics and on the status page.
TEST(Job, NamesAreOneLine) {
  for (const std::string& name :
       {std::string("a\nb"), std::string("\x7f"), std::string(300, 'x')}) {
    EXPECT_THAT(error_with("/name", name), HasSubstr("name: expected a text of 1 to 256 bytes"));
  }
}

TEST(Job, SchemesArePinnedForSoManyLayersAndNoMore) {
  Json schemes = Json::object();
  for (int layer = 0; layer < 8192; ++layer) schemes[std::to_string(layer)] = "ps";
  EXPECT_EQ(error_with("/sync/scheme", schemes), "");
  schemes["one more"] = "ps";
  EXPECT_EQ(error_with("/sync/scheme", schemes),
            "job file: sync.scheme: names 8193 layers, at most 8192 are allowed");
}

TEST(Job, UnknownKeysGetTheNearestName) {
  EXPECT_EQ(error_with("/optimizer/momentun", 0.9),
            "job file: optimizer.momentun: unknown key; did you mean \"momentum\"?");
  EXPECT_THAT(error_with("/batchsize", 1), HasSubstr("did you mean \"batch_size\"?"));
  EXPECT_THAT(error_with("/data/transform/mirrored", true), HasSubstr("did you mean \"mirror\"?"));
  EXPECT_THAT(error_with("/data/train/image", "x"), HasSubstr("did you mean \"images\"?"));
  EXPECT_THAT(error_with("/membership/minworkers", 1), HasSubstr("did you mean \"min_workers\"?"));
  EXPECT_THAT(error_with("/xyzzy", 1), HasSubstr("xyzzy: unknown key; known here: "));
}

TEST(Job, MissingKeysAreNamed) {
  for (const char* key : {"name", "model", "data", "batch_size", "iterations"}) {
    EXPECT_EQ(error_without("", key),
              "job file: " + std::string(key) + ": is missing; it has no default");
  }
  EXPECT_THAT(error_without("/data", "train"), HasSubstr("data.train: is missing"));
  EXPECT_THAT(error_without("/data/train", "labels"), HasSubstr("data.train.labels: is missing"));
  EXPECT_THAT(error_without("/data/test", "format"), HasSubstr("data.test.format: is missing"));
  EXPECT_THAT(error_without("/optimizer/schedule", "step_iterations"), HasSubstr("is missing"));
}

TEST(Job, RefusesWhatIsNoJobFile) {
  for (const char* text :
       {"", "[]", "null", "{", "{\"name\": \"a\", \"name\": \"b\"}", "\xff\xfe"}) {
    EXPECT_FALSE(parse_job(text).ok()) << text;
  }
  EXPECT_THAT(std::string(parse_job("{\"name\": 1,\n,}").status().message()), HasSubstr("line 2"));
}

TEST(Job, NesterovNeedsMomentum) {
  EXPECT_EQ(error_with("/optimizer", Json::object({{"nesterov", true}})),
            "job file: optimizer.nesterov: needs optimizer.momentum above 0; set it, or nesterov "
            "to false");
}

TEST(Job, LoadNamesThePath) {
  const std::string path = ::testing::TempDir() + "job_test_load.json";
  EXPECT_THAT(std::string(load_job(path + ".missing").status().message()),
              StartsWith(path + ".missing: cannot open"));
  std::ofstream(path) << "{\"iterations\": 0}";
  EXPECT_THAT(std::string(load_job(path).status().message()), StartsWith(path + ": "));
  std::ofstream(path) << example().dump();
  EXPECT_TRUE(load_job(path).ok());
  std::remove(path.c_str());
}

TEST(Job, PathsAreResolvedAgainstTheFolder) {
  Json json = example();
  json["init"] = Json::object({{"weights", "../w.safetensors"}});
  JobSpec job = *parse_job(json.dump());
  resolve_paths(job, "/jobs/a");
  EXPECT_EQ(job.init.weights, "/jobs/w.safetensors");
  EXPECT_EQ(job.data.train.images, "/jobs/a/train-images-idx3-ubyte.gz");
  EXPECT_EQ(job.data.test->labels, "/abs/t10k-labels");
  EXPECT_EQ(job.model, "lenet") << "a shipped name is no path";
  job.model = "nets/a.json";
  job.data.train.files = {"b.bin"};
  job.data.train.path = "../images/";
  resolve_paths(job, "/jobs");
  EXPECT_EQ(job.data.train.path, "/images/");
  EXPECT_EQ(job.model, "/jobs/nets/a.json");
  EXPECT_THAT(job.data.train.files, ElementsAre("/jobs/b.bin"));
  job.sync.plan = "runs/plan.json";
  resolve_paths(job, "/jobs");
  EXPECT_EQ(job.sync.plan, "/jobs/runs/plan.json");
}

}  // namespace
}  // namespace poseidon::job_test
