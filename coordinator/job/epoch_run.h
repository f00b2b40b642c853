#pragma once

// What lives as long as one epoch trains by one plan. Pure.
//
// Called by: job_run.h builds it when the epoch's plan is made, and builds another one in
// its place for the next epoch. Nothing of it has to be reset by hand.
// Calls: reports.h combines what the workers report.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "coordinator/job/participant.h"
#include "coordinator/job/reports.h"
#include "coordinator/planning/calibrate.h"

namespace poseidon {

/// One thread only. While the nodes of the next epoch are chosen and measured, the one of the epoch
/// before stays: its reports say which checkpoints may be gone on from.
struct EpochRun {
  /// `completed`: iterations of which the metrics are complete. `test_from`: tests before it are
  /// told.
  EpochRun(std::shared_ptr<const Plan> the_plan, std::uint32_t workers, Iteration completed,
           Iteration test_from)
      : plan(std::move(the_plan)), iterations(workers, completed), tests(workers, test_from) {}

  /// Who had to take part in an iteration, that the next one could begin: all workers, and the
  /// servers that have layers.
  std::vector<NodeId> needed_to_advance(const std::vector<Participant>& workers,
                                        const std::vector<Participant>& servers) const {
    std::vector<NodeId> nodes;
    for (const Participant& worker : workers) nodes.push_back(worker.node.id);
    std::vector<bool> has_layers(servers.size(), false);
    for (const PlanChunk& chunk : plan->chunks) has_layers[chunk.server.value()] = true;
    for (const Participant& server : servers) {
      if (has_layers[server.index]) nodes.push_back(server.node.id);
    }
    return nodes;
  }

  std::shared_ptr<const Plan> plan;  ///< never null
  IterationCombiner iterations;
  TestCombiner tests;
  ReplanState replan;          ///< what the comparison with other plans remembers
  std::string recommendation;  ///< what another plan would gain, for people; "": none would
};

}  // namespace poseidon
