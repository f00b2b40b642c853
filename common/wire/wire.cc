#include "common/wire/wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/plan/tensor_parts.h"
#include "common/wire/norm_wire.h"
#include "common/wire/protobuf_walk.h"

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
  kProofField = 9,
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

/// The kernel for a 16-bit type.
template <typename Kernel>
Kernel of_16_bits(ElementType type, Kernel bfloat16, Kernel float16) {
  POSEIDON_CHECK(element_bytes(type) == 2, "the element type of a payload");
  return type == ElementType::kBfloat16 ? bfloat16 : float16;
}

}  // namespace

MessagePrefix encode_prefix(const ChunkHeader& header, std::size_t payload_bytes) {
  MessagePrefix out;
  append_field(out, kVersionField, header.protocol_version);
  append_field(out, kKindField, static_cast<std::uint64_t>(header.kind));
  append_field(out, kEpochField, header.epoch.value());
  append_field(out, kIterationField, static_cast<std::uint64_t>(header.iteration));
  append_field(out, kRankField, header.rank.value());
  append_field(out, kChunkField, header.chunk.value());
  append_field(out, kOffsetField, static_cast<std::uint64_t>(header.offset));
  append_field(out, kElementTypeField, static_cast<std::uint64_t>(header.element_type));
  protobuf::append_fixed64(out, kProofField, header.proof);
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
        if (type == protobuf::kFixed64 && field == kProofField) decoded.header.proof = value;
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
    case DataRefusal::kNorm:
      return "norm";
    case DataRefusal::kProof:
      return "proof";
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
    case ChunkKind::kNorms:
    case ChunkKind::kTotals:
      return {ElementType::kNone, ElementType::kNone};
    case ChunkKind::kPushGradient:
      break;
  }
  return {wire_type, wire_type};
}

std::size_t expected_payload_bytes(const ChunkHeader& header, const PlanChunk& chunk,
                                   const Plan& plan) {
  switch (header.kind) {
    case ChunkKind::kPull:
      return 0;
    case ChunkKind::kNorms:
    case ChunkKind::kTotals: {
      const std::size_t parts =
          tensor_parts(plan.layers[chunk.layer.value()], chunk.offset, chunk.elements).size();
      return header.kind == ChunkKind::kNorms ? norms_bytes(parts)
                                              : totals_bytes(parts, plan.norm_scope);
    }
    default:
      return static_cast<std::size_t>(chunk.elements) * element_bytes(header.element_type);
  }
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
  const bool of_norms = header.kind == ChunkKind::kNorms || header.kind == ChunkKind::kTotals;
  if (of_norms && plan.norm_scope == NormScope::kNone) {
    return object(DataRefusal::kKind, "kind ", static_cast<std::uint32_t>(header.kind),
                  " is about norms, and the plan's steps need none");
  }
  const auto expected = expected_types(header.kind, plan.wire_type);
  if (std::ranges::find(expected, header.element_type) == expected.end()) {
    return object(
        DataRefusal::kElementType, "element type ", static_cast<std::uint32_t>(header.element_type),
        " for chunk ", header.chunk.value(), ", expected ", static_cast<std::uint32_t>(expected[0]),
        expected[1] == expected[0] ? ""
                                   : absl::StrCat(" or ", static_cast<std::uint32_t>(expected[1])),
        ": the job's sync.wire_dtype is ", std::string(wire_dtype_name(plan.wire_type)));
  }
  const std::size_t expected_bytes = expected_payload_bytes(header, chunk, plan);
  if (payload_bytes != expected_bytes) {
    return object(DataRefusal::kSize, "payload of ", payload_bytes, " bytes for chunk ",
                  header.chunk.value(), ", expected ", expected_bytes);
  }
  return {};
}

Objection check_proof(const Plan& plan, WorkerRank rank, std::uint64_t proof) {
  if (proof == proof_at(plan.proofs.expected, rank.value())) return {};
  return {DataRefusal::kProof,
          absl::StrCat("a stream as worker ", rank.value(), " of epoch ", plan.epoch.value(),
                       ", without the proof that the coordinator gave that worker: who sent it is "
                       "not that worker")};
}

void encode_payload(ElementType type, std::span<const float> values, std::span<std::byte> out,
                    const Kernels& with) {
  POSEIDON_CHECK(out.size() == values.size() * element_bytes(type), "room for every element");
  if (values.empty()) return;
  if (type == ElementType::kFloat32) {
    std::memcpy(out.data(), values.data(), values.size_bytes());
    return;
  }
  of_16_bits(type, with.to_bfloat16, with.to_float16)(out.data(), values.data(), values.size());
}

