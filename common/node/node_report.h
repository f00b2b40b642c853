#pragma once

// What a node's probes hold, as the coordinator hears it.
//
// Before: common/probes/traffic.h, common/probes/data_probe.h and common/probes/node_probe.h have
// counted. After: the next heartbeat (common/node/control_client.h), which is on a thread of its
// own. Reads atomics alone.

#include "common/probes/data_probe.h"
#include "common/probes/node_probe.h"
#include "common/probes/traffic.h"
#include "common/wire/wire.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Running totals of a node's probes, as its heartbeat tells them. `traffic` (no job) and `data`
/// (no worker) may be null.
void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat);

/// What this process costs its machine (common/base/process_load.h), and the disk's part of the
/// probe.
void fill_load(const NodeProbe& probe, v1::NodeLoad& load);

}  // namespace poseidon
