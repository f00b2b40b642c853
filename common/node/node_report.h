#pragma once

// Converts the counts of a node's probes to the coordinator's messages.
//
// Called by: the heartbeat thread of common/node/control_client.h. Calls: common/probes/traffic.h,
// common/probes/data_probe.h and common/probes/node_probe.h. Reads atomics only.

#include "common/probes/data_probe.h"
#include "common/probes/node_probe.h"
#include "common/probes/traffic.h"
#include "common/wire/wire.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Fills the running totals of a node's probes into a heartbeat. `traffic` (no job) and `data` (no
/// worker) may be null.
void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat);

/// Fills in the process's load on its machine (common/base/process_load.h) and the probe's disk
/// figures.
void fill_load(const NodeProbe& probe, v1::NodeLoad& load);

}  // namespace poseidon
