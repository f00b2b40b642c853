#pragma once

// The job file: what to train. Checked as far as the text alone allows.
//
// Called by: coordinator/planning/jobs/job_resolver.h, which reads network and data;
// coordinator/planning/planner.h; every node, which receives the text and parses it again. Calls:
// common/files/json_fields.h.
//
// Pure except load_job. Errors are for people (INVALID_ARGUMENT; load_job also returns the file's
// errors) and name the key's path, the value and the remedy.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/job/data_spec.h"
#include "common/plan/chunk_queue.h"
#include "common/plan/chunking.h"
#include "common/tensor/element_type.h"
#include "common/tensor/optimizer.h"
#include "nlohmann/json.hpp"

namespace poseidon {

struct InitSpec {
  std::uint64_t seed = 1;  ///< of the initial values and of dropout
  /// Path of a safetensors file whose tensors replace the initial values; empty: none.
  std::string weights;
  /// Layer names in that file -> layer names of the network, where they differ.
  std::map<std::string, std::string> rename;
};

inline constexpr std::int64_t kDefaultChunkBytes = 2 << 20;

struct SyncSpec {
  std::string scheme = "auto";  ///< "auto", "ps" or "sfb"; "auto" for what layer_schemes leaves out
  /// Layer name -> "auto", "ps" or "sfb": sync.scheme written as an object. Whether the names fit
  /// the network is checked where it is known (coordinator/planning/planner.h). Empty when the
  /// scheme was a string.
  std::map<std::string, std::string> layer_schemes;
  std::string cost = "time";  ///< "time" or "bytes": how "auto" chooses
  /// Whether the plan changes during training when measured times stay far from the assumed ones
  /// (coordinator/planning/calibrate.h). Never when the plan is given.
  bool replan = true;
  /// An earlier plan to repeat (common/plan/plan_pin.h): its path (string) until the command line
  /// tool puts the plan itself (object) in its place. null: plan anew.
  nlohmann::json plan;
  std::string consistency = "bsp";  ///< "bsp"
  /// How large a chunk may be: 4 KiB .. 64 MiB, a multiple of 4; in fp32, always. Unset ("auto"):
  /// 2 MiB, or less where the planner predicts a shorter iteration for it.
  std::optional<std::int64_t> chunk_bytes;
  std::int64_t largest_chunk_bytes() const { return chunk_bytes.value_or(kDefaultChunkBytes); }
  /// "fp32", "bf16" or "fp16": how gradients and parameters travel; sums and masters are fp32.
  ElementType wire_dtype = ElementType::kFloat32;
  /// Whether workers of one machine sum their gradients there and send the sum, where that saves
  /// anything (planner.h); "auto" or "off".
  bool local_aggregation = true;
  /// "need" or "ready": the order of messages on a stream. Changes no bit of the result.
  SendOrder send_order = SendOrder::kNeed;
};

struct CheckpointSpec {
  std::int64_t every_iterations = 0;  ///< 0: never
  std::int64_t keep = 3;              ///< number of the newest committed checkpoints to keep
  std::int64_t replicas = 1;          ///< servers that keep each piece
};

struct MembershipSpec {
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 64;
  std::int64_t replace_timeout_ms = 30000;
  /// Which batch stays constant when the number of workers changes: the global one (true) or each
  /// worker's (false) (coordinator/planning/jobs/elastic_job.h has the rule of the learning rate).
  bool keeps_global_batch = false;
};

/// One job file, checked. Values that need the data or the network (label range,
/// batch against data size, shapes) are checked where those are known.
struct JobSpec {
  std::string name;  ///< up to 256 bytes without control characters
  /// A shipped name or path (string), an inline network (object), or a declared model
  /// (declared_model.h).
  nlohmann::json model;
  InitSpec init;
  DataSpec data;
  /// Per worker; of a declared model what the program says, for rates alone.
  std::int64_t batch_size = 0;
  /// The batch is processed in this many equal parts, whose gradients are accumulated. Must divide
  /// batch_size.
  std::int64_t micro_batches = 1;
  /// "fp32", "tf32", "bf16" or "fp16": what products and convolutions of the engine round their
  /// factors to; with the latter two, images and their gradients between layers too. It does not
  /// affect parameters, sums of gradients, optimizer and wire.
  std::string precision = "fp32";
  std::int64_t iterations = 0;  ///< of a declared model kMaxIterations: until its program ends
  OptimizerSpec optimizer;
  SyncSpec sync;
  CheckpointSpec checkpoint;
  MembershipSpec membership;
  std::int64_t test_every_iterations = 0;  ///< 0: only at the end (when there is test data)
};

/// Parses and checks. Errors name the key by its path ("optimizer.momentum"), the value and the
/// remedy; an unknown key is refused with the nearest known name. Pure.
absl::StatusOr<JobSpec> parse_job(std::string_view json_text);

/// Whether the job has no number of iterations: programs train it, and know when they end.
bool ends_with_program(const JobSpec& job);
/// FAILED_PRECONDITION where programs step by themselves: no checkpoint has their model.
absl::Status check_servers_have_parameters(const JobSpec& job);

/// Reads and parses; the message of every error starts with the path.
absl::StatusOr<JobSpec> load_job(const std::filesystem::path& path);

/// Makes every relative path in the job absolute against `folder`. Pure.
void resolve_paths(JobSpec& job, const std::filesystem::path& folder);

/// Warnings about settings that may be mistakes, as whole sentences that name the key; the job runs
/// anyway. Empty for most jobs. Pure.
std::vector<std::string> job_warnings(const JobSpec& job);

/// The inverse of parse_job: parse_job(job_to_json(job)) gives the same job.
std::string job_to_json(const JobSpec& job);

/// In bytes of parameters. `largest`: what a message holds.
inline std::int64_t most_chunk_bytes(const JobSpec& job, std::int64_t largest) {
  if (job.checkpoint.replicas == 1) return largest;
  const std::int64_t slots = 1 + optimizer_state_slots(job.optimizer);
  return largest / slots / kElementBytes * kElementBytes;
}

}  // namespace poseidon
