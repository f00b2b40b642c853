#pragma once

// Encoding of data messages: ordinary protobuf bytes (proto/poseidon/v1/data.proto), handled
// without copying the payload. Pure.
//
// Called by: routes and shards. To send, they encode a prefix and hand prefix and payload to
// transport.h. On receipt, decode_chunk splits Bytes into header and payload, and the receiver
// checks the header against its plan before it touches memory. Calls: common/wire/protobuf_walk.h,
// common/tensor/kernels.h.

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/plan/chunking.h"
#include "common/plan/plan.h"
#include "common/tensor/element_type.h"
#include "common/tensor/kernels.h"
#include "common/threads/team.h"
#include "common/transport/transport.h"

namespace poseidon {

/// Full gRPC method of the data stream ...
inline constexpr std::string_view kExchangeMethod = "/poseidon.v1.ParameterServer/Exchange";
/// ... and of the same messages between a worker and the relay of its group.
inline constexpr std::string_view kLocalAggregationMethod =
    "/poseidon.v1.LocalAggregation/Exchange";

/// Largest message that a receiver accepts: a chunk and its prefix.
inline constexpr std::int64_t kMaxMessageBytes = kMaxChunkBytes + 1024;

enum class ChunkKind : std::uint32_t {
  kPushGradient = 1,
  kInitialise = 2,
  kPull = 3,
  kParameters = 4,
  kNorms = 5,
  kTotals = 6,
};

/// ChunkMessage without its payload; see data.proto for each field.
struct ChunkHeader {
  std::uint32_t protocol_version = kProtocolVersion;
  ChunkKind kind = ChunkKind::kPull;
  Epoch epoch;
  Iteration iteration = 0;
  WorkerRank rank;
  ChunkId chunk;
  std::int64_t offset = 0;  ///< elements from the start of the layer
  ElementType element_type = ElementType::kNone;
  std::uint64_t proof = 0;  ///< of a worker's messages: StreamProofs in plan.h; 0: none
};

struct DecodedChunk {
  ChunkHeader header;
  Bytes payload;  ///< refers into the message
};

/// Everything up to the payload's bytes, its length included. prefix + payload is a valid
/// ChunkMessage.
MessagePrefix encode_prefix(const ChunkHeader& header, std::size_t payload_bytes);

/// Any valid ChunkMessage in any field order and any split into pieces. INVALID_ARGUMENT for bytes
/// that are none. Does not check the values: see check_against_plan.
absl::StatusOr<DecodedChunk> decode_chunk(const Bytes& message);

/// Why a data message was not used. Refused: wrong; the sender is told. Ignored: harmless.
enum class DataRefusal : std::uint8_t {
  kNone,
  kMalformed,     ///< not a ChunkMessage
  kVersion,       ///< another version of Poseidon
  kNoAssignment,  ///< this node has no job now
  kKind,          ///< a kind that this side does not accept
  kEpoch,         ///< a message of another epoch
  kRank,          ///< not a worker of the plan, or not the one that this stream belongs to
  kChunk,         ///< no such chunk, or another server's
  kOffset,        ///< not the chunk's place
  kElementType,
  kSize,            ///< payload is not exactly the chunk
  kIteration,       ///< in the future, or not the requested one
  kNotInitialised,  ///< gradient before the first parameters
  kDuplicate,       ///< counted once already (ignored)
  kLayer,           ///< no such layer, or it does not go by SFB
  kRows,            ///< factors of another number of samples
  kNotFinite,  ///< factors with a NaN or an infinity, or values that the 16-bit wire type cannot
               ///< carry: the run stops
  kNorm,       ///< impossible or inconsistent sums of squares
  kProof,      ///< a stream that does not show that it is its worker's
  kCount,      ///< number of reasons, not one itself
};
const char* data_refusal_name(DataRefusal refusal);  ///< "epoch", "size", ...: the metric's label

/// How often each reason occurred. Any thread.
class RefusalCounts {
 public:
  void add(DataRefusal refusal) {
    counts_[static_cast<std::size_t>(refusal)].fetch_add(1, std::memory_order_relaxed);
  }
  std::uint64_t of(DataRefusal refusal) const {
    return counts_[static_cast<std::size_t>(refusal)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(DataRefusal::kCount)> counts_{};
};

/// A refusal and its message for people.
struct Objection {
  DataRefusal reason = DataRefusal::kNone;
  std::string message;  ///< names the field, its value and the expected value
  explicit operator bool() const { return reason != DataRefusal::kNone; }
};

/// The checks that both sides share: version, epoch, rank and chunk within the plan, offset,
/// element type (as data.proto says for each kind) and size of the payload. Each side itself checks
/// what only it knows: iteration, kind, whether exact parameters were requested.
Objection check_against_plan(const ChunkHeader& header, std::size_t payload_bytes,
                             const Plan& plan);

/// The check of a stream's first message, whose rank is one of the plan's: the stream must show
/// what this node was told to expect of that worker.
Objection check_proof(const Plan& plan, WorkerRank rank, std::uint64_t proof);

// Payloads as numbers. Reading widens 16-bit elements exactly; writing rounds to nearest, ties to
// even (common/tensor/float16.h). Little endian, like every supported machine. Pieces may be split
// anywhere, even within an element.

/// Writes `values` as elements of `type`; `out` must have exactly their bytes (checked), and an
/// address that is a multiple of 2.
void encode_payload(ElementType type, std::span<const float> values, std::span<std::byte> out,
                    const Kernels& with = kernels());

/// Reads a payload from beginning to end without copying, however it is split into pieces. The
/// payload must outlive the reader.
class PayloadReader {
 public:
  explicit PayloadReader(const Bytes& payload, ElementType type = ElementType::kFloat32)
      : pieces_(payload.pieces), width_(element_bytes(type)) {}
  /// Only through the elements [first, first + size).
  PayloadReader(const Bytes& payload, ElementType type, std::size_t first, std::size_t size);

  /// Contiguous elements, at any address. Empty at the end.
  struct Run {
    const std::byte* data = nullptr;
    std::size_t size = 0;  ///< elements
  };
  /// The next contiguous elements. An element that straddles two pieces is assembled and returned
  /// alone. Valid until the next call.
  Run next();

 private:
  absl::Span<const absl::Span<const std::byte>> pieces_;
  std::size_t width_;                                           ///< bytes of an element
  std::size_t at_ = 0;                                          ///< byte of the first piece
  std::size_t left_ = std::numeric_limits<std::size_t>::max();  ///< elements, if there are as many
  std::array<std::byte, sizeof(float)> straddling_{};
};

/// Writes the floats of a run of `type` to `out`, which has room for them.
void widen_payload(ElementType type, PayloadReader::Run run, float* out,
                   const Kernels& with = kernels());

/// Copies a payload into `out`, which is not expected in the caches; sizes must match (checked).
void copy_payload(const Bytes& payload, std::span<float> out,
                  ElementType type = ElementType::kFloat32, const Kernels& with = kernels());
/// Adds a payload to `accumulator`, element by element; sizes must match (checked).
void add_payload(const Bytes& payload, std::span<float> accumulator,
                 ElementType type = ElementType::kFloat32, const Kernels& with = kernels());

// The same, by a team.
void encode_payload(ElementType type, std::span<const float> values, std::span<std::byte> out,
                    Team& team);
void copy_payload(const Bytes& payload, std::span<float> out, ElementType type, Team& team);
void add_payload(const Bytes& payload, std::span<float> accumulator, ElementType type, Team& team);

}  // namespace poseidon
