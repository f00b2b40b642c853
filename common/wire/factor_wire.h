#pragma once

// Encoding of messages between workers: ordinary protobuf bytes (proto/poseidon/v1/factors.proto),
// handled without copying the payload. Pure.
//
// Called by: sync/routes/sfb_route.h. To send, it encodes a prefix and hands prefix and payload to
// transport.h. On receipt, decode_factor splits Bytes into header and payload, and the route checks
// the header against its plan before it touches memory. Calls: common/wire/protobuf_walk.h.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "common/transport/transport.h"
#include "common/wire/wire.h"

namespace poseidon {

/// Full gRPC method of the stream between two workers.
inline constexpr std::string_view kFactorMethod = "/poseidon.v1.FactorExchange/Exchange";

enum class FactorKind : std::uint32_t {
  kHello = 1,
  kOutputGradient = 2,
  kInput = 3,
  kDigest = 4,
  kParameters = 5,
};

/// FactorMessage without its payload; see factors.proto for each field.
struct FactorHeader {
  std::uint32_t protocol_version = kProtocolVersion;
  FactorKind kind = FactorKind::kHello;
  Epoch epoch;
  Iteration iteration = 0;
  WorkerRank rank;
  LayerIndex layer;
  std::int64_t rows = 0;    ///< samples of the sender; of factors only
  std::int64_t offset = 0;  ///< elements, in the sender's dY, its X, or the parameters
  ElementType element_type = ElementType::kNone;
  std::uint64_t digest = 0;  ///< common/tensor/scan.h; 0: none
  std::uint64_t proof = 0;   ///< StreamProofs in plan.h; 0: none
};

struct DecodedFactor {
  FactorHeader header;
  Bytes payload;  ///< refers into the message
};

/// Everything up to the payload's bytes, its length included. prefix + payload is a valid
/// FactorMessage.
MessagePrefix encode_prefix(const FactorHeader& header, std::size_t payload_bytes);

/// Any valid FactorMessage in any field order and any split into pieces. INVALID_ARGUMENT for bytes
/// that are none. Does not check the values: see check_against_plan.
absl::StatusOr<DecodedFactor> decode_factor(const Bytes& message);

/// The factors of a layer that goes by SFB.
struct FactorShape {
  std::int64_t rows = 0;     ///< K, per worker
  std::int64_t outputs = 0;  ///< M
  std::int64_t inputs = 0;   ///< N
  std::int64_t parameters = 0;
  std::int64_t gradient_elements() const { return rows * outputs; }  ///< of one worker's dY
  std::int64_t input_elements() const { return rows * inputs; }      ///< of one worker's X
  bool has_bias() const { return parameters > outputs * inputs; }
};
/// Of a layer of a valid plan; nullopt for a layer that does not go by SFB.
std::optional<FactorShape> factor_shape(const Plan& plan, LayerIndex layer);

/// Number of pieces of `piece_elements` that a tensor is sent in; the last may be shorter.
std::int64_t piece_count(std::int64_t elements, std::int64_t piece_elements);

/// The checks that need the plan alone: version, epoch, rank, layer, and for each kind rows,
/// offset, element type and size of the payload. The route itself checks the iteration and the
/// sender.
Objection check_against_plan(const FactorHeader& header, std::size_t payload_bytes,
                             const Plan& plan, std::int64_t piece_elements);

}  // namespace poseidon
