#pragma once

// The log's side of refused data messages.
//
// Before: a service of data streams (server/chunk_service.h, server/store_service.h,
// worker/peer_stream.h, common/link_probe.h) refused one, and counted it. After: the log has the
// first ten of each reason, then the 16th, 32nd and so on. The function that it makes is called on
// the loop.

#include <functional>
#include <string>

#include "common/wire.h"

namespace poseidon {

/// Hears of a message that was not used, and is counted already, with who sent it.
using RefusalLog = std::function<void(const std::string& peer, const Objection&)>;

/// `counts`, in which they are counted already, outlives it.
RefusalLog refusal_log(const RefusalCounts& counts);

}  // namespace poseidon
