#pragma once

// Validates messages of nodes and operators before they are used. Pure.
//
// Called by: coordinator/cluster. Calls: nothing.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/members/membership.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// The host in gRPC's name of a peer ("ipv4:10.0.0.1:4711", "ipv6:%5B::1%5D:4711"); "" for others.
std::string host_of_peer(const std::string& peer);

/// FAILED_PRECONDITION unless `theirs`, the version of `who`, is our protocol version.
absl::Status check_protocol_version(std::uint32_t theirs, const std::string& who);

/// The node behind a Join that came from `peer_host`: FAILED_PRECONDITION for another protocol
/// version, INVALID_ARGUMENT for invalid fields, and for a loopback address from another machine. A
/// wildcard host becomes `peer_host`.
absl::StatusOr<NodeInfo> admit(const v1::Join& join, const std::string& peer_host);

/// Text from the wire, fit for one log line: control characters become spaces, long text is cut.
std::string one_line(const std::string& text);

}  // namespace poseidon
