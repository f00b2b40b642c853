// Converts the text of a job file to a checked JobSpec and back. Rules about single values are
// beside the keys; rules about several values are at the end of each object's reader.

#include "common/job/job.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "common/files/json_fields.h"
#include "common/job/declared_model.h"
#include "common/job/job_optimizer.h"
#include "common/plan/chunking.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxJobFileBytes = 4 << 20;
constexpr std::size_t kMaxJobNameBytes = 256;
constexpr std::int64_t kMaxBatchSize = 1 << 20;
constexpr std::int64_t kMinChunkBytes = 4 << 10;
constexpr const char* kAuto = "auto";
constexpr std::int64_t kMaxWorkers = 4096;
/// From this number of iterations on, a run without checkpoints gets a warning.
constexpr std::int64_t kLongRunIterations = 1000;
constexpr std::int64_t kMaxTimeoutMs = 24 * 60 * 60 * 1000;
constexpr std::int64_t kMaxKeptCheckpoints = 10'000;
constexpr std::size_t kMaxLayerNames = 8192;  ///< twice the layers of the largest network

absl::Status parse_init(const Json& json, std::string_view source, InitSpec& spec) {
  JsonFields fields(json, source, "init");
  fields.unsigned_integer("seed", &spec.seed);
  fields.string("weights", &spec.weights);
  const Json* rename = fields.value("rename");
  if (rename == nullptr) return fields.finish();
  if (spec.weights.empty()) fields.refuse("rename", "is about init.weights, which is missing");
  if (!rename->is_object() || rename->size() > kMaxLayerNames) {
    fields.refuse("rename",
                  str_cat("expected an object {layer in the file: layer of the network} of "
                          "at most ",
                          kMaxLayerNames, ", got ", json_excerpt(*rename)));
    return fields.finish();
  }
  JsonFields renames(*rename, source, "init.rename");
  for (const auto& entry : rename->items()) {
    renames.string(entry.key(), &spec.rename[entry.key()]);
  }
  fields.add(renames.finish());
  return fields.finish();
}

/// Names of later versions: people will have read of them, so say that it is not a typing error.
void refuse_later(JsonFields& fields, std::string_view key, const std::vector<std::string>& later,
                  std::string_view instead) {
  const Json* value = fields.value(key);
  if (value == nullptr || !value->is_string()) return;
  for (const std::string& name : later) {
    if (*value == name) {
      fields.refuse(key, str_cat("\"", name, "\" is not in this version; ", instead));
    }
  }
}

/// One scheme for the whole network, or an object that pins some layers and leaves the others auto.
void parse_scheme(JsonFields& fields, std::string_view source, SyncSpec& spec) {
  const std::vector<std::string> schemes = {"auto", "ps", "sfb"};
  const Json* value = fields.value("scheme");
  if (value == nullptr || !value->is_object()) {
    fields.one_of("scheme", &spec.scheme, schemes);
    return;
  }
  if (value->empty()) {
    fields.refuse("scheme", "names no layer; write {\"<layer>\": \"ps\" or \"sfb\"}, or \"auto\"");
  }
  if (value->size() > kMaxLayerNames) {
    fields.refuse("scheme", str_cat("names ", value->size(), " layers, at most ", kMaxLayerNames,
                                    " are allowed"));
    return;
  }
  JsonFields layers(*value, source, fields.path_of("scheme"));
  for (const auto& [layer, ignored] : value->items()) {
    layers.one_of(layer, &spec.layer_schemes[layer], schemes);
  }
  fields.add(layers.finish());
}

Json scheme_to_json(const SyncSpec& sync) {
  if (sync.layer_schemes.empty()) return sync.scheme;
  return sync.layer_schemes;
}

void parse_name(JsonFields& fields, std::string& name) {
  const Json* value = fields.value("name");
  if (value == nullptr) return;
  if (value->is_string()) name = value->get<std::string>();
  if (name.empty() || name.size() > kMaxJobNameBytes || std::ranges::any_of(name, is_control)) {
    fields.refuse("name", str_cat("expected a text of 1 to ", kMaxJobNameBytes,
                                  " bytes without control characters, got ", json_excerpt(*value)));
  }
}

