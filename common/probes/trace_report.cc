#include "common/probes/trace_report.h"

#include <algorithm>

namespace poseidon {
namespace {

void to_event(const TraceSpan& span, v1::TraceEvent& event) {
  event.set_stage(static_cast<std::uint32_t>(span.stage));
  event.set_begin_ns(static_cast<std::uint64_t>(span.begin.count()));
  event.set_duration_ns(
      static_cast<std::uint64_t>(std::max(span.end - span.begin, Nanoseconds{0}).count()));
  event.set_iteration(static_cast<std::uint64_t>(span.iteration));
  if (span.layer) event.set_layer(span.layer->value() + 1);
  if (span.chunk) event.set_chunk(span.chunk->value() + 1);
  if (span.peer) event.set_peer(*span.peer + 1);
  event.set_bytes(span.bytes);
  event.set_relay_end(static_cast<std::uint32_t>(span.relay_end));
}

}  // namespace

void begin_trace(const v1::BeginTrace& begin, Tracer& tracer) {
  constexpr std::uint64_t kMaxIteration = std::uint64_t{1} << 62;
  if (begin.trace() == 0 || begin.first_iteration() > kMaxIteration) return;
  tracer.begin(begin.trace(), static_cast<Iteration>(begin.first_iteration()),
               static_cast<Iteration>(std::min(begin.iterations(), kMaxTraceIterations)));
}

bool fetch_trace(const v1::FetchTrace& fetch, Tracer& tracer, v1::TracePiece& piece) {
  const std::optional<TraceSlice> slice =
      tracer.fetch(fetch.trace(), fetch.from(), fetch.discard());
  if (!slice || fetch.discard()) return false;
  piece.set_trace(fetch.trace());
  piece.set_from(fetch.from());
  piece.set_total(slice->total);
  piece.set_dropped(slice->dropped);
  for (const TraceSpan& span : slice->spans) to_event(span, *piece.add_events());
  return true;
}

}  // namespace poseidon
