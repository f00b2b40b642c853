#pragma once

// Who has the chunks that workers ask for on their streams: a server's shard, or the relay of a
// group of workers. Pure: message in, decision out.
//
// Before: sync/chunks/chunk_service.h decoded a message. After: it sends what the decision says.

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

/// Early contributions (of ranks after a missing one) that a holder keeps before it stops reading
/// from those who are ahead.
inline constexpr std::int64_t kDefaultPendingLimitBytes = std::int64_t{256} << 20;

/// What to send because of a message: the chunk's parameters, to one worker or to all.
struct Delivery {
  ChunkId chunk;
  std::optional<WorkerRank> only;  ///< nobody else; all workers when absent
  bool exact = false;              ///< the float32 parameters, not their 16-bit copy
  bool norms = false;              ///< not the parameters, but norms(); to those who hear of them
};

/// A chunk's parameters as a message carries them.
struct ChunkPayload {
  ElementType type = ElementType::kFloat32;
  absl::Span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< whoever holds it finds the bytes unchanged
};

struct ChunkDecision {
  Objection objection;               ///< none: the message was used
  std::optional<Delivery> delivery;  ///< may come with a duplicate: the sender missed the answer
};

class ChunkHolder {
 public:
  virtual ~ChunkHolder() = default;

  /// One decoded message of a worker.
  virtual ChunkDecision on_message(const DecodedChunk& message) = 0;

  /// Whether reading from this rank, which has sent a valid message, may go on.
  virtual bool may_read(WorkerRank rank) const = 0;

  /// What goes to workers of an initialised chunk: the parameters in the plan's wire type, or
  /// `exact` in float32.
  virtual ChunkPayload payload(ChunkId chunk, bool exact) const = 0;
  virtual Iteration version(ChunkId chunk) const = 0;

  struct Norms {
    Iteration iteration = -1;  ///< -1: none yet
    const std::vector<TensorSquares>* parts = nullptr;
  };
  /// Squares of the newest gradient that was complete.
  virtual Norms norms(ChunkId chunk) const = 0;

  virtual const Plan& plan() const = 0;
  /// Bytes of contributions that wait for a rank before them.
  virtual std::int64_t pending_bytes() const = 0;
  /// With whom it begins to give chunks out (common/wire/fan_out.h): another number, another
  /// worker.
  virtual std::uint32_t fan_out_start() const = 0;
};

}  // namespace poseidon