void parse_chunk_bytes(JsonFields& fields, SyncSpec& spec) {
  const Json* value = fields.value("chunk_bytes");
  if (value == nullptr || *value == kAuto) return;
  if (!value->is_number()) {
    fields.refuse("chunk_bytes",
                  str_cat("expected \"", kAuto, "\" or an integer from ", kMinChunkBytes, " to ",
                          kMaxChunkBytes, ", got ", json_excerpt(*value)));
  }
  std::int64_t bytes = kDefaultChunkBytes;
  fields.integer("chunk_bytes", &bytes, kMinChunkBytes, kMaxChunkBytes);
  if (bytes % 4 != 0) {
    fields.refuse("chunk_bytes",
                  str_cat("expected a multiple of 4 (the bytes of a float32), got ", bytes));
  }
  spec.chunk_bytes = bytes;
}

/// The path of a plan.json or, in a submitted job, its contents.
void parse_pinned_plan(JsonFields& fields, SyncSpec& spec) {
  const Json* value = fields.value("plan");
  if (value == nullptr) return;
  if (value->is_object()) {
    spec.plan = *value;
  } else {
    std::string path;
    fields.string("plan", &path);
    spec.plan = path;
  }
  if (spec.scheme != "auto" || !spec.layer_schemes.empty()) {
    fields.refuse("plan", "cannot be combined with sync.scheme: schemes come from one of them");
  }
}

Json sync_to_json(const SyncSpec& sync) {
  Json json = {{"scheme", scheme_to_json(sync)},
               {"cost", sync.cost},
               {"consistency", sync.consistency},
               {"chunk_bytes", sync.chunk_bytes ? Json(*sync.chunk_bytes) : Json(kAuto)},
               {"wire_dtype", wire_dtype_name(sync.wire_dtype)},
               {"send_order", send_order_name(sync.send_order)},
               {"local_aggregation", sync.local_aggregation ? "auto" : "off"},
               {"replan", sync.replan}};
  if (!sync.plan.is_null()) json["plan"] = sync.plan;
  return json;
}

absl::Status parse_sync(const Json& json, std::string_view source, SyncSpec& spec) {
  JsonFields fields(json, source, "sync");
  parse_scheme(fields, source, spec);
  fields.one_of("cost", &spec.cost, {"time", "bytes"});
  refuse_later(fields, "consistency", {"ssp", "asp", "async", "bounded"}, "use \"bsp\"");
  fields.one_of("consistency", &spec.consistency, {"bsp"});
  std::string wire_dtype(wire_dtype_name(spec.wire_dtype));
  fields.one_of("wire_dtype", &wire_dtype, {"fp32", "bf16", "fp16"});
  spec.wire_dtype = wire_dtype_from_name(wire_dtype).value_or(spec.wire_dtype);
  std::string send_order(send_order_name(spec.send_order));
  fields.one_of("send_order", &send_order, {"need", "ready"});
  spec.send_order = send_order_from_name(send_order).value_or(spec.send_order);
  std::string local_aggregation = spec.local_aggregation ? "auto" : "off";
  fields.one_of("local_aggregation", &local_aggregation, {"auto", "off"});
  spec.local_aggregation = local_aggregation == "auto";
  fields.boolean("replan", &spec.replan);
  parse_chunk_bytes(fields, spec);
  parse_pinned_plan(fields, spec);
  return fields.finish();
}

absl::Status parse_checkpoint(const Json& json, std::string_view source, CheckpointSpec& spec) {
  JsonFields fields(json, source, "checkpoint");
  fields.integer("every_iterations", &spec.every_iterations, 0, kMaxIterations);
  fields.integer("keep", &spec.keep, 1, kMaxKeptCheckpoints);
  fields.integer("replicas", &spec.replicas, 1, 2);
  return fields.finish();
}

absl::Status parse_membership(const Json& json, std::string_view source, MembershipSpec& spec) {
  JsonFields fields(json, source, "membership");
  fields.integer("min_workers", &spec.min_workers, 1, kMaxWorkers);
  fields.integer("max_workers", &spec.max_workers, 1, kMaxWorkers);
  fields.integer("replace_timeout_ms", &spec.replace_timeout_ms, 0, kMaxTimeoutMs);
  std::string batch = "per_worker";
  fields.one_of("batch", &batch, {"per_worker", "global"});
  spec.keeps_global_batch = batch == "global";
  if (spec.min_workers > spec.max_workers) {
    fields.refuse("min_workers", str_cat(spec.min_workers, " is more than membership.max_workers ",
                                         spec.max_workers, "; lower one or raise the other"));
  }
  return fields.finish();
}

