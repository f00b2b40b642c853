#pragma once

// In which order one of many serves all its receivers. Pure.
//
// Before: sync/chunks/chunk_service.h, sync/links/chunk_links.h or sync/client/factor_exchange.h
// has something for several streams. After: it looks at their queues in this order.

#include <cstddef>

namespace poseidon {

/// Whom the `sender`th of many serves as its `turn`th receiver of `receivers`. Each begins with the
/// one after its own number, so that all receivers' cards are busy from the start: were the first
/// always 0, everybody's first bytes would queue for the card of one machine, and the last one of
/// all would wait longest in every iteration (measured: bench/RESULTS.md).
constexpr std::size_t receiver_in_turn(std::size_t sender, std::size_t turn,
                                       std::size_t receivers) {
  return (sender + 1 + turn) % receivers;
}

}  // namespace poseidon
