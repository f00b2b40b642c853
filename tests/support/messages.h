#pragma once

// Messages for streams under test.

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/transport/transport.h"

namespace poseidon::testing_support {

/// With a copy of the payload.
inline OutgoingMessage message_of(std::string_view prefix, std::string_view payload = "") {
  auto owner = std::make_shared<std::string>(payload);
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()),
                                          owner->size());
  return {.prefix = MessagePrefix(prefix), .payload = bytes, .payload_owner = std::move(owner)};
}

}  // namespace poseidon::testing_support
