#pragma once

// A whole data path in one thread: real Syncers and real ShardServices on the in-memory network,
// with workers whose compute is a random delay. One seed decides everything that happens.

#include <cstdint>
#include <string>

namespace poseidon::sim {

struct Outcome {
  bool ok = false;
  std::string failure;  ///< which invariant broke, where, at which step
  std::int64_t steps = 0;
  std::int64_t cuts = 0, duplicates = 0, reorders = 0;
  std::int64_t relay_pauses = 0;  ///< how often a relay stopped reading from one of its group
  std::string description;        ///< the cluster that the seed stands for
};

/// Builds a cluster from the seed (workers and their groups, servers, layers by PS and SFB, chunks,
/// optimizer, faults), trains it for some iterations and checks after every step:
///  1. forward(l) of iteration i reads exactly the parameters that a single process would have
///  after
///     i steps with gradients summed in rank order, bit for bit (so each contribution counts once),
///     with the same rounding where a 16-bit type travels; the exact parameters that it fetches in
///     the end are the optimizer's;
///  2. versions never go back, no worker is ahead of a server, no server more than one step ahead
///  of
///     a worker;
///  3. queues and held contributions stay within their bounds;
///  4. the run ends within its virtual deadline: nobody waits for ever.
Outcome simulate(std::uint64_t seed);

}  // namespace poseidon::sim
