#pragma once

// The reference for a cluster's run: the values of each epoch, computed by one process from the
// job's history (where the epoch began, its workers and its schemes).
//
// Called by: sim_worker.cc and protocol_checks.cc. Calls: scenario.h, which computes.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/job/job.h"
#include "common/plan/plan.h"
#include "common/wire/snapshot.h"
#include "tests/sim/scenario.h"

namespace poseidon::sim {

/// As the nodes of an epoch see training.
Scenario scenario_of(const Plan& plan, const JobSpec& job);

/// Loss of one worker's batch, for the parameters that it read. Any function will do.
double loss_of(std::uint32_t rank, Iteration iteration,
               const std::vector<std::vector<float>>& read);
/// Likewise of its share of a test.
double test_loss_of(std::uint32_t rank, const std::vector<std::vector<float>>& read);
/// What worker 0's forward of an iteration makes of the running statistics.
void update_statistics(Iteration iteration, float read, std::vector<float>& statistics);

/// The file that worker 0 uploads: the values of each parameter layer, and the running statistics.
std::string encode_model(const JobSpec& job, std::span<const std::span<const float>> layers,
                         std::span<const float> statistics);

/// An epoch's training, from where it began. Versions are computed when they are asked for.
class Course {
 public:
  /// `before`: whose state after `first` iterations it goes on from; null: the beginning.
  Course(Scenario scenario, Iteration first, std::shared_ptr<const Course> before,
         std::size_t statistics);

  struct Version {
    NetworkState state;
    std::vector<std::vector<float>> read;
    std::vector<float> statistics;
    std::uint64_t samples = 0;  ///< that all workers have taken
  };
  const Version& at(Iteration version) const;
  /// Of the iteration, as metrics.jsonl has it.
  double loss(Iteration iteration) const;
  double test_loss(Iteration version) const;

  const Scenario& scenario() const { return scenario_; }
  Iteration first() const { return first_; }
  const std::shared_ptr<const Course>& before() const { return before_; }

 private:
  const Scenario scenario_;
  const Iteration first_;
  const std::shared_ptr<const Course> before_;
  mutable std::deque<Version> versions_;  ///< from first_ on
};

/// All epochs of a run, and the first thing that went wrong.
class Truth {
 public:
  /// A node has learned of its part in an epoch, maybe long after it was sent: all nodes must be
  /// told the same about it.
  std::shared_ptr<const Course> begin(const Plan& plan, const JobSpec& job,
                                      std::optional<SnapshotId> restore, std::uint64_t samples,
                                      std::size_t statistics);
  /// A coordinator, whichever, assigns a part in it. Epochs only grow.
  void on_assign(Epoch epoch);
  std::shared_ptr<const Course> of(Epoch epoch) const;
  /// The newest epoch that a node was assigned to.
  std::shared_ptr<const Course> newest() const;
  /// Of the newest: no server is one that training could do without.
  bool every_server_is_needed() const;
  std::size_t epochs() const { return epochs_.size(); }

  void fail(const std::string& what) {
    if (!failure_) failure_ = what;
  }
  const std::optional<std::string>& failure() const { return failure_; }

 private:
  struct Known {
    std::shared_ptr<const Course> course;
    std::string plan;
    std::optional<SnapshotId> restore;
    bool every_server_is_needed = false;
  };
  std::map<Epoch, Known> epochs_;
  Epoch newest_assigned_;
  std::optional<std::string> failure_;
};

}  // namespace poseidon::sim
