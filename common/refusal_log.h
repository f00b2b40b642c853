#pragma once

// The log's side of refused data messages.
//
// Before: server/chunk_service.h or worker/relay_service.h refused one, and counted it. After: the
// log has the first ten of each reason, then the 16th, 32nd and so on. The function that it makes
// is called on the loop.

#include <functional>
#include <string>

#include "common/wire.h"

namespace poseidon {

/// `counts`, in which they are counted already, outlives it.
std::function<void(const std::string& peer, const Objection&)> refusal_log(
    const RefusalCounts& counts);

}  // namespace poseidon
