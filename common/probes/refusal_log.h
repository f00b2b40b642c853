#pragma once

// Logs refused data messages, at a limited rate.
//
// Called by: services of data streams (sync/chunks/chunk_service.h, server/store/store_service.h,
// sync/links/peer_stream.h, common/node/link_probe.h), on the loop, after they have counted a
// refusal. Calls: the log. It gets the first ten of each reason, then the 16th, 32nd and so on.

#include <functional>
#include <string>

#include "common/wire/wire.h"

namespace poseidon {

/// Called for each unused message, after it was counted, with its sender.
using RefusalLog = std::function<void(const std::string& peer, const Objection&)>;

/// `counts` already includes the message and outlives the function.
RefusalLog refusal_log(const RefusalCounts& counts);

}  // namespace poseidon
