#pragma once

// Whether addresses take TCP connections from here. Blocks; decides nothing.
//
// Called by: coordinator/watch/address_probes.h, on its own thread. Calls: the network.

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace poseidon {

/// For each HOST:PORT: OK, or UNAVAILABLE with the reason alone ("Connection refused"). Connects to
/// all at once, says nothing, and closes. Takes `patience` at most, and longer only where the
/// system's resolver does; ends soon after `stop` is true.
std::vector<absl::Status> reach_addresses(const std::vector<std::string>& addresses,
                                          Nanoseconds patience, const std::atomic<bool>& stop);

}  // namespace poseidon
