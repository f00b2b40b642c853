#pragma once

// Answers the coordinator's requests to a node's tracer.
//
// Called by: common/node/control_client.h. Calls: common/probes/tracer.h.

#include "common/probes/tracer.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Most iterations of one trace; a larger number is a mistake.
inline constexpr std::uint64_t kMaxTraceIterations = 1000;

void begin_trace(const v1::BeginTrace& begin, Tracer& tracer);
/// False when there is no answer.
bool fetch_trace(const v1::FetchTrace& fetch, Tracer& tracer, v1::TracePiece& piece);

}  // namespace poseidon
