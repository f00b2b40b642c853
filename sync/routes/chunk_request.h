#pragma once

// What a route is to ask of those who have a chunk, for a caller that does not have whole layers at
// a time.
//
// Before: sync/relay/relay.h decides what to ask for. After: sync/links/chunk_links.h hands it to
// sync/routes/ps_route.h and sends.

#include <cstdint>

#include "common/base/ids.h"

namespace poseidon {

struct ChunkRequest {
  enum class Kind : std::uint8_t {
    kInitialise,  ///< take the initial parameters, which are in the chunk's memory
    kPush,        ///< take the gradient of `iteration`, which is there
    kPullExact,   ///< give the float32 parameters of the version that is here
  };
  Kind kind = Kind::kPush;
  ChunkId chunk;
  Iteration iteration = 0;  ///< of a push
};

}  // namespace poseidon
