#include "common/transport/stream_header.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "poseidon/v1/stream.pb.h"

namespace poseidon {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Fields = v1::StreamHeader;

/// Field numbers of messages proper stay below.
constexpr int kFirstField = Fields::kOfferFieldNumber;

constexpr std::uint32_t offer_tag() {
  return WireFormatLite::MakeTag(Fields::kOfferFieldNumber,
                                 WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

/// The first bytes of the message, joined; how many there are.
template <std::size_t kSize>
std::size_t first_bytes(const Bytes& message, std::array<std::uint8_t, kSize>& out) {
  std::size_t count = 0;
  for (const auto& piece : message.pieces) {
    const std::size_t here = std::min(piece.size(), out.size() - count);
    if (here > 0) std::memcpy(out.data() + count, piece.data(), here);
    count += here;
    if (count == out.size()) break;
  }
  return count;
}

std::uint8_t* put(std::uint8_t* to, int field, std::uint64_t value) {
  to = CodedOutputStream::WriteTagToArray(
      WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT), to);
  return CodedOutputStream::WriteVarint64ToArray(value, to);
}

absl::Status malformed(const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("stream header: ", why));
}

absl::Status set_field(StreamHeader& header, int field, std::uint64_t value) {
  switch (field) {
    case Fields::kAcceptedFieldNumber:
      header.accepted = value != 0;
      return absl::OkStatus();
    case Fields::kPayloadOffsetFieldNumber:
      header.payload_offset = value;
      return absl::OkStatus();
    case Fields::kPayloadBytesFieldNumber:
      header.payload_bytes = value;
      return absl::OkStatus();
    case Fields::kDeliveredFieldNumber:
      header.delivered = value;
      return absl::OkStatus();
    case Fields::kAsksFieldNumber:
      header.asks = value != 0;
      return absl::OkStatus();
    case Fields::kReleasedFieldNumber:
      if (header.released_count == StreamHeader::kMaxReleased) {
        return malformed(absl::StrCat("more than ", StreamHeader::kMaxReleased,
                                      " messages are released at once"));
      }
      header.released[header.released_count++] = value;
      return absl::OkStatus();
    default:
      return malformed(absl::StrCat("field ", field, " is unknown"));
  }
}

}  // namespace

void append_stream_header(const StreamHeader& header, MessagePrefix& out) {
  std::array<std::uint8_t, kMaxStreamHeaderBytes> bytes;
  std::uint8_t* to = bytes.data();
  if (header.accepted) to = put(to, Fields::kAcceptedFieldNumber, 1);
  if (header.payload_bytes > 0) {
    to = put(to, Fields::kPayloadOffsetFieldNumber, header.payload_offset);
    to = put(to, Fields::kPayloadBytesFieldNumber, header.payload_bytes);
  }
  if (header.delivered) to = put(to, Fields::kDeliveredFieldNumber, *header.delivered);
  if (header.asks) to = put(to, Fields::kAsksFieldNumber, 1);
  for (const std::uint64_t sequence : header.released_messages()) {
    to = put(to, Fields::kReleasedFieldNumber, sequence);
  }
  out.append(
      {reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(to - bytes.data())});
}

absl::StatusOr<DecodedStreamHeader> decode_stream_header(const Bytes& message) {
  std::array<std::uint8_t, kMaxStreamHeaderBytes + 2> bytes;  // and the tag of what follows
  const std::size_t size = first_bytes(message, bytes);
  CodedInputStream input(bytes.data(), static_cast<int>(size));
  DecodedStreamHeader decoded;
  while (true) {
    decoded.bytes = static_cast<std::size_t>(input.CurrentPosition());
    const std::uint32_t tag = input.ReadTag();
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    if (tag == 0 || field < kFirstField) return decoded;  // the message proper, or its end
    if (tag == offer_tag()) return malformed("a second offer");
    std::uint64_t value = 0;
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_VARINT ||
        !input.ReadVarint64(&value)) {
      return malformed(absl::StrCat("field ", field, " is not a number, or is truncated"));
    }
    if (absl::Status status = set_field(decoded.header, field, value); !status.ok()) return status;
  }
}

bool begins_with_offer(const Bytes& message) {
  std::array<std::uint8_t, 2> bytes;
  const std::size_t size = first_bytes(message, bytes);
  CodedInputStream input(bytes.data(), static_cast<int>(size));
  return input.ReadTag() == offer_tag();
}

}  // namespace poseidon
