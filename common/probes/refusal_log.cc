#include "common/probes/refusal_log.h"

#include <cstdint>

#include "common/base/log_limit.h"
#include "spdlog/spdlog.h"

namespace poseidon {

RefusalLog refusal_log(const RefusalCounts& counts) {
  return [&counts](const std::string& peer, const Objection& objection) {
    const std::uint64_t n = counts.of(objection.reason);
    if (!is_logged_refusal(n)) return;
    spdlog::warn("refused a data message from {} ({}, number {}): {}", peer,
                 data_refusal_name(objection.reason), n, objection.message);
  };
}

}  // namespace poseidon
