#pragma once

// What the coordinator asks of a node's tracer, and what the node answers.

#include "common/probes/tracer.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Iterations of one trace at most; beyond it is a mistake.
inline constexpr std::uint64_t kMaxTraceIterations = 1000;

void begin_trace(const v1::BeginTrace& begin, Tracer& tracer);
/// False when there is nothing to answer.
bool fetch_trace(const v1::FetchTrace& fetch, Tracer& tracer, v1::TracePiece& piece);

}  // namespace poseidon
