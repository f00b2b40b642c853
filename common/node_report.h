#pragma once

#include "common/data_probe.h"
#include "common/traffic.h"
#include "common/wire.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Running totals of a node's probes, as its heartbeat tells them. `traffic` (no job) and `data`
/// (no worker) may be null.
void fill_heartbeat_totals(const TrafficProbe* traffic, const DataProbe* data,
                           const RefusalCounts& refusals, v1::Heartbeat& heartbeat);

}  // namespace poseidon
