#pragma once

// What a message from a server, or from a relay, did to a worker's memory.
//
// Before: sync/routes/ps_route.h uses a message. After: sync/links/chunk_links.h deals with what
// was refused and tells ChunkEvents the rest (sync/links/sync_events.h).

#include <cstddef>
#include <cstdint>
#include <variant>

#include "common/base/ids.h"
#include "common/wire/wire.h"
#include "sync/routes/norm_book.h"

namespace poseidon {

/// The message was not used.
struct Refused {
  Objection objection;
};

/// A chunk's parameters are in their place.
struct ChunkLanded {
  ChunkId chunk;
  LayerIndex layer;
  Iteration version = -1;
  bool exact = false;  ///< in float32, as pull_exact asked
  std::size_t payload_bytes = 0;
  /// So many elements from the layer's first one on have this version.
  std::int64_t leading_elements = 0;
};

/// So are the parameters of all of its layer: this chunk is the last one.
struct LayerLanded : ChunkLanded {};

/// Squares of a chunk's gradient are known.
struct NormsLanded {
  LayerIndex layer;
  std::size_t payload_bytes = 0;
  NormBook::Complete complete;  ///< what was completed with them
};

using Landing = std::variant<Refused, ChunkLanded, LayerLanded, NormsLanded>;

}  // namespace poseidon
