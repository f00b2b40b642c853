#include "common/wire.h"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protobuf_walk.h"
#include "common/status_macros.h"

namespace poseidon {
namespace {

using protobuf::append_field;
using protobuf::narrow;
using protobuf::to_signed;

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

/// Unknown numbers stay what they are; the checks that follow refuse them by name.
void set_field(ChunkHeader& header, std::uint64_t field, std::uint64_t value) {
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

/// Calls `body(bytes, first, count)` for runs of whole floats; a float that straddles two pieces is
/// put together first. `bytes` need not be aligned.
template <typename Body>
void for_each_float_run(const Bytes& payload, const Body& body) {
  std::size_t element = 0;
  std::array<std::byte, sizeof(float)> straddling{};
  std::size_t straddling_bytes = 0;
  for (auto piece : payload.pieces) {
    while (straddling_bytes > 0 && !piece.empty()) {
      straddling[straddling_bytes++] = piece.front();
      piece.remove_prefix(1);
      if (straddling_bytes == sizeof(float)) {
        body(straddling.data(), element++, std::size_t{1});
        straddling_bytes = 0;
      }
    }
    const std::size_t whole = piece.size() / sizeof(float);
    if (whole > 0) body(piece.data(), element, whole);
    element += whole;
    for (const std::byte byte : piece.subspan(whole * sizeof(float))) {
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
    protobuf::append_tag(out, kPayloadField, protobuf::kLengthDelimited);
    protobuf::append_varint(out, payload_bytes);
  }
  return out;
}

absl::StatusOr<DecodedChunk> decode_chunk(const Bytes& message) {
  DecodedChunk decoded;
  decoded.header.protocol_version = 0;  // absent means absent, not ours
  decoded.header.kind = static_cast<ChunkKind>(0);
  POSEIDON_RETURN_IF_ERROR(protobuf::walk_message(
      message, "ChunkMessage", kPayloadField, decoded.payload,
      [&decoded](std::uint32_t field, protobuf::WireType type, std::uint64_t value) {
        if (type == protobuf::kVarint) set_field(decoded.header, field, value);
      }));
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
    case DataRefusal::kDuplicate:
      return "duplicate";
    case DataRefusal::kLayer:
      return "layer";
    case DataRefusal::kRows:
      return "rows";
    case DataRefusal::kNotFinite:
      return "not_finite";
    case DataRefusal::kCount:
      break;
  }
  return "unknown";
}

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
  const ElementType expected_type = has_payload ? ElementType::kFloat32 : ElementType::kNone;
  if (header.element_type != expected_type) {
    return object(DataRefusal::kElementType, "element type ",
                  static_cast<std::uint32_t>(header.element_type), " for chunk ",
                  header.chunk.value(), ", expected ", static_cast<std::uint32_t>(expected_type));
  }
  const std::size_t expected_bytes =
      has_payload ? static_cast<std::size_t>(chunk.elements) * sizeof(float) : 0;
  if (payload_bytes != expected_bytes) {
    return object(DataRefusal::kSize, "payload of ", payload_bytes, " bytes for chunk ",
                  header.chunk.value(), ", expected ", expected_bytes);
  }
  return {};
}

void PayloadReader::read(std::span<float> out) {
  auto* to = reinterpret_cast<std::byte*>(out.data());
  std::size_t left = out.size_bytes();
  while (left > 0) {
    POSEIDON_CHECK(!pieces_.empty(), "the payload has as many floats as are read");
    const auto rest = pieces_.front().subspan(at_);
    const std::size_t bytes = std::min(left, rest.size());
    if (bytes > 0) std::memcpy(to, rest.data(), bytes);
    to += bytes;
    left -= bytes;
    at_ += bytes;
    if (bytes == rest.size()) {
      pieces_.remove_prefix(1);
      at_ = 0;
    }
  }
}

void copy_payload(const Bytes& payload, std::span<float> out) {
  POSEIDON_CHECK(payload.size() == out.size_bytes(), "payload and tensor differ in size");
  auto* to = reinterpret_cast<std::byte*>(out.data());
  for (const auto& piece : payload.pieces) {
    copy_past_caches(to, piece);
    to += piece.size();
  }
  order_copies();
}

void add_payload(const Bytes& payload, std::span<float> accumulator) {
  POSEIDON_CHECK(payload.size() == accumulator.size_bytes(), "payload and tensor differ in size");
  for_each_float_run(payload, [&](const std::byte* bytes, std::size_t first, std::size_t count) {
    float* sum = accumulator.data() + first;
    for (std::size_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, bytes + i * sizeof(float), sizeof(float));
      sum[i] += value;
    }
  });
}

}  // namespace poseidon
