#include "coordinator/planning/node_counts.h"

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint.h"

namespace poseidon {

absl::Status check_node_counts(const NodeLimits& limits, std::int64_t workers,
                               std::int64_t servers) {
  if (workers > 0 && (workers < limits.min_workers || workers > limits.max_workers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        workers, " workers are asked for, but the job allows ", limits.min_workers, " to ",
        limits.max_workers, " (membership.min_workers, membership.max_workers)"));
  }
  if (servers == 0) return absl::OkStatus();
  return check_replicas(limits.replicas, static_cast<std::size_t>(servers));
}

}  // namespace poseidon
