#pragma once

// The threads of one kernel, on one thread of the host. A thread of the kernel runs until it waits
// for others of its block; then the next one runs. Their order changes from launch to launch, so
// that a missing barrier shows in the results. Under ThreadSanitizer each of them is a thread of
// its own, synchronised with others only by barriers and shuffles, so that it reports races between
// the threads of a block, as compute-sanitizer's racecheck does.
//
// A certain mistake in a kernel ends the process with the reason: a barrier or a shuffle that some
// threads never reach.

#include <vector_types.h>

#include <cstdint>
#include <functional>

namespace poseidon::emulated {

inline constexpr unsigned kMaxBlockThreads = 1024;
inline constexpr unsigned kWarpThreads = 32;

/// Runs `thread` once for each thread of each block, one block after the other. At most
/// kMaxBlockThreads in a block, whole warps where threads shuffle.
void run_grid(const dim3& grid, const dim3& block, const std::function<void()>& thread);

// ---- for a kernel's threads only ----

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;
// NOLINTEND(readability-identifier-naming)

void barrier();
bool barrier_and(bool predicate);
/// What the lane `offset` further has given, or `bits` where there is none. `mask`: all lanes.
std::uint64_t shuffle_down(unsigned mask, std::uint64_t bits, unsigned offset);

}  // namespace poseidon::emulated
