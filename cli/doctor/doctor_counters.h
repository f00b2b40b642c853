#pragma once

// The doctor's facts from counters that nodes report in heartbeats and the coordinator reports of
// itself: facts that neither a trace nor the rest of the status has. The doctor reads two statuses,
// one before the trace and one after it, and compares them. Pure.
//
// Called by: cli/doctor/doctor_command.h.
// Calls: cli/doctor/doctor_facts.h, whose daemons it fills.

#include "cli/doctor/doctor_facts.h"
#include "common/base/clock.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Whether each node with a part in the job has sent counters that `since` does not have yet. Nodes
/// that are lost or away are not waited for. With an empty `since`: any counters at all.
bool all_have_reported(const v1::GetStatusResponse& status, const v1::GetStatusResponse& since);

/// How long to wait for that: two heartbeats of this coordinator, and some seconds.
Milliseconds report_patience(const v1::GetStatusResponse& status);

/// One daemon for the coordinator and for each node of the job that has sent counters in both
/// statuses. A note says of the others why they are missing. `unix_now_s` is when `after` was
/// taken.
void add_counters(const v1::GetStatusResponse& before, const v1::GetStatusResponse& after,
                  double unix_now_s, DoctorFacts& facts);

}  // namespace poseidon
