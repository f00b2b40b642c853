#pragma once

// The header that two Poseidon peers put in front of each message: StreamHeader of
// proto/poseidon/v1/stream.proto, encoded and decoded without allocation. Pure.
//
// Called by: common/transport/paced_transport.cc, which prepends the header to each message it
// sends and strips it from each it receives. Calls: nothing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/transport/transport.h"

namespace poseidon {

/// Without the offer, which only the first message of each side has.
struct StreamHeader {
  static constexpr std::size_t kMaxReleased = 16;

  bool accepted = false;
  std::uint64_t payload_offset = 0;
  std::uint64_t payload_bytes = 0;
  std::optional<std::uint64_t> delivered;
  bool asks = false;
  std::array<std::uint64_t, kMaxReleased> released{};
  std::size_t released_count = 0;

  absl::Span<const std::uint64_t> released_messages() const {
    return {released.data(), released_count};
  }
};

/// Longest header: a tag of 2 bytes and a number of up to 10 each.
inline constexpr std::size_t kMaxStreamHeaderBytes = (StreamHeader::kMaxReleased + 5) * 12;

void append_stream_header(const StreamHeader& header, MessagePrefix& out);

struct DecodedStreamHeader {
  StreamHeader header;
  std::size_t bytes = 0;  ///< of the message, in front; the rest is the message proper
};
/// A message without a header has an empty one. INVALID_ARGUMENT for an offer (not here), more
/// released messages than one header may have, or a number cut short.
absl::StatusOr<DecodedStreamHeader> decode_stream_header(const Bytes& message);

/// Whether the message is the first from a Poseidon peer, that is, begins with StreamHeader.offer.
bool begins_with_offer(const Bytes& message);

}  // namespace poseidon
