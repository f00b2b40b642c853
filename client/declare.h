#pragma once

// Makes the program's job known to the coordinator. The only file that knows how.
//
// Called by: client/program_node.h, before the node joins. Calls: the coordinator
// (coordinator/service.h).

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/client_options.h"
#include "common/security/security.h"

namespace poseidon {

/// OK: a job is there in which this program may have a part. Where rank 0 is another process's, it
/// is that one that declares. Waits for a coordinator for at most options.join_timeout
/// (UNAVAILABLE names it); other errors are the coordinator's answer. CANCELLED soon after
/// `is_cancelled` returns true; it is called on the calling thread.
absl::Status declare(const ClientOptions& options, const std::string& job_json,
                     const std::shared_ptr<Security>& security,
                     const std::function<bool()>& is_cancelled);

}  // namespace poseidon
