#pragma once

// A port of the data path under attack, and almost valid messages to it.

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "common/wire/norm_wire.h"
#include "common/wire/wire.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {

/// Ours is the second worker of three: it accepts the first one's stream, and connects to the last.
inline constexpr std::uint32_t kWorkers = 3;
inline constexpr std::int64_t kChunkElements = 4;

/// Numbers that training has, and numbers that it must not have.
inline constexpr std::array<float, 8> kNumbers = {0.5F,
                                                  -1.0F,
                                                  0.0F,
                                                  1e30F,
                                                  1e-40F,
                                                  std::numeric_limits<float>::infinity(),
                                                  std::numeric_limits<float>::quiet_NaN(),
                                                  std::numeric_limits<float>::max()};

struct Words {
  MessagePrefix prefix;
  std::string payload;
};

inline std::string encoded(ElementType type, std::size_t elements, float value) {
  const std::vector<float> values(elements, value);
  std::string bytes(elements * element_bytes(type), '\0');
  // NaN and too large values are encoded as they are: an attacker does not check.
  if (!bytes.empty()) encode_payload(type, values, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// The port under attack.
class Port {
 public:
  virtual ~Port() = default;
  /// An almost valid message.
  virtual Words believable(Input& input) = 0;
  /// Does something that the job would do by itself.
  virtual void act(std::uint8_t how) = 0;
  virtual void check() const {}
  void stream_opened() { ++streams_; }

 protected:
  /// Bytes of early gradients. Beyond the limit, one message of each worker may be in flight when
  /// its reading stops, and each new stream brings one before its worker is known.
  std::int64_t early_bytes_within(std::int64_t limit) const {
    return limit +
           (kWorkers + streams_) * kChunkElements * static_cast<std::int64_t>(sizeof(float));
  }

 private:
  std::int64_t streams_ = 0;
};

/// An almost valid message about a chunk of the plan.
inline Words believable_chunk(Input& input, const Plan& plan) {
  const std::uint8_t how = input.byte();
  const std::uint8_t where = input.byte();
  const std::uint8_t what = input.byte();
  ChunkHeader header;
  header.kind = static_cast<ChunkKind>(1 + how % 7);
  header.epoch = Epoch(plan.epoch.value() + (what == 255 ? 1 : 0));
  header.iteration = what / 16 % 8;
  header.rank = WorkerRank(
      where % (kWorkers + 1) == kWorkers && what % 16 != 15 ? 0 : where % (kWorkers + 1));
  const std::size_t chunk = where / 4 % plan.chunks.size();
  header.chunk = ChunkId(static_cast<std::uint32_t>(what == 254 ? plan.chunks.size() : chunk));
  header.offset = plan.chunks[chunk].offset + (what == 253 ? 1 : 0);
  const auto elements =
      static_cast<std::size_t>(plan.chunks[chunk].elements + (what == 252 ? 1 : 0));
  const float value = kNumbers[how / 32];
  const bool of_norms = header.kind == ChunkKind::kNorms || header.kind == ChunkKind::kTotals;
  std::string payload;
  if (header.kind == ChunkKind::kPushGradient || header.kind == ChunkKind::kParameters) {
    header.element_type = plan.wire_type;
  } else if (header.kind == ChunkKind::kInitialise) {
    header.element_type = ElementType::kFloat32;
  }
  if (what == 251) header.element_type = ElementType::kBfloat16;
  if (what == 250) header.element_type = ElementType::kFloat32;
  if (header.element_type != ElementType::kNone && header.kind != ChunkKind::kPull) {
    payload = encoded(header.element_type, elements, value);
  } else if (of_norms) {
    const std::vector<TensorSquares> tensor = {{.gradient = value, .parameters = value}};
    payload = header.kind == ChunkKind::kNorms
                  ? encode_norms(tensor)
                  : encode_totals({.all_gradients = value, .tensors = tensor});
  }
  return {encode_prefix(header, payload.size()), payload};
}

}  // namespace poseidon::fuzz
