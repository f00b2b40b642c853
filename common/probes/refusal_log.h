#pragma once

// The log's side of refused data messages.
//
// Before: a service of data streams (sync/chunks/chunk_service.h, server/store/store_service.h,
// sync/links/peer_stream.h, common/node/link_probe.h) refused one, and counted it. After: the log
// has the first ten of each reason, then the 16th, 32nd and so on. The function that it makes is
// called on the loop.

#include <functional>
#include <string>

#include "common/wire/wire.h"

namespace poseidon {

/// Hears of a message that was not used, and is counted already, with who sent it.
using RefusalLog = std::function<void(const std::string& peer, const Objection&)>;

/// `counts`, in which they are counted already, outlives it.
RefusalLog refusal_log(const RefusalCounts& counts);

}  // namespace poseidon
