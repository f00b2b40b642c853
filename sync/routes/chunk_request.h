#pragma once

// A request for one chunk, for a caller of the route that does not have whole layers at a time.
//
// Called by: sync/relay/relay.h, which decides what to request. Calls: nothing;
// sync/links/chunk_links.h passes the requests to sync/routes/ps_route.h and sends the messages.

#include <cstdint>

#include "common/base/ids.h"

namespace poseidon {

struct ChunkRequest {
  enum class Kind : std::uint8_t {
    kInitialise,  ///< send the initial parameters, which are in the chunk's memory
    kPush,        ///< send the gradient of `iteration`, which is in the chunk's memory
    kPullExact,   ///< ask for the float32 parameters of the current version
  };
  Kind kind = Kind::kPush;
  ChunkId chunk;
  Iteration iteration = 0;  ///< for kPush
};

}  // namespace poseidon
