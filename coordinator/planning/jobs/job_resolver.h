#pragma once

// Extracts from the text of a job file what the coordinator needs. It is passed as a function, so
// that the cluster depends neither on the job format nor on the engine.
//
// Called by: coordinator/cluster; main() passes the real function, tests their own. Calls:
// common/job/job.h, models/net/model_layout.h.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/files/safetensors.h"
#include "common/job/job.h"
#include "coordinator/planning/jobs/elastic_job.h"
#include "coordinator/planning/planner.h"
#include "models/net/model_layout.h"

namespace poseidon {

struct ResolvedJob {
  std::string name;
  std::string weights;  ///< init.weights; "" for none
  /// Equal for jobs that are planned alike on like machines, 64 hexadecimal digits: a digest of
  /// network, optimizer, batch, arithmetic and sync. "": no plans are kept.
  std::string plans_key;
  std::int64_t batch_size = 0;  ///< per worker
  Iteration iterations = 0;
  bool is_declared = false;         ///< programs outside train it
  bool programs_step = false;       ///< servers only sum gradients
  bool ends_with_programs = false;  ///< `iterations` is a bound, and the programs know the end
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 64;
  std::int64_t replace_timeout_ms = 30000;
  std::int64_t keep_checkpoints = 3;
  std::int64_t replicas = 1;
  Iteration checkpoint_every = 0;       ///< checkpoint.every_iterations
  std::optional<Iteration> test_every;  ///< as in JobDescription
  std::vector<std::string> warnings;    ///< for the log, once the job is accepted
  SyncSpec sync;
  NormScope norm_scope = NormScope::kNone;
  std::vector<PlannerLayer> layers;                ///< parameter layers, forward order
  std::function<double(Iteration)> learning_rate;  ///< pure
  /// Pure; INVALID_ARGUMENT unless a file with this header is a model of the job's network. Null:
  /// any safetensors file will do.
  std::function<absl::Status(const SafetensorsHeader&)> check_model;
  /// Pure; see coordinator/planning/jobs/elastic_job.h. Null: the number of workers cannot change.
  std::function<absl::StatusOr<ElasticJob>(std::uint32_t begun_with, std::uint32_t workers)>
      with_workers;
};

/// INVALID_ARGUMENT when the job is invalid; the message names the key. Any thread.
using JobResolver = std::function<absl::StatusOr<ResolvedJob>(const std::string& job_json)>;

/// The data of a model that planning needs.
std::vector<PlannerLayer> planner_layers(const ModelLayout& layout);

/// INVALID_ARGUMENT where sync.plan (its content, not a path) has larger chunks than
/// checkpoint.replicas allows, or would have them cut.
absl::Status check_pinned_chunks(const JobSpec& job);

/// The real resolver: common/job/job.h and models/net/net.h.
absl::StatusOr<ResolvedJob> resolve_job(const std::string& job_json);

}  // namespace poseidon
