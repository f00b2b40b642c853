#pragma once

// The interface of a holder of chunks: a server's shard, or the relay of a group of workers. Pure:
// message in, decision out.
//
// Called by: sync/chunks/chunk_service.h, with each decoded message; it sends what the decision
// says. Calls: nothing; server/shard/shard.h and sync/relay/relay.h implement it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "common/wire/norm_wire.h"
#include "common/wire/wire.h"

namespace poseidon {

/// Bytes of early contributions (of ranks after a missing one) that a holder keeps before it stops
/// reading from the ranks that are ahead.
inline constexpr std::int64_t kDefaultPendingLimitBytes = std::int64_t{256} << 20;

/// What to send in answer to a message: the chunk's parameters, to one worker or to all.
struct Delivery {
  ChunkId chunk;
  std::optional<WorkerRank> only;  ///< to this worker only; absent: to all
  bool exact = false;              ///< the float32 parameters, not their 16-bit copy
  bool norms = false;              ///< send norms() instead, to the workers that add norms up
};

/// A chunk's parameters as a message carries them.
struct ChunkPayload {
  ElementType type = ElementType::kFloat32;
  absl::Span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< the bytes do not change while it is held
};

struct ChunkDecision {
  Objection objection;               ///< none: the message was used
  std::optional<Delivery> delivery;  ///< a duplicate may have one: the sender missed the answer
};

class ChunkHolder {
 public:
  virtual ~ChunkHolder() = default;

  /// One decoded message of a worker.
  virtual ChunkDecision on_message(const DecodedChunk& message) = 0;

  /// Whether the service may read on from this rank, which has sent a valid message.
  virtual bool may_read(WorkerRank rank) const = 0;

  /// The parameters of an initialised chunk: in the plan's wire type, or in float32 when `exact`.
  virtual ChunkPayload payload(ChunkId chunk, bool exact) const = 0;
  virtual Iteration version(ChunkId chunk) const = 0;

  struct Norms {
    Iteration iteration = -1;  ///< -1: none yet
    const std::vector<TensorSquares>* parts = nullptr;
  };
  /// Sums of squares of the newest complete gradient.
  virtual Norms norms(ChunkId chunk) const = 0;

  virtual const Plan& plan() const = 0;
  /// Bytes of contributions that wait for a lower rank.
  virtual std::int64_t pending_bytes() const = 0;
  /// The worker that gets a chunk first (common/wire/fan_out.h): different numbers start at
  /// different workers.
  virtual std::uint32_t fan_out_start() const = 0;
};

}  // namespace poseidon
