#pragma once

// The effect of a message from a server or a relay on a worker's memory.
//
// Called by: sync/routes/ps_route.h, which returns it for each message. Calls: nothing;
// sync/links/chunk_links.h handles what was refused and reports the rest to ChunkEvents
// (sync/links/sync_events.h).

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
  /// Number of elements, from the layer's first one on, that have this version.
  std::int64_t leading_elements = 0;
};

/// The parameters of the whole layer are in place: this chunk was the last one.
struct LayerLanded : ChunkLanded {};

/// The sums of squares of a chunk's gradient have arrived.
struct NormsLanded {
  LayerIndex layer;
  std::size_t payload_bytes = 0;
  NormBook::Complete complete;  ///< steps that they complete
};

using Landing = std::variant<Refused, ChunkLanded, LayerLanded, NormsLanded>;

}  // namespace poseidon
