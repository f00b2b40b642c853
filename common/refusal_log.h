#pragma once

#include <functional>
#include <string>

#include "common/wire.h"

namespace poseidon {

/// Data messages that were refused: one log line each until they become a flood. `counts`, in which
/// they are counted already, outlives it.
std::function<void(const std::string& peer, const Objection&)> refusal_log(
    const RefusalCounts& counts);

}  // namespace poseidon
