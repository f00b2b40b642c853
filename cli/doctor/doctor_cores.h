#pragma once

// Who of a job does not get the cores that it wants, by the load that each node tells. Pure.
//
// Before: doctor_facts.h. After: doctor_slow_node.h, doctor_diagnose.h.

#include "cli/doctor/doctor_facts.h"

namespace poseidon {

/// Whether the job's processes there wait for cores much of the time that they have them, and use
/// so much of the machine that it is its cores that they wait for.
bool lacks_cores(const DoctorFacts::Machine& machine);
/// The machine as if the node were not there.
DoctorFacts::Machine without(DoctorFacts::Machine machine, const DoctorFacts::Node& node);

/// Cores that the other processes of the job miss where the node is, per core that they have; 0
/// where there are enough. What it waits for itself would excuse one whose CPU is limited.
double core_shortage(const DoctorFacts& facts, const DoctorFacts::Node& node);

bool waits_for_cores(const DoctorFacts::Node& node);
/// Whether the node hardly gets to run while the others on its machine have the cores they want,
/// or while the other workers there, if it is one, wait far less for each that they have. `node` is
/// one of `facts`.
bool is_limited(const DoctorFacts& facts, const DoctorFacts::Node& node);

}  // namespace poseidon
