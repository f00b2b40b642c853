#pragma once

// Finds faults in a training job, whether or not they cost time now: disks that fill up or fail,
// checkpoints that fail, streams that break, samples that cannot be read. Most of them show only in
// the nodes' counters. Pure. It checks over some seconds what dashboards/prometheus/alerts.yml
// checks over minutes, for clusters without Prometheus.

#include <vector>

#include "cli/doctor/doctor_diagnose.h"

namespace poseidon {

/// None of them has a cost; the gravest first.
std::vector<Finding> health_findings(const DoctorFacts& facts);

}  // namespace poseidon
