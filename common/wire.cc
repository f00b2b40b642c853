#include "common/wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/float16.h"

namespace poseidon {
namespace {

// Protobuf wire format (protobuf.dev/programming-guides/encoding): a field is a varint tag
// (number << 3 | type) and a value.
enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
enum Field : std::uint32_t {
  kVersionField = 1,
  kKindField = 2,
  kEpochField = 3,
  kIterationField = 4,
  kRankField = 5,
  kChunkField = 6,
  kOffsetField = 7,
  kElementTypeField = 8,
  kPayloadField = 15,
};

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void append_field(std::string& out, Field field, std::uint64_t value) {
  if (value == 0) return;  // proto3: the default is absent
  append_varint(out, (static_cast<std::uint64_t>(field) << 3) | kVarint);
  append_varint(out, value);
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

  /// Moves on by `length`; where `taken` is given, it gets the pieces passed over.
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

absl::Status malformed(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("not a ChunkMessage: ", what));
}

/// Unknown numbers stay what they are; the checks that follow refuse them by name.
void set_field(ChunkHeader& header, std::uint64_t field, std::uint64_t value) {
  const auto narrow = [](std::uint64_t wide) {
    return wide > 0xFFFFFFFFull ? 0xFFFFFFFFu : static_cast<std::uint32_t>(wide);
  };
  const auto to_signed = [](std::uint64_t wide) {  // beyond 2^63 no plan goes
    return wide > 0x7FFFFFFFFFFFFFFFull ? INT64_MAX : static_cast<std::int64_t>(wide);
  };
  switch (field) {
    case kVersionField:
      header.protocol_version = narrow(value);
      break;
    case kKindField:
      header.kind = static_cast<ChunkKind>(narrow(value));
      break;
    case kEpochField:
      header.epoch = Epoch(value);
      break;
    case kIterationField:
      header.iteration = to_signed(value);
      break;
    case kRankField:
      header.rank = WorkerRank(narrow(value));
      break;
    case kChunkField:
      header.chunk = ChunkId(narrow(value));
      break;
    case kOffsetField:
      header.offset = to_signed(value);
      break;
    case kElementTypeField:
      header.element_type = static_cast<ElementType>(narrow(value));
      break;
    default:
      break;  // a later version's field
  }
}

/// The 16-bit value at `bytes`, which need not be aligned.
std::uint16_t load16(const std::byte* bytes) {
  std::uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// The float that `bytes` hold as one element of kType.
template <ElementType kType>
float widened(const std::byte* bytes) {
  if constexpr (kType == ElementType::kBfloat16) return from_bfloat16(load16(bytes));
  if constexpr (kType == ElementType::kFloat16) return from_float16(load16(bytes));
  float value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// Calls `body` with a compile-time element type.
template <typename Body>
auto with_type(ElementType type, const Body& body) {
  switch (type) {
    case ElementType::kBfloat16:
      return body(std::integral_constant<ElementType, ElementType::kBfloat16>());
    case ElementType::kFloat16:
      return body(std::integral_constant<ElementType, ElementType::kFloat16>());
    case ElementType::kFloat32:
    case ElementType::kNone:
      break;
  }
  POSEIDON_CHECK(type == ElementType::kFloat32, "the element type of a payload");
  return body(std::integral_constant<ElementType, ElementType::kFloat32>());
}

// The inner loops: `bytes` are out.size() elements of `type`, and need not be aligned.

void widen_to(ElementType type, const std::byte* bytes, std::span<float> out) {
  if (type == ElementType::kFloat32) {
    if (!out.empty()) std::memcpy(out.data(), bytes, out.size_bytes());
    return;
  }
  with_type(type, [&](auto constant) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = widened<constant.value>(bytes + i * element_bytes(constant.value));
    }
  });
}

void add_widened_to(ElementType type, const std::byte* bytes, std::span<float> sum) {
  with_type(type, [&](auto constant) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += widened<constant.value>(bytes + i * element_bytes(constant.value));
    }
  });
}

