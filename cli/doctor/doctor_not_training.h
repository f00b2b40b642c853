#pragma once

// What doctor says of a job that does not train yet, or not at the moment: there is nothing to
// trace, but the coordinator's status knows what is awaited. Pure.
//
// Called by: doctor_command.h. Calls: doctor_diagnose.h for the kinds of findings.

#include "cli/doctor/doctor_diagnose.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// The job is on its way to train: it waits for nodes, is prepared, or recovers.
bool is_before_training(const v1::GetStatusResponse& status);

/// The state and its message, the nodes that are awaited, and what to do.
Finding not_training(const v1::GetStatusResponse& status);

}  // namespace poseidon
