#pragma once

// How much of early contributions is held, and whom that holds back. Pure.
// Before: server/shard/shard.h and sync/relay/relay.h count what waits in their sums. After:
// sync/chunks/chunk_service.h stops reading from who is ahead.
//
// A contributor that is ahead of lower ones waits while neither its own share of the limit has room
// for what is held of it nor the common one: half of the limit is divided equally, the other half
// is for whoever is ahead. Were all of it common, the first to arrive would fill it, and then only
// one could send at a time; were none, those who are ahead would leave their links idle while
// memory is free. The lowest one whose gradients are not all in may always send, because what it
// sends is summed at once: so somebody always makes progress.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sync/chunks/aggregator.h"

namespace poseidon {

class EarlyBudget {
 public:
  /// `chunks`: how many sums each of the contributors gives something to in an iteration.
  EarlyBudget(std::size_t contributors, std::size_t chunks, std::int64_t limit_bytes);

  /// `contributor` gives one chunk of the iteration in progress: `change` adds it to `sum` and does
  /// what follows from it. What waits in the sum afterwards is counted.
  template <typename Change>
  void contribute(const Aggregator& sum, std::size_t contributor, Change change) {
    count(sum, -1);
    ++contributed_[contributor];
    change();
    count(sum, 1);
  }
  /// One chunk of it has all contributions, and what came of them.
  void chunk_done();

  bool may_read(std::size_t contributor) const;
  std::int64_t pending_bytes() const { return pending_bytes_; }

 private:
  /// What waits in this sum is counted (`sign` 1), or no longer (-1).
  void count(const Aggregator& sum, int sign);

  const std::int64_t limit_bytes_;
  const std::size_t chunks_;
  const std::int64_t own_share_;          ///< of the limit: bytes of one contributor
  std::vector<std::size_t> contributed_;  ///< chunks of the current iteration that are in
  std::size_t done_chunks_ = 0;           ///< of the current iteration
  std::vector<std::int64_t> pending_of_;  ///< bytes of each that wait, in all sums
  std::int64_t pending_bytes_ = 0;        ///< all of them
  std::int64_t common_bytes_ = 0;         ///< held of all beyond their own shares
};

}  // namespace poseidon
