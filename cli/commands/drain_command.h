#pragma once

// `poseidon drain`: takes a node out of service, so that its machine may be stopped. The job goes
// on without it.
//
// Called by: cli/main.cc. Calls: cli/remote/coordinator_client.h.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/remote/coordinator_client.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct DrainOptions : CoordinatorAccess {
  std::string node;              ///< HOST:PORT, as status shows it
  bool undo = false;             ///< jobs may use it again
  std::int64_t timeout_s = 600;  ///< how long to wait until the node is drained
};
/// DEADLINE_EXCEEDED: the job still needs the node; it stays marked. NOT_FOUND: no such node, or it
/// is gone.
absl::Status run_drain(const DrainOptions& options);

/// The state of this member: "draining", "drained", ...; "" when it is not here. Pure.
std::string state_of_node(const v1::GetStatusResponse& status, std::uint64_t node_id);

}  // namespace poseidon
