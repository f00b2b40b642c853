#pragma once

// Members that are to go (NodeInfo::is_leaving), and what the job still has of them. Pure.
//
// Called by: planned_change.h and recovery.h, which end the epoch that uses them; staffing.h.
// Calls: nothing.

#include <functional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "coordinator/job/staffing/roster.h"
#include "coordinator/members/membership.h"

namespace poseidon {

/// Participants, not lost, that are to go and have not finished; for people. "": there is none.
std::string leaving_text(const Roster& roster, const std::vector<NodeInfo>& members);
/// Their places become vacant. Call it when no epoch uses them.
void vacate_leaving(const std::vector<NodeInfo>& members, Roster& roster);
/// Places are vacant, and none of them is kept for a node that may come back.
bool only_leaving_are_missing(const Roster& roster);
/// Servers that are to go and have parts of this checkpoint, which the others have not whole.
std::vector<NodeId> leaving_holders(const std::vector<NodeInfo>& members,
                                    const CheckpointManifest& checkpoint);
/// The members have all of the checkpoint, also without these.
bool is_reachable_without(const std::vector<NodeInfo>& members,
                          const CheckpointManifest& checkpoint,
                          const std::function<bool(const NodeInfo&)>& left_out);

}  // namespace poseidon
