#pragma once

// Records the events of one process for a few iterations, when the operator asks for a trace
// (docs/tracing.md).
//
// Called by: the data path, which records when each part of its work began and ended;
// common/probes/trace_report.h, through which the coordinator fetches the events in pieces. Calls:
// nothing.
//
// Costs one relaxed load while no trace runs. During a trace an event costs a few atomic operations
// and no lock.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/probes/stage.h"
#include "common/threads/mutex.h"

namespace poseidon {

/// One part of the work on one iteration. Times are the machine's monotonic clock's.
struct TraceSpan {
  Stage stage = Stage::kCount;
  RelayEnd relay_end = RelayEnd::kNone;
  Nanoseconds begin{0}, end{0};
  Iteration iteration = 0;
  std::optional<LayerIndex> layer = std::nullopt;
  std::optional<ChunkId> chunk = std::nullopt;
  /// Worker: ServerIndex for chunks, else WorkerRank. Server: WorkerRank.
  std::optional<std::uint32_t> peer = std::nullopt;
  std::size_t bytes = 0;  ///< that were moved
};

/// A part of the recorded events.
struct TraceSlice {
  std::vector<TraceSpan> spans;
  std::size_t total = 0;    ///< events in all
  std::size_t dropped = 0;  ///< events that did not fit
};

class Tracer {
 public:
  /// Events of one trace: 4 MiB while it is taken.
  static constexpr std::size_t kMaxEvents = 1 << 16;
  /// Events that are fetched at a time; about 100 kB on the wire.
  static constexpr std::size_t kSliceEvents = 2048;

  Tracer() = default;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // ---- any thread ----
  /// Whether a trace is being taken: lets a caller leave out what only record() needs.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  /// Records the span if a trace runs, the iteration was requested (or the stage belongs to none),
  /// and there is room.
  void record(const TraceSpan& span) {
    if (on()) keep(span);
  }

  /// Starts recording; drops the events of an earlier trace. `trace`: not 0.
  void begin(std::uint64_t trace, Iteration first, Iteration iterations) {
    const MutexLock lock(mutex_);
    stop();
    trace_ = trace;
    first_ = first;
    end_ = first + iterations;
    next_ = 0;
    spans_.assign(kMaxEvents, TraceSpan{});
    on_.store(true);
  }

  /// Ends the recording, if any, and drops its events.
  void end() {
    const MutexLock lock(mutex_);
    forget();
  }

  /// Ends the recording and returns events. Frees the memory with the last event or with `discard`.
  /// nullopt when `trace` is not in memory.
  std::optional<TraceSlice> fetch(std::uint64_t trace, std::size_t from, bool discard = false) {
    const MutexLock lock(mutex_);
    if (trace == 0 || trace != trace_) return std::nullopt;
    stop();
    const std::size_t recorded = next_;
    TraceSlice slice;
    slice.total = std::min(recorded, spans_.size());
    slice.dropped = recorded - slice.total;
    from = std::min(from, slice.total);
    const std::size_t end = std::min(from + kSliceEvents, slice.total);
    slice.spans.assign(spans_.begin() + static_cast<std::ptrdiff_t>(from),
                       spans_.begin() + static_cast<std::ptrdiff_t>(end));
    if (discard || end == slice.total) forget();
    return slice;
  }

 private:
  void forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stop();
    trace_ = 0;
    std::vector<TraceSpan>().swap(spans_);
  }
  void keep(const TraceSpan& span) {
    // Sequentially consistent, as in stop(): either this sees that it is off, or stop() sees us.
    writers_.fetch_add(1);
    if (on_.load() && wants(span)) {
      const std::size_t at = next_.fetch_add(1, std::memory_order_relaxed);
      if (at < spans_.size()) spans_[at] = span;
    }
    writers_.fetch_sub(1, std::memory_order_release);
  }

  bool wants(const TraceSpan& span) const {
    return !is_of_iteration(span.stage) || (span.iteration >= first_ && span.iteration < end_);
  }

  void stop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    on_.store(false);
    while (writers_.load() != 0) std::this_thread::yield();
  }

  std::atomic<bool> on_{false};
  /// Threads inside keep(). Ending the recording waits for them, some nanoseconds.
  std::atomic<int> writers_{0};
  std::atomic<std::size_t> next_{0};  ///< beyond kMaxEvents: that many were dropped

  Mutex mutex_;  ///< for begin and fetch
  std::uint64_t trace_ ABSL_GUARDED_BY(mutex_) = 0;
  // Changed only under mutex_ and while no thread is inside keep(), which reads them without it.
  Iteration first_ = 0, end_ = 0;
  std::vector<TraceSpan> spans_;
};

}  // namespace poseidon
