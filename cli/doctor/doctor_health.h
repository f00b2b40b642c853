#pragma once

// What should not be so in a job that trains, whether or not it costs time now: disks that fill up
// or fail, checkpoints that do not come about, streams that break, samples that cannot be read.
// Most of it is in the nodes' counters alone. Pure. It checks over some seconds what
// dashboards/prometheus/alerts.yml checks over minutes, for clusters without Prometheus.

#include <vector>

#include "cli/doctor/doctor_diagnose.h"

namespace poseidon {

/// None of them has a cost; the gravest first.
std::vector<Finding> health_findings(const DoctorFacts& facts);

}  // namespace poseidon
