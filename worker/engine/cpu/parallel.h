#pragma once

// Loops on the thread pool that oneDNN uses (libgomp), without compiler support for OpenMP, so that
// GCC and Clang builds run the same code.
//
// Called by: the CPU device's operators, its SFB steps, and worker/native_framework.h for initial
// values. Calls: the loop's body, on the calling thread and the pool's threads; it waits for all.

#include <cstdint>

namespace poseidon {

/// Threads of OpenMP regions started by the calling thread from now on. Needs threads > 0.
void set_openmp_threads(int threads);

namespace internal {
using RangeFunction = void (*)(const void* body, std::int64_t begin, std::int64_t end);
void run_ranges(std::int64_t items, std::int64_t grain, RangeFunction function, const void* body);
}  // namespace internal

/// Elements of a loop of a few operations each; fewer are not worth waking a thread.
inline constexpr std::int64_t kGrainElements = 16384;

/// Calls body(begin, end) on disjoint ranges that cover 0..items; below `grain` items per thread it
/// takes fewer threads. The body must not throw, and items must not depend on each other: then the
/// result does not depend on the number of threads.
template <typename Body>
void parallel_for(std::int64_t items, std::int64_t grain, const Body& body) {
  internal::run_ranges(
      items, grain,
      [](const void* untyped, std::int64_t begin, std::int64_t end) {
        (*static_cast<const Body*>(untyped))(begin, end);
      },
      &body);
}

}  // namespace poseidon
