#include "common/wire/store_wire.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/wire/protobuf_walk.h"

namespace poseidon {
namespace {

using protobuf::append_field;
using protobuf::narrow;

enum Field : std::uint32_t {
  kVersionField = 1,
  kOperationField = 2,
  kRequestField = 3,
  kSnapshotField = 4,
  kPieceField = 5,
  kSlotField = 6,
  kErrorField = 7,
  kPayloadField = 15,
};

void set_field(StoreHeader& header, std::uint32_t field, std::uint64_t value) {
  switch (field) {
    case kVersionField:
      header.protocol_version = narrow(value);
      break;
    case kOperationField:
      header.operation = static_cast<StoreOperation>(narrow(value));
      break;
    case kRequestField:
      header.request = value;
      break;
    case kSnapshotField:
      header.snapshot = SnapshotId(value);
      break;
    case kPieceField:
      header.piece = PieceId(narrow(value));
      break;
    case kSlotField:
      header.slot = narrow(value);
      break;
    case kErrorField:
      header.error_code = narrow(value);
      break;
    default:
      break;  // a later version's field
  }
}

}  // namespace

MessagePrefix encode_prefix(const StoreHeader& header, std::size_t payload_bytes) {
  MessagePrefix out;
  append_field(out, kVersionField, header.protocol_version);
  append_field(out, kOperationField, static_cast<std::uint64_t>(header.operation));
  append_field(out, kRequestField, header.request);
  append_field(out, kSnapshotField, header.snapshot.value());
  append_field(out, kPieceField, header.piece.value());
  append_field(out, kSlotField, header.slot);
  append_field(out, kErrorField, header.error_code);
  if (payload_bytes > 0) {
    protobuf::append_tag(out, kPayloadField, protobuf::kLengthDelimited);
    protobuf::append_varint(out, payload_bytes);
  }
  return out;
}

absl::StatusOr<DecodedStore> decode_store(const Bytes& message) {
  DecodedStore decoded;
  decoded.header.protocol_version = 0;
  decoded.header.operation = static_cast<StoreOperation>(0);
  POSEIDON_RETURN_IF_ERROR(protobuf::walk_message(
      message, "StoreMessage", kPayloadField, decoded.payload,
      [&decoded](std::uint32_t field, protobuf::WireType type, std::uint64_t value) {
        if (type == protobuf::kVarint) set_field(decoded.header, field, value);
      }));
  const StoreHeader& header = decoded.header;
  if (header.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("protocol version ", header.protocol_version,
                                                      ", this process speaks ", kProtocolVersion));
  }
  const auto operation = static_cast<std::uint32_t>(header.operation);
  if (operation < static_cast<std::uint32_t>(StoreOperation::kRead) ||
      operation > static_cast<std::uint32_t>(StoreOperation::kReadHeld)) {
    return absl::InvalidArgumentError(absl::StrCat("store operation ", operation));
  }
  if (header.slot > kMaxStateSlots) {
    return absl::InvalidArgumentError(absl::StrCat("slot ", header.slot, " of a piece"));
  }
  return decoded;
}

}  // namespace poseidon
