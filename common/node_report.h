#pragma once

// What a node's probes hold, as the coordinator hears it.
//
// Before: common/traffic.h, common/data_probe.h and common/node_probe.h have counted. After: the
// next heartbeat (common/control_client.h), which is on a thread of its own. Reads atomics alone.

#include "common/data_probe.h"
#include "common/node_probe.h"
#include "common/traffic.h"
#include "common/wire.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Running totals of a node's probes, as its heartbeat tells them. `traffic` (no job) and `data`
/// (no worker) may be null.
void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat);

/// What this process costs its machine (common/process_load.h), and the disk's part of the probe.
void fill_load(const NodeProbe& probe, v1::NodeLoad& load);

}  // namespace poseidon
