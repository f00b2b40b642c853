#pragma once

// Encoding of messages to and from a server's store of checkpoint pieces: ordinary protobuf bytes
// (proto/poseidon/v1/store.proto), handled without copying the payload. Pure.
//
// Called by: common/checkpoint/store_client.h, which asks, and server/store/store_service.h, which
// answers. Calls: common/wire/protobuf_walk.h.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "common/wire/snapshot.h"

namespace poseidon {

/// Full gRPC method of the store's stream.
inline constexpr std::string_view kStoreMethod = "/poseidon.v1.CheckpointStore/Exchange";

enum class StoreOperation : std::uint32_t {
  kRead = 1,
  kWrite = 2,
  kData = 3,
  kStored = 4,
  kError = 5,
  kHold = 6,
  kReadHeld = 7,
};

/// Most optimizer slots of a parameter.
inline constexpr std::uint32_t kMaxStateSlots = 2;

/// StoreMessage without its payload; see store.proto for each field.
struct StoreHeader {
  std::uint32_t protocol_version = kProtocolVersion;
  StoreOperation operation = StoreOperation::kRead;
  std::uint64_t request = 0;  ///< chosen by the client; the answer repeats it
  SnapshotId snapshot;
  PieceId piece;
  std::uint32_t slot = 0;  ///< 0: parameters. Of a write: how many slots of the optimizer follow
  std::uint32_t error_code = 0;  ///< absl::StatusCode, of an error
};

struct DecodedStore {
  StoreHeader header;
  Bytes payload;  ///< refers into the message
};

/// Everything up to the payload's bytes, its length included. prefix + payload is a valid
/// StoreMessage.
MessagePrefix encode_prefix(const StoreHeader& header, std::size_t payload_bytes);

/// Any valid StoreMessage. FAILED_PRECONDITION for another protocol version; INVALID_ARGUMENT for
/// bytes that are not a message, an unknown operation, or a slot beyond kMaxStateSlots.
absl::StatusOr<DecodedStore> decode_store(const Bytes& message);

}  // namespace poseidon