void parse_model(JsonFields& fields, Json& model) {
  fields.require("model");
  const Json* value = fields.value("model");
  if (value == nullptr) return;
  if (value->is_object() && !value->empty()) {
    model = *value;
  } else if (value->is_string()) {
    std::string name;
    fields.string("model", &name);
    model = name;
  } else {
    fields.refuse("model", str_cat("expected the name of a shipped network, the path of a network "
                                   "file or an inline network {...}, got ",
                                   json_excerpt(*value)));
  }
}

/// What the program of a declared model does by itself.
void parse_declared(JsonFields& fields, JobSpec& job) {
  for (const char* key : {"data", "init", "micro_batches", "precision", "test_every_iterations"}) {
    if (fields.value(key) != nullptr) {
      fields.refuse(key,
                    "belongs to a network that workers compute; the program that declares this "
                    "model does so by itself: remove it");
    }
  }
  job.batch_size = 1;
  job.iterations = kMaxIterations;
}

void check_second_copies(JsonFields& fields, const JobSpec& job) {
  const std::int64_t most = most_chunk_bytes(job, kMaxChunkBytes);
  if (job.sync.largest_chunk_bytes() <= most) return;
  fields.refuse("sync.chunk_bytes", str_cat("expected at most ", most, " with checkpoint.replicas ",
                                            job.checkpoint.replicas, " and this optimizer, got ",
                                            job.sync.largest_chunk_bytes()));
}

absl::StatusOr<JobSpec> parse_named_job(std::string_view text, std::string_view source) {
  POSEIDON_ASSIGN_OR_RETURN(const Json json,
                            parse_json(text, source, {.max_bytes = kMaxJobFileBytes}));
  JobSpec job;
  JsonFields fields(json, source, "");
  fields.require("name");
  parse_name(fields, job.name);
  parse_model(fields, job.model);
  const bool is_declared = is_declared_model(job.model);
  if (is_declared) {
    parse_declared(fields, job);
  } else {
    for (const char* key : {"data", "batch_size", "iterations"}) fields.require(key);
  }
  fields.integer("batch_size", &job.batch_size, 1, kMaxBatchSize);
  fields.integer("micro_batches", &job.micro_batches, 1, kMaxBatchSize);
  if (fields.ok() && job.batch_size % job.micro_batches != 0) {
    fields.refuse("micro_batches",
                  str_cat("expected a divisor of batch_size ", job.batch_size, ", got ",
                          job.micro_batches, ": all parts are of one size"));
  }
  fields.one_of("precision", &job.precision, {"fp32", "tf32", "bf16", "fp16"});
  fields.integer("iterations", &job.iterations, 1, kMaxIterations);
  fields.integer("test_every_iterations", &job.test_every_iterations, 0, kMaxIterations);
  const auto section = [&](std::string_view key, auto parse, auto& spec) {
    if (const Json* value = fields.value(key)) fields.add(parse(*value, source, spec));
  };
  section("init", parse_init, job.init);
  section("data", parse_data_spec, job.data);
  section(
      "optimizer",
      [&job](const Json& value, std::string_view from, OptimizerSpec& spec) {
        return parse_optimizer(value, from, job.iterations, spec);
      },
      job.optimizer);
  if (!is_declared && job.optimizer.rates_by_program) {
    fields.refuse("optimizer.rates",
                  "\"program\" is for a declared model, whose program gives them: remove it");
  }
  if (!is_declared && job.optimizer.type == OptimizerType::kSum) {
    fields.refuse("optimizer.type",
                  "\"sum\" is for programs that step parameters by themselves "
                  "(a declared model); workers need \"sgd\", \"adam\", \"adamw\" or \"lars\"");
  }
  section("sync", parse_sync, job.sync);
  section("checkpoint", parse_checkpoint, job.checkpoint);
  if (job.optimizer.type == OptimizerType::kSum && job.checkpoint.every_iterations > 0) {
    fields.refuse("checkpoint.every_iterations",
                  "with optimizer.type \"sum\" the servers do not have what a checkpoint needs; "
                  "remove it");
  }
  section("membership", parse_membership, job.membership);
  if (fields.ok()) check_second_copies(fields, job);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return job;
}

}  // namespace