PayloadReader::PayloadReader(const Bytes& payload, ElementType type, std::size_t first,
                             std::size_t size)
    : pieces_(payload.pieces), width_(element_bytes(type)), at_(first * width_), left_(size) {
  while (!pieces_.empty() && at_ >= pieces_.front().size()) {
    at_ -= pieces_.front().size();
    pieces_.remove_prefix(1);
  }
}

PayloadReader::Run PayloadReader::next() {
  std::size_t straddling = 0;
  while (!pieces_.empty() && left_ > 0) {
    const auto rest = pieces_.front().subspan(at_);
    const std::size_t whole = std::min(rest.size() / width_, left_);
    if (straddling == 0 && whole > 0) {
      at_ += whole * width_;
      left_ -= whole;
      return {rest.data(), whole};
    }
    const std::size_t bytes = std::min(rest.size(), width_ - straddling);
    std::copy_n(rest.data(), bytes, straddling_.data() + straddling);
    straddling += bytes;
    at_ += bytes;
    if (straddling == width_) {
      --left_;
      return {straddling_.data(), 1};
    }
    pieces_.remove_prefix(1);
    at_ = 0;
  }
  return {};
}

void widen_payload(ElementType type, PayloadReader::Run run, float* out, const Kernels& with) {
  if (type == ElementType::kFloat32) {
    std::memcpy(out, run.data, run.size * sizeof(float));
  } else {
    of_16_bits(type, with.from_bfloat16, with.from_float16)(out, run.data, run.size);
  }
}

namespace {

/// Of the elements of the payload from `first` on, as many as `out` has.
void copy_range(const Bytes& payload, std::size_t first, std::span<float> out, ElementType type,
                const Kernels& with) {
  PayloadReader reader(payload, type, first, out.size());
  float* to = out.data();
  for (auto run = reader.next(); run.size > 0; run = reader.next()) {
    if (type == ElementType::kFloat32) {
      with.copy_past_caches(reinterpret_cast<std::byte*>(to), run.data, run.size * sizeof(float));
    } else {
      widen_payload(type, run, to, with);
    }
    to += run.size;
  }
  with.order_stores();
}

void add_range(const Bytes& payload, std::size_t first, std::span<float> accumulator,
               ElementType type, const Kernels& with) {
  const auto add = type == ElementType::kFloat32
                       ? with.add
                       : of_16_bits(type, with.add_bfloat16, with.add_float16);
  PayloadReader reader(payload, type, first, accumulator.size());
  float* sum = accumulator.data();
  for (auto run = reader.next(); run.size > 0; run = reader.next()) {
    add(sum, run.data, run.size);
    sum += run.size;
  }
}

void check_sizes(const Bytes& payload, std::span<const float> tensor, ElementType type) {
  POSEIDON_CHECK(payload.size() == tensor.size() * element_bytes(type),
                 "payload and tensor differ in size");
}

}  // namespace

void copy_payload(const Bytes& payload, std::span<float> out, ElementType type,
                  const Kernels& with) {
  check_sizes(payload, out, type);
  copy_range(payload, 0, out, type, with);
}

void add_payload(const Bytes& payload, std::span<float> accumulator, ElementType type,
                 const Kernels& with) {
  check_sizes(payload, accumulator, type);
  add_range(payload, 0, accumulator, type, with);
}

void encode_payload(ElementType type, std::span<const float> values, std::span<std::byte> out,
                    Team& team) {
  const std::size_t width = element_bytes(type);
  POSEIDON_CHECK(out.size() == values.size() * width, "room for every element");
  team.for_ranges(values.size(), [&](std::size_t first, std::size_t size) {
    encode_payload(type, values.subspan(first, size), out.subspan(first * width, size * width));
  });
}

void copy_payload(const Bytes& payload, std::span<float> out, ElementType type, Team& team) {
  check_sizes(payload, out, type);
  team.for_ranges(out.size(), [&](std::size_t first, std::size_t size) {
    copy_range(payload, first, out.subspan(first, size), type, kernels());
  });
}

void add_payload(const Bytes& payload, std::span<float> accumulator, ElementType type, Team& team) {
  check_sizes(payload, accumulator, type);
  team.for_ranges(accumulator.size(), [&](std::size_t first, std::size_t size) {
    add_range(payload, first, accumulator.subspan(first, size), type, kernels());
  });
}

}  // namespace poseidon
