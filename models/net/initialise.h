#pragma once

// Computes the initial values of a network's parameters.
//
// Called by: workers, for a resolved network (models/net/net.h). Calls: common/base/random.h.

#include <cstdint>
#include <functional>
#include <span>

#include "common/base/ids.h"
#include "models/net/net.h"

namespace poseidon {

/// Calls body(begin, end) on disjoint ranges that cover 0..items, on any threads, and returns when
/// all are done.
using RangeRunner = std::function<void(
    std::int64_t items, const std::function<void(std::int64_t begin, std::int64_t end)>& body)>;
/// Runs everything on the calling thread.
void run_here(std::int64_t items, const std::function<void(std::int64_t, std::int64_t)>& body);

/// The same, but one piece of at most `piece` items after the other, and none any more once
/// `stopped` says so: then the rest of the values are not made, and none is to be used.
RangeRunner until_stopped(RangeRunner run, std::int64_t piece, std::function<bool()> stopped);
/// A piece of so many values takes a core a fraction of a second.
inline constexpr std::int64_t kInitialisePiece = std::int64_t{4} << 20;

/// Gives every parameter its first value from its Initialiser. Each tensor is drawn from
/// mix_seed(seed, FNV-1a hash of "<layer>.<tensor>"), so it depends neither on the other layers nor
/// on how `run` divides the work (a hundred million values take one core seconds). Pure.
void initialise_parameters(const NetSpec& net, std::uint64_t seed,
                           const std::function<std::span<float>(LayerIndex)>& parameters,
                           const RangeRunner& run = run_here);

}  // namespace poseidon
