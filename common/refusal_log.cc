#include "common/refusal_log.h"

#include <cstdint>

#include "spdlog/spdlog.h"

namespace poseidon {

std::function<void(const std::string& peer, const Objection&)> refusal_log(
    const RefusalCounts& counts) {
  return [&counts](const std::string& peer, const Objection& objection) {
    const std::uint64_t n = counts.of(objection.reason);
    const bool logged = n <= 10 || (n & (n - 1)) == 0;  // then the 16th, 32nd, 64th, ...
    if (!logged) return;
    spdlog::warn("refused a data message from {} ({}, number {}): {}", peer,
                 data_refusal_name(objection.reason), n, objection.message);
  };
}

}  // namespace poseidon