absl::Status check_servers_have_parameters(const JobSpec& job) {
  if (job.optimizer.type != OptimizerType::kSum) return absl::OkStatus();
  return absl::FailedPreconditionError(
      str_cat("the programs of job ", job.name,
              " step its parameters by themselves "
              "(optimizer.type \"sum\"): its checkpoints do not have these"));
}

bool ends_with_program(const JobSpec& job) {
  return is_declared_model(job.model) && job.iterations == kMaxIterations;
}

absl::StatusOr<JobSpec> parse_job(std::string_view json_text) {
  return parse_named_job(json_text, "job file");
}

absl::StatusOr<JobSpec> load_job(const std::filesystem::path& path) {
  POSEIDON_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxJobFileBytes));
  return parse_named_job(text, path.string());
}

void resolve_paths(JobSpec& job, const std::filesystem::path& folder) {
  // A shipped network's name has neither a slash nor an ending.
  if (const std::string* model = job.model.get_ptr<const std::string*>()) {
    if (model->find('/') != std::string::npos || model->ends_with(".json")) {
      std::string path = *model;
      resolve_path(path, folder);
      job.model = path;
    }
  }
  resolve_path(job.init.weights, folder);
  resolve_paths(job.data, folder);
  if (job.sync.plan.is_string()) {
    std::string path = job.sync.plan.get<std::string>();
    resolve_path(path, folder);
    job.sync.plan = path;
  }
}

std::vector<std::string> job_warnings(const JobSpec& job) {
  std::vector<std::string> warnings;
  const std::int64_t every = job.checkpoint.every_iterations;
  if ((every == 0 || every >= job.iterations) && job.iterations >= kLongRunIterations) {
    const std::string all = is_declared_model(job.model) ? "all" : str_cat("the ", job.iterations);
    warnings.push_back(str_cat("checkpoint.every_iterations is ", every,
                               ": should a server be lost, ", all,
                               " iterations begin again from the first"));
  }
  if (job.optimizer.schedule.warmup_iterations > job.iterations) {
    warnings.push_back(str_cat(
        "optimizer.schedule.warmup_iterations is ", job.optimizer.schedule.warmup_iterations,
        ", but the job ends after ", job.iterations, ": it never reaches its learning rate"));
  }
  if (job.test_every_iterations > 0 && !job.data.test) {
    warnings.push_back(str_cat("test_every_iterations is ", job.test_every_iterations,
                               ", but there is no data.test: nothing is tested"));
  }
  return warnings;
}

std::string job_to_json(const JobSpec& job) {
  Json init = {{"seed", job.init.seed}};
  if (!job.init.weights.empty()) init["weights"] = job.init.weights;
  if (!job.init.rename.empty()) init["rename"] = job.init.rename;
  Json json = {{"name", job.name},
               {"model", job.model},
               {"batch_size", job.batch_size},
               {"iterations", job.iterations},
               {"optimizer", optimizer_to_json(job.optimizer)},
               {"sync", sync_to_json(job.sync)},
               {"checkpoint",
                {{"every_iterations", job.checkpoint.every_iterations},
                 {"keep", job.checkpoint.keep},
                 {"replicas", job.checkpoint.replicas}}},
               {"membership",
                {{"min_workers", job.membership.min_workers},
                 {"max_workers", job.membership.max_workers},
                 {"replace_timeout_ms", job.membership.replace_timeout_ms},
                 {"batch", job.membership.keeps_global_batch ? "global" : "per_worker"}}}};
  if (!is_declared_model(job.model)) {
    json.update({{"init", std::move(init)},
                 {"data", data_spec_to_json(job.data)},
                 {"micro_batches", job.micro_batches},
                 {"precision", job.precision},
                 {"test_every_iterations", job.test_every_iterations}});
  }
  // File names need not be UTF-8; a message with a replaced letter beats an exception.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace poseidon