/// Calls `body(bytes, first, count)` for runs of whole elements; an element that straddles two
/// pieces is put together first. `bytes` need not be aligned.
template <typename Body>
void for_each_run(const Bytes& payload, std::size_t element_size, const Body& body) {
  std::size_t element = 0;
  std::array<std::byte, sizeof(float)> straddling{};
  std::size_t straddling_bytes = 0;
  for (auto piece : payload.pieces) {
    while (straddling_bytes > 0 && !piece.empty()) {
      straddling[straddling_bytes++] = piece.front();
      piece.remove_prefix(1);
      if (straddling_bytes == element_size) {
        body(straddling.data(), element++, std::size_t{1});
        straddling_bytes = 0;
      }
    }
    const std::size_t whole = piece.size() / element_size;
    if (whole > 0) body(piece.data(), element, whole);
    element += whole;
    for (const std::byte byte : piece.subspan(whole * element_size)) {
      straddling[straddling_bytes++] = byte;
    }
  }
}

/// For a tensor that is much larger than the caches and read later: the stores neither fetch what
/// they overwrite nor push the receive buffers out of the cache.
void copy_past_caches(std::byte* to, absl::Span<const std::byte> from) {
#ifdef __SSE2__
  constexpr std::size_t kWidth = sizeof(__m128i);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kWidth;
  const std::size_t head = std::min(from.size(), misaligned == 0 ? 0 : kWidth - misaligned);
  if (head > 0) std::memcpy(to, from.data(), head);
  to += head;
  from.remove_prefix(head);
  while (from.size() >= kWidth) {
    __m128i value;
    std::memcpy(&value, from.data(), kWidth);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), value);
    to += kWidth;
    from.remove_prefix(kWidth);
  }
#endif
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

/// Before another thread may hear that the copies are made: such stores are ordered by nothing
/// else.
void order_copies() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace

std::string encode_prefix(const ChunkHeader& header, std::size_t payload_bytes) {
  std::string out;
  out.reserve(64);
  append_field(out, kVersionField, header.protocol_version);
  append_field(out, kKindField, static_cast<std::uint64_t>(header.kind));
  append_field(out, kEpochField, header.epoch.value());
  append_field(out, kIterationField, static_cast<std::uint64_t>(header.iteration));
  append_field(out, kRankField, header.rank.value());
  append_field(out, kChunkField, header.chunk.value());
  append_field(out, kOffsetField, static_cast<std::uint64_t>(header.offset));
  append_field(out, kElementTypeField, static_cast<std::uint64_t>(header.element_type));
  if (payload_bytes > 0) {
    append_varint(out, (static_cast<std::uint64_t>(kPayloadField) << 3) | kLengthDelimited);
    append_varint(out, payload_bytes);
  }
  return out;
}

absl::StatusOr<DecodedChunk> decode_chunk(const Bytes& message) {
  DecodedChunk decoded;
  decoded.header.protocol_version = 0;  // absent means absent, not ours
  decoded.header.kind = static_cast<ChunkKind>(0);
  decoded.payload.owner = message.owner;
  Cursor cursor(message);
  while (cursor.remaining() > 0) {
    std::uint64_t tag = 0;
    std::uint64_t value = 0;
    if (!cursor.read_varint(tag, 5) || tag > UINT32_MAX) {
      return malformed("a field's tag is cut short or out of range");
    }
    const std::uint64_t field = tag >> 3;
    if (field == 0) return malformed("field number 0");
    switch (tag & 7) {
      case kVarint:
        if (!cursor.read_varint(value)) return malformed("a number is cut short");
        set_field(decoded.header, field, value);
        break;
      case kLengthDelimited: {
        if (!cursor.read_varint(value, 5)) return malformed("a length is cut short");
        Bytes* taken = field == kPayloadField ? &decoded.payload : nullptr;
        if (taken != nullptr) taken->pieces.clear();  // protobuf: the last occurrence counts
        if (!cursor.skip(value, taken)) return malformed("a field is longer than the message");
        break;
      }
      case kFixed64:
        if (!cursor.skip(8, nullptr)) return malformed("a fixed64 is cut short");
        break;
      case kFixed32:
        if (!cursor.skip(4, nullptr)) return malformed("a fixed32 is cut short");
        break;
      default:
        return malformed(absl::StrCat("wire type ", tag & 7));
    }
  }
  return decoded;
}

