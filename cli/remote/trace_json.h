#pragma once

// A trace in Chrome's trace event format (JSON), which Perfetto and chrome://tracing show. Pure.
//
// Called by: trace_command.h. Calls: cli/remote/trace_data.h.

#include <functional>
#include <string_view>

#include "cli/remote/trace_data.h"

namespace poseidon {

/// Calls `write` with the file's text, piece by piece. One process per node, one row per kind of
/// work; docs/tracing.md says how to read it.
void write_trace_json(const TraceData& data, const std::function<void(std::string_view)>& write);

}  // namespace poseidon
