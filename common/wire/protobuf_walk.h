#pragma once

// Protobuf's wire format by hand (protobuf.dev/programming-guides/encoding), for messages whose
// payload must not be copied: a field is a varint tag (number << 3 | type) and a value. Pure.
//
// Called by: the encoders and decoders of such messages (common/wire/wire.cc, factor_wire.cc,
// store_wire.cc and others). Calls: nothing. Messages without a payload use the protobuf library.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/transport/transport.h"

namespace poseidon::protobuf {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

inline void append_varint(MessagePrefix& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

inline void append_tag(MessagePrefix& out, std::uint32_t field, WireType type) {
  append_varint(out, (static_cast<std::uint64_t>(field) << 3) | type);
}

/// proto3 omits the default value.
inline void append_field(MessagePrefix& out, std::uint32_t field, std::uint64_t value) {
  if (value == 0) return;
  append_tag(out, field, kVarint);
  append_varint(out, value);
}

/// proto3 omits the default value.
inline void append_fixed64(MessagePrefix& out, std::uint32_t field, std::uint64_t value) {
  if (value == 0) return;
  append_tag(out, field, kFixed64);
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

/// Reads through the pieces of a message without joining them.
class Cursor {
 public:
  explicit Cursor(const Bytes& bytes) : bytes_(bytes), remaining_(bytes.size()) {}

  std::size_t remaining() const { return remaining_; }

  bool read_byte(std::uint8_t& out) {
    if (remaining_ == 0) return false;
    skip_empty();
    out = std::to_integer<std::uint8_t>(bytes_.pieces[piece_][at_]);
    ++at_;
    --remaining_;
    return true;
  }

  /// Tags and lengths have at most 5 bytes, values 10.
  bool read_varint(std::uint64_t& out, int max_bytes = 10) {
    out = 0;
    for (int shift = 0; shift < 7 * max_bytes; shift += 7) {
      std::uint8_t byte = 0;
      if (!read_byte(byte)) return false;
      if (shift == 63 && byte > 1) return false;
      out |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  bool read_fixed64(std::uint64_t& out) {
    out = 0;
    for (int shift = 0; shift < 64; shift += 8) {
      std::uint8_t byte = 0;
      if (!read_byte(byte)) return false;
      out |= static_cast<std::uint64_t>(byte) << shift;
    }
    return true;
  }

  /// Skips `length` bytes; `taken`, if given, gets the skipped pieces.
  bool skip(std::uint64_t length, Bytes* taken) {
    if (length > remaining_) return false;
    while (length > 0) {
      skip_empty();
      const auto& piece = bytes_.pieces[piece_];
      const std::size_t here =
          std::min<std::size_t>(piece.size() - at_, static_cast<std::size_t>(length));
      if (taken != nullptr) taken->pieces.push_back(piece.subspan(at_, here));
      at_ += here;
      remaining_ -= here;
      length -= here;
    }
    return true;
  }

 private:
  void skip_empty() {
    while (at_ == bytes_.pieces[piece_].size()) {
      ++piece_;
      at_ = 0;
    }
  }

  const Bytes& bytes_;
  std::size_t piece_ = 0;
  std::size_t at_ = 0;
  std::size_t remaining_;
};

/// Walks all fields of a message: `on_number(field, type, value)` for each varint and fixed64; the
/// field `payload_field` is put into `payload` (the last occurrence counts, as protobuf wants it);
/// the rest is skipped. INVALID_ARGUMENT, naming `message_name`, for bytes that are not a message.
template <typename OnNumber>
absl::Status walk_message(const Bytes& message, const char* message_name,
                          std::uint32_t payload_field, Bytes& payload, const OnNumber& on_number) {
  const auto malformed = [message_name](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("not a ", message_name, ": ", what));
  };
  payload.pieces.clear();
  payload.owner = message.owner;
  Cursor cursor(message);
  while (cursor.remaining() > 0) {
    std::uint64_t tag = 0;
    std::uint64_t value = 0;
    if (!cursor.read_varint(tag, 5) || tag > UINT32_MAX) {
      return malformed("a field's tag is cut short or out of range");
    }
    const auto field = static_cast<std::uint32_t>(tag >> 3);
    if (field == 0) return malformed("field number 0");
    switch (tag & 7) {
      case kVarint:
        if (!cursor.read_varint(value)) return malformed("a number is cut short");
        on_number(field, kVarint, value);
        break;
      case kLengthDelimited: {
        if (!cursor.read_varint(value, 5)) return malformed("a length is cut short");
        Bytes* taken = field == payload_field ? &payload : nullptr;
        if (taken != nullptr) taken->pieces.clear();
        if (!cursor.skip(value, taken)) return malformed("a field is longer than the message");
        break;
      }
      case kFixed64:
        if (!cursor.read_fixed64(value)) return malformed("a fixed64 is cut short");
        on_number(field, kFixed64, value);
        break;
      case kFixed32:
        if (!cursor.skip(4, nullptr)) return malformed("a fixed32 is cut short");
        break;
      default:
        return malformed(absl::StrCat("wire type ", tag & 7));
    }
  }
  return absl::OkStatus();
}

/// Clamps a value to 32 bits; the maximum occurs in no plan, so it fails later checks.
inline std::uint32_t narrow(std::uint64_t wide) {
  return wide > 0xFFFFFFFFull ? 0xFFFFFFFFu : static_cast<std::uint32_t>(wide);
}
/// The same for signed numbers; no plan goes beyond 2^63.
inline std::int64_t to_signed(std::uint64_t wide) {
  return wide > 0x7FFFFFFFFFFFFFFFull ? INT64_MAX : static_cast<std::int64_t>(wide);
}

}  // namespace poseidon::protobuf