const char* data_refusal_name(DataRefusal refusal) {
  switch (refusal) {
    case DataRefusal::kNone:
      return "none";
    case DataRefusal::kMalformed:
      return "malformed";
    case DataRefusal::kVersion:
      return "protocol_version";
    case DataRefusal::kNoAssignment:
      return "no_assignment";
    case DataRefusal::kKind:
      return "kind";
    case DataRefusal::kEpoch:
      return "epoch";
    case DataRefusal::kRank:
      return "rank";
    case DataRefusal::kChunk:
      return "chunk";
    case DataRefusal::kOffset:
      return "offset";
    case DataRefusal::kElementType:
      return "element_type";
    case DataRefusal::kSize:
      return "size";
    case DataRefusal::kIteration:
      return "iteration";
    case DataRefusal::kNotInitialised:
      return "not_initialised";
    case DataRefusal::kNotFinite:
      return "not_finite";
    case DataRefusal::kDuplicate:
      return "duplicate";
    case DataRefusal::kCount:
      break;
  }
  return "unknown";
}

namespace {

/// What a message of this kind may carry (twice the same where there is no choice).
std::array<ElementType, 2> expected_types(ChunkKind kind, ElementType wire_type) {
  switch (kind) {
    case ChunkKind::kInitialise:
      return {ElementType::kFloat32, ElementType::kFloat32};
    case ChunkKind::kPull:
      return {ElementType::kNone, ElementType::kFloat32};
    case ChunkKind::kParameters:
      return {wire_type, ElementType::kFloat32};
    case ChunkKind::kPushGradient:
      break;
  }
  return {wire_type, wire_type};
}

}  // namespace

Objection check_against_plan(const ChunkHeader& header, std::size_t payload_bytes,
                             const Plan& plan) {
  const auto object = [](DataRefusal reason, auto&&... words) {
    return Objection{reason, absl::StrCat(words...)};
  };
  if (header.protocol_version != kProtocolVersion) {
    return object(DataRefusal::kVersion, "protocol version ", header.protocol_version,
                  ", this side speaks ", kProtocolVersion,
                  ": install the same Poseidon version everywhere");
  }
  if (header.epoch != plan.epoch) {
    return object(DataRefusal::kEpoch, "epoch ", header.epoch.value(), ", the plan in force has ",
                  plan.epoch.value());
  }
  if (header.rank.value() >= plan.workers()) {
    return object(DataRefusal::kRank, "worker rank ", header.rank.value(), ", the plan has ",
                  plan.workers(), " workers");
  }
  if (header.chunk.value() >= plan.chunks.size()) {
    return object(DataRefusal::kChunk, "chunk ", header.chunk.value(), ", the plan has ",
                  plan.chunks.size(), " chunks");
  }
  const PlanChunk& chunk = plan.chunks[header.chunk.value()];
  if (header.offset != chunk.offset) {
    return object(DataRefusal::kOffset, "offset ", header.offset, " for chunk ",
                  header.chunk.value(), ", the plan says ", chunk.offset);
  }
  const bool has_payload = header.kind != ChunkKind::kPull;
  const auto expected = expected_types(header.kind, plan.wire_type);
  if (std::ranges::find(expected, header.element_type) == expected.end()) {
    return object(
        DataRefusal::kElementType, "element type ", static_cast<std::uint32_t>(header.element_type),
        " for chunk ", header.chunk.value(), ", expected ", static_cast<std::uint32_t>(expected[0]),
        expected[1] == expected[0] ? ""
                                   : absl::StrCat(" or ", static_cast<std::uint32_t>(expected[1])),
        ": the job's sync.wire_dtype is ", std::string(wire_dtype_name(plan.wire_type)));
  }
  const std::size_t expected_bytes =
      has_payload ? static_cast<std::size_t>(chunk.elements) * element_bytes(header.element_type)
                  : 0;
  if (payload_bytes != expected_bytes) {
    return object(DataRefusal::kSize, "payload of ", payload_bytes, " bytes for chunk ",
                  header.chunk.value(), ", expected ", expected_bytes);
  }
  return {};
}

