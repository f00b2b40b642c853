#pragma once

// The coordinator's Prometheus metrics (docs/metrics.md has them all). Pure: figures in, families
// out.
//
// Called by: common/pages/metrics_server.h, with figures that Cluster::figures() copies under its
// mutex. Calls: common/pages/metric_families.h.
//
// Series: some 80, and one per node. Node labels (role, rank, address, state) live as long as the
// node is known and are as many as nodes, 1024 at most; job names are shown one at a time.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/pages/metric_families.h"
#include "coordinator/job/job_counts.h"
#include "coordinator/job/job_run.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// How a node departed.
enum class DepartureKind : std::uint8_t { kLeft, kLost };

/// Since the coordinator started.
struct ClusterCounts {
  std::uint64_t iterations = 0;
  std::uint64_t jobs_done = 0;
  std::uint64_t jobs_failed = 0;
  std::uint64_t jobs_stopped = 0;                               ///< by request
  std::map<NodeRole, std::array<std::uint64_t, 2>> departures;  ///< by DepartureKind
  JobCounts jobs;                                               ///< of all of them
};

struct NodeInState {
  std::string role;
  std::string rank;  ///< "" for a node without a part in the job
  std::string address;
  std::string state;  ///< as in `poseidon status`
};

struct NewestCheckpoint {
  Iteration iteration = 0;
  std::int64_t bytes = 0;
  std::int64_t time_unix_s = 0;
  std::optional<double> seconds;  ///< of the slowest server; unset for earlier processes'
};

/// Figures of the current job, or of the last one.
struct JobFigures {
  std::string id;
  std::string state;
  Iteration iterations = 0;  ///< 0: not known yet
  JobProgress progress;
  Epoch epoch;
  std::optional<double> predicted_iteration_s;
  Iteration checkpoint_every = 0;
  std::size_t workers = 0;       ///< that have a part in it and are not lost
  std::uint32_t begun_with = 0;  ///< workers of its first epoch; 0: none has begun
  std::size_t checkpoints_kept = 0;
  std::int64_t copies_missing = 0;  ///< of its checkpoints, of those that it asks for
  std::optional<NewestCheckpoint> newest;
};

struct CoordinatorFigures {
  std::vector<NodeInState> nodes;
  std::optional<JobFigures> job;
  bool is_cut_off = false;
  ClusterCounts counts;
  std::map<std::string, std::uint64_t> refusals;  ///< the coordinator's own, by reason
};

/// All figures of a scrape except those of the process itself.
MetricFamilies coordinator_page(const CoordinatorFigures& figures);

/// The targets file for Prometheus' file-based discovery: every daemon that serves metrics. `own`:
/// the coordinator's address, "" when it serves none. `has_tls`: pages reachable from other
/// machines use TLS.
std::string prometheus_targets(const std::string& own, const std::vector<NodeInfo>& nodes,
                               bool has_tls);

}  // namespace poseidon
