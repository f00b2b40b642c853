#pragma once

// The order in which one of many senders serves its receivers. Pure.
//
// Called by: sync/chunks/chunk_service.h, sync/links/chunk_links.h and
// sync/client/factor_exchange.h, which serve the queues of their streams in this order. Calls:
// nothing.

#include <cstddef>

namespace poseidon {

/// The receiver (of `receivers`) that sender number `sender` serves in its `turn`th turn. Each
/// sender begins with the receiver after its own number, so that all receivers' NICs are busy from
/// the start. If all began with receiver 0, their first bytes would queue for one NIC, and the last
/// receiver would wait longest in every iteration (measured: bench/RESULTS.md).
constexpr std::size_t receiver_in_turn(std::size_t sender, std::size_t turn,
                                       std::size_t receivers) {
  return (sender + 1 + turn) % receivers;
}

}  // namespace poseidon
