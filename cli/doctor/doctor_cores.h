#pragma once

// Finds nodes that do not get the CPU cores that they need, from the load that each node reports.
// Pure.
//
// Called by: doctor_diagnose.h, doctor_slow_node.h. Calls: doctor_facts.h.

#include "cli/doctor/doctor_facts.h"

namespace poseidon {

/// Whether the machine is short of cores: the job's processes wait for a core during much of their
/// run time, and together they use most of the machine.
bool lacks_cores(const DoctorFacts::Machine& machine);
/// The machine's figures without those of the node.
DoctorFacts::Machine without(DoctorFacts::Machine machine, const DoctorFacts::Node& node);

/// Cores that the job's other processes on the node's machine lack, per core that they have; 0 when
/// there are enough. The node's own waiting is left out: it would hide a node whose CPU is limited.
double core_shortage(const DoctorFacts& facts, const DoctorFacts::Node& node);

/// The process waits for cores for most of the time.
bool is_starved(const DoctorFacts::Node& node);
/// ... and so do others on its machine, which has too few.
bool is_starved_by_its_machine(const DoctorFacts& facts, const DoctorFacts::Node& node);

bool waits_for_cores(const DoctorFacts::Node& node);
/// Whether a CPU limit holds the node back: it waits for most of its time while the other processes
/// on its machine have enough cores or, for a worker, while the machine's other workers wait far
/// less per core. `node` is one of `facts`.
bool is_limited(const DoctorFacts& facts, const DoctorFacts::Node& node);

}  // namespace poseidon
