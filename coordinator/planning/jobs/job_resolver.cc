#include "coordinator/planning/jobs/job_resolver.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/sha256.h"
#include "common/job/declared_model.h"
#include "common/job/job.h"
#include "common/plan/chunking.h"
#include "common/plan/plan_pin.h"
#include "coordinator/planning/tensor_rules.h"
#include "models/net/batch_norm_errors.h"
#include "models/net/model_tensors.h"

namespace poseidon {

std::vector<PlannerLayer> planner_layers(const ModelLayout& layout) {
  std::vector<PlannerLayer> layers;
  for (const LayoutLayer& layer : layout.layers) {
    layers.push_back({.name = layer.name,
                      .type = layer.type,
                      .shape = layer.tensors.front().shape,
                      .parameters = layer.parameter_count(),
                      .is_fully_connected = layer.is_linear,
                      .tensors = {},
                      .multiply_adds = layer.multiply_adds});
    for (const LayoutTensor& tensor : layer.tensors) {
      layers.back().tensors.push_back(
          {.name = tensor.name, .elements = element_count(tensor.shape), .multipliers = {}});
    }
  }
  return layers;
}

absl::Status check_pinned_chunks(const JobSpec& job) {
  if (job.sync.plan.is_null()) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(const PlanPin pin, plan_pin_from_json(job.sync.plan, "sync.plan"));
  std::int64_t largest = job.sync.chunk_bytes ? 0 : pin.chunk_bytes;
  for (const PlanChunk& chunk : pin.chunks) {
    largest = std::max(largest, chunk.elements * std::int64_t{kElementBytes});
  }
  const std::int64_t most = most_chunk_bytes(job, kMaxChunkBytes);
  if (largest <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "sync.plan: expected chunks of at most ", most, " bytes with checkpoint.replicas ",
      job.checkpoint.replicas, " and this optimizer, got ", largest,
      "; plan again with a smaller sync.chunk_bytes, or remove \"chunks\" and \"chunk_bytes\" from "
      "the plan to use only its schemes"));
}

namespace {

/// Of a job that has been parsed. Other spellings of one job may have other keys, which costs only
/// what is kept of them.
std::string plans_key(const std::string& job_json) {
  const nlohmann::json job = nlohmann::json::parse(job_json);
  nlohmann::json planned = nlohmann::json::object();
  for (const char* key :
       {"model", "optimizer", "batch_size", "micro_batches", "precision", "sync"}) {
    if (job.contains(key)) planned[key] = job[key];
  }
  return absl::BytesToHexString(sha256(planned.dump()));
}

/// A worker's share of the batch may have become too small.
absl::Status check_share(const JobSpec& job, std::int64_t batch_size) {
  if (is_declared_model(job.model)) return absl::OkStatus();
  POSEIDON_ASSIGN_OR_RETURN(const NetSpec net, resolve_network(job.model, "/"));
  return check_batch_norms(net, batch_size / job.micro_batches);
}

}  // namespace

absl::StatusOr<ResolvedJob> resolve_job(const std::string& job_json) {
  POSEIDON_ASSIGN_OR_RETURN(const JobSpec job, parse_job(job_json));
  // Submitted jobs carry their network inline and their paths absolute; the folder stays unused.
  const absl::StatusOr<ModelLayout> layout = resolve_layout(job.model, "/");
  if (!layout.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", layout.status().message()));
  }
  std::vector<PlannerLayer> layers = planner_layers(*layout);
  POSEIDON_RETURN_IF_ERROR(check_sync(layers, job.sync));
  POSEIDON_RETURN_IF_ERROR(check_pinned_chunks(job));
  POSEIDON_RETURN_IF_ERROR(apply_tensor_rules(job.optimizer.layers, layers));
  return ResolvedJob{
      .name = job.name,
      .weights = job.init.weights,
      .plans_key = plans_key(job_json),
      .batch_size = job.batch_size,
      .iterations = job.iterations,
      .is_declared = is_declared_model(job.model),
      .programs_step = job.optimizer.type == OptimizerType::kSum,
      .ends_with_programs = ends_with_program(job),
      .min_workers = job.membership.min_workers,
      .max_workers = job.membership.max_workers,
      .replace_timeout_ms = job.membership.replace_timeout_ms,
      .keep_checkpoints = job.checkpoint.keep,
      .replicas = job.checkpoint.replicas,
      .checkpoint_every = job.checkpoint.every_iterations,
      .test_every = job.data.test ? std::optional(job.test_every_iterations) : std::nullopt,
      .warnings = job_warnings(job),
      .sync = job.sync,
      .norm_scope = norm_scope(job.optimizer),
      .layers = std::move(layers),
      .learning_rate =
          [optimizer = job.optimizer](Iteration iteration) {
            const bool are_the_programs =
                optimizer.rates_by_program || optimizer.type == OptimizerType::kSum;
            return are_the_programs ? std::nan("") : learning_rate_at(optimizer, iteration);
          },
      .check_model =
          [tensors = model_tensors(*layout)](const SafetensorsHeader& file) {
            return check_model_tensors(file, tensors);
          },
      .with_workers = [job_json, job](std::uint32_t begun_with,
                                      std::uint32_t workers) -> absl::StatusOr<ElasticJob> {
        POSEIDON_ASSIGN_OR_RETURN(ElasticJob elastic,
                                  job_with_workers(job_json, begun_with, workers));
        if (elastic.batch_size == job.batch_size) return elastic;  // as the job file has it
        POSEIDON_RETURN_IF_ERROR(check_share(job, elastic.batch_size));
        return elastic;
      }};
}

}  // namespace poseidon
