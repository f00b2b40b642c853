#pragma once

// Whose gradients are summed on their machine before they travel (local aggregation). Pure.
// Before: addresses say who shares a machine. After: coordinator/planning/planner.h writes it into
// the plan.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace poseidon {

/// By rank: the leader of its group, the lowest rank on its machine (as in Plan::leaders). Workers
/// are grouped where at least two share a machine, unless everybody is on that one and nothing
/// crosses a link. (Beside all servers groups save nothing either, but then the last bits would
/// depend on where servers are.) Empty: no such machine.
std::vector<WorkerRank> group_by_machine(const std::vector<std::string>& worker_addresses,
                                         const std::vector<std::string>& server_addresses);

/// In which order these workers should get their ranks, as positions in the list: together who
/// shares a machine, the machines with most workers first, otherwise as they stand. So which ranks
/// make a group, and with it the last bits of a run, depends on how many workers each machine has
/// and not on who came first. Nothing changes where no machine has two workers.
std::vector<std::size_t> rank_order(const std::vector<std::string>& worker_addresses);

/// Likewise where the groups are given, of as many workers: as many as can be of each group on one
/// machine, larger groups first.
std::vector<std::size_t> rank_order_for(const std::vector<WorkerRank>& leaders,
                                        const std::vector<std::string>& worker_addresses);

/// How many give gradients to the servers themselves. `leaders` as in Plan.
std::uint32_t count_contributors(const std::vector<WorkerRank>& leaders, std::size_t workers);

/// "workers 0, 1 and workers 2, 3"; empty without groups.
std::string groups_text(const std::vector<WorkerRank>& leaders);

}  // namespace poseidon