void encode_payload(ElementType type, std::span<const float> values, std::span<std::byte> out) {
  POSEIDON_CHECK(out.size() == values.size() * element_bytes(type), "room for every element");
  if (values.empty()) return;
  const auto round_each = [&](auto round) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t rounded = round(values[i]);
      std::memcpy(out.data() + i * sizeof rounded, &rounded, sizeof rounded);
    }
  };
  switch (type) {
    case ElementType::kFloat32:
      std::memcpy(out.data(), values.data(), values.size_bytes());
      break;
    case ElementType::kBfloat16:
      round_each(to_bfloat16);
      break;
    case ElementType::kFloat16:
      round_each(to_float16);
      break;
    case ElementType::kNone:
      break;
  }
}

bool all_finite(ElementType type, std::span<const std::byte> encoded) {
  const std::size_t elements = encoded.size() / element_bytes(type);
  bool finite = true;
  if (type == ElementType::kFloat32) {
    for (std::size_t i = 0; i < elements; ++i) {
      finite &= std::isfinite(widened<ElementType::kFloat32>(encoded.data() + i * sizeof(float)));
    }
    return finite;
  }
  const std::uint16_t exponent = type == ElementType::kBfloat16 ? 0x7F80 : 0x7C00;
  for (std::size_t i = 0; i < elements; ++i) {
    finite &= (load16(encoded.data() + i * sizeof exponent) & exponent) != exponent;
  }
  return finite;
}

void PayloadReader::read(std::span<float> out) {
  const std::size_t width = element_bytes(type_);
  while (!out.empty()) {
    POSEIDON_CHECK(!pieces_.empty(), "the payload has as many elements as are read");
    const auto rest = pieces_.front().subspan(at_);
    const std::size_t whole = std::min(rest.size() / width, out.size());
    widen_to(type_, rest.data(), out.first(whole));
    out = out.subspan(whole);
    at_ += whole * width;
    if (out.empty()) return;
    // What is left of this piece is less than an element; the next pieces have the rest of it.
    std::array<std::byte, sizeof(float)> straddling{};
    for (std::size_t have = 0; have < width;) {
      POSEIDON_CHECK(!pieces_.empty(), "the payload has as many elements as are read");
      if (at_ == pieces_.front().size()) {
        pieces_.remove_prefix(1);
        at_ = 0;
        if (have == 0) break;  // the piece ended with an element
        continue;
      }
      straddling[have++] = pieces_.front()[at_++];
      if (have < width) continue;
      widen_to(type_, straddling.data(), out.first(1));
      out = out.subspan(1);
    }
  }
}

void copy_payload(const Bytes& payload, std::span<float> out, ElementType type) {
  POSEIDON_CHECK(payload.size() == out.size() * element_bytes(type),
                 "payload and tensor differ in size");
  if (type != ElementType::kFloat32) return PayloadReader(payload, type).read(out);
  auto* to = reinterpret_cast<std::byte*>(out.data());
  for (const auto& piece : payload.pieces) {
    copy_past_caches(to, piece);
    to += piece.size();
  }
  order_copies();
}

void add_payload(const Bytes& payload, std::span<float> accumulator, ElementType type) {
  POSEIDON_CHECK(payload.size() == accumulator.size() * element_bytes(type),
                 "payload and tensor differ in size");
  for_each_run(payload, element_bytes(type),
               [&](const std::byte* bytes, std::size_t first, std::size_t count) {
                 add_widened_to(type, bytes, accumulator.subspan(first, count));
               });
}

}  // namespace poseidon
