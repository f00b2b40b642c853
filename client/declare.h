#pragma once

// Makes the program's job known to the coordinator. The only file that knows how.
//
// Called by: client/program_node.h, before the node joins. Calls: the coordinator
// (coordinator/service.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/client_options.h"
#include "common/security/security.h"

namespace poseidon {

/// The id of the job in which this program may have a part. Waits for a coordinator that can take
/// it for at most options.join_timeout (UNAVAILABLE names it); other errors are the coordinator's
/// answer: FAILED_PRECONDITION where another job is there. CANCELLED soon after `is_cancelled`
/// returns true; it is called on the calling thread.
absl::StatusOr<std::string> declare(const ClientOptions& options, const std::string& job_json,
                                    const std::shared_ptr<Security>& security,
                                    const std::function<bool()>& is_cancelled);

/// As Join.rank and DeclareRequest.rank have it: 1 + the rank; 0: any.
std::uint32_t join_rank(const ClientOptions& options);

}  // namespace poseidon
