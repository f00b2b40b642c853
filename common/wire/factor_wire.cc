#include "common/wire/factor_wire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
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
  kLayerField = 6,
  kRowsField = 7,
  kOffsetField = 8,
  kElementTypeField = 9,
  kDigestField = 10,
  kProofField = 11,
  kPayloadField = 15,
};

/// Unknown numbers stay what they are; the checks that follow refuse them by name.
void set_field(FactorHeader& header, std::uint32_t field, std::uint64_t value) {
  switch (field) {
    case kVersionField:
      header.protocol_version = narrow(value);
      break;
    case kKindField:
      header.kind = static_cast<FactorKind>(narrow(value));
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
    case kLayerField:
      header.layer = LayerIndex(narrow(value));
      break;
    case kRowsField:
      header.rows = to_signed(value);
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

template <typename... Words>
Objection object(DataRefusal reason, const Words&... words) {
  return {reason, absl::StrCat(words...)};
}

/// Of what a kind carries: how long the whole tensor is, and whether it has rows. Nothing: no
/// payload.
struct Carried {
  std::int64_t elements = 0;
  std::int64_t rows = 0;
};
Carried carried(FactorKind kind, const FactorShape& shape) {
  switch (kind) {
    case FactorKind::kOutputGradient:
      return {shape.gradient_elements(), shape.rows};
    case FactorKind::kInput:
      return {shape.input_elements(), shape.rows};
    case FactorKind::kParameters:
      return {shape.parameters, 0};
    case FactorKind::kHello:
    case FactorKind::kDigest:
      break;
  }
  return {};
}

/// Rows, offset, element type and size.
Objection check_tensor(const FactorHeader& header, std::size_t payload_bytes, const Carried& wanted,
                       const std::string& layer, std::int64_t piece_elements) {
  if (header.rows != wanted.rows) {
    return object(DataRefusal::kRows, header.rows, " rows for layer ", layer, ", the plan says ",
                  wanted.rows);
  }
  const bool on_a_piece = header.offset >= 0 && header.offset % piece_elements == 0 &&
                          (header.offset < wanted.elements || header.offset == 0);
  if (!on_a_piece) {
    return object(DataRefusal::kOffset, "offset ", header.offset, " for layer ", layer,
                  ", pieces begin at multiples of ", piece_elements, " below ", wanted.elements);
  }
  const ElementType type = wanted.elements > 0 ? ElementType::kFloat32 : ElementType::kNone;
  if (header.element_type != type) {
    return object(DataRefusal::kElementType, "element type ",
                  static_cast<std::uint32_t>(header.element_type), " for layer ", layer,
                  ", expected ", static_cast<std::uint32_t>(type));
  }
  const std::int64_t elements = std::min(piece_elements, wanted.elements - header.offset);
  const std::size_t expected_bytes = static_cast<std::size_t>(elements) * sizeof(float);
  if (payload_bytes != expected_bytes) {
    return object(DataRefusal::kSize, "payload of ", payload_bytes, " bytes for layer ", layer,
                  " at offset ", header.offset, ", expected ", expected_bytes);
  }
  return {};
}

}  // namespace

MessagePrefix encode_prefix(const FactorHeader& header, std::size_t payload_bytes) {
  MessagePrefix out;
  append_field(out, kVersionField, header.protocol_version);
  append_field(out, kKindField, static_cast<std::uint64_t>(header.kind));
  append_field(out, kEpochField, header.epoch.value());
  append_field(out, kIterationField, static_cast<std::uint64_t>(header.iteration));
  append_field(out, kRankField, header.rank.value());
  append_field(out, kLayerField, header.layer.value());
  append_field(out, kRowsField, static_cast<std::uint64_t>(header.rows));
  append_field(out, kOffsetField, static_cast<std::uint64_t>(header.offset));
  append_field(out, kElementTypeField, static_cast<std::uint64_t>(header.element_type));
  protobuf::append_fixed64(out, kDigestField, header.digest);
  protobuf::append_fixed64(out, kProofField, header.proof);
  if (payload_bytes > 0) {
    protobuf::append_tag(out, kPayloadField, protobuf::kLengthDelimited);
    protobuf::append_varint(out, payload_bytes);
  }
  return out;
}

absl::StatusOr<DecodedFactor> decode_factor(const Bytes& message) {
  DecodedFactor decoded;
  decoded.header.protocol_version = 0;  // absent means absent, not ours
  decoded.header.kind = static_cast<FactorKind>(0);
  POSEIDON_RETURN_IF_ERROR(protobuf::walk_message(
      message, "FactorMessage", kPayloadField, decoded.payload,
      [&decoded](std::uint32_t field, protobuf::WireType type, std::uint64_t value) {
        if (type == protobuf::kVarint) set_field(decoded.header, field, value);
        if (type != protobuf::kFixed64) return;
        if (field == kDigestField) decoded.header.digest = value;
        if (field == kProofField) decoded.header.proof = value;
      }));
  return decoded;
}

std::optional<FactorShape> factor_shape(const Plan& plan, LayerIndex layer) {
  const PlanLayer& spec = plan.layers[layer.value()];
  if (spec.scheme != Scheme::kSfb) return std::nullopt;
  return FactorShape{.rows = plan.batch_size,
                     .outputs = spec.shape[0],
                     .inputs = spec.shape[1],
                     .parameters = spec.parameters};
}

std::int64_t piece_count(std::int64_t elements, std::int64_t piece_elements) {
  return (elements + piece_elements - 1) / piece_elements;
}

Objection check_against_plan(const FactorHeader& header, std::size_t payload_bytes,
                             const Plan& plan, std::int64_t piece_elements) {
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
  const auto kind = static_cast<std::uint32_t>(header.kind);
  if (kind < static_cast<std::uint32_t>(FactorKind::kHello) ||
      kind > static_cast<std::uint32_t>(FactorKind::kParameters)) {
    return object(DataRefusal::kKind, "kind ", kind, " is not for a worker");
  }
  if (header.kind == FactorKind::kHello) {
    return check_tensor(header, payload_bytes, {}, "(none)", piece_elements);
  }
  const auto shape =
      header.layer.value() < plan.layers.size() ? factor_shape(plan, header.layer) : std::nullopt;
  if (!shape) {
    return object(DataRefusal::kLayer, "layer ", header.layer.value(),
                  header.layer.value() < plan.layers.size()
                      ? " does not go by SFB"
                      : absl::StrCat(", the plan has ", plan.layers.size(), " layers"));
  }
  return check_tensor(header, payload_bytes, carried(header.kind, *shape),
                      plan.layers[header.layer.value()].name, piece_elements);
}

}  // namespace poseidon
