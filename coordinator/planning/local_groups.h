#pragma once

// Groups the workers whose gradients are summed on their machine before they are sent (local
// aggregation). Pure.
//
// Called by: coordinator/planning/planner.h, with addresses that show which workers share a
// machine; it writes the groups into the plan. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace poseidon {

/// By rank: the leader of its group, the lowest rank on its machine (as in Plan::leaders). Workers
/// are grouped where at least two share a machine, unless all workers are on that machine and
/// nothing crosses a link. (Beside all servers groups save nothing either, but then the last bits
/// would depend on where servers are.) Empty: no such machine.
std::vector<WorkerRank> group_by_machine(const std::vector<std::string>& worker_addresses,
                                         const std::vector<std::string>& server_addresses);

/// The order in which these workers should get their ranks, as positions in the list: workers of
/// one machine together, machines with most workers first, otherwise in list order. So the groups,
/// and with them the last bits of a run, depend on the number of workers per machine and not on the
/// order of joining. The order is unchanged when no machine has two workers.
std::vector<std::size_t> rank_order(const std::vector<std::string>& worker_addresses);

/// The same for given groups of as many workers: places as many members of each group as possible
/// on one machine, larger groups first.
std::vector<std::size_t> rank_order_for(const std::vector<WorkerRank>& leaders,
                                        const std::vector<std::string>& worker_addresses);

/// How many workers send gradients to the servers themselves. `leaders` as in Plan.
std::uint32_t count_contributors(const std::vector<WorkerRank>& leaders, std::size_t workers);

/// "workers 0, 1 and workers 2, 3"; empty without groups.
std::string groups_text(const std::vector<WorkerRank>& leaders);

}  // namespace poseidon
