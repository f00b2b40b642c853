#pragma once

// Limits the memory of early contributions, and decides which contributors have to wait. Pure.
//
// Called by: server/shard/shard.h and sync/relay/relay.h, which count what waits in their sums;
// sync/chunks/chunk_service.h stops reading from a contributor that has to wait. Calls:
// sync/chunks/aggregator.h.
//
// Half of the limit is divided equally among the contributors; the other half is common to all that
// are ahead. A contributor waits when neither its own share nor the common half has room for its
// early contributions. With a common half only, the first to arrive would fill it, and only one
// contributor at a time could send. With shares only, links of contributors that are ahead would be
// idle while memory is free. The lowest contributor whose gradients are not complete may always
// send, because its gradients are summed at once; so there is always progress.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sync/chunks/aggregator.h"

namespace poseidon {

class EarlyBudget {
 public:
  /// `chunks`: the number of sums that each contributor adds to in an iteration.
  EarlyBudget(std::size_t contributors, std::size_t chunks, std::int64_t limit_bytes);

  /// Counts one chunk of `contributor` in the current iteration. `change` adds it to `sum` and does
  /// everything that follows from that; then the sum's waiting bytes are counted.
  template <typename Change>
  void contribute(const Aggregator& sum, std::size_t contributor, Change change) {
    count(sum, -1);
    ++contributed_[contributor];
    change();
    count(sum, 1);
  }
  /// One chunk of the current iteration is complete and has been stepped or sent.
  void chunk_done();

  bool may_read(std::size_t contributor) const;
  std::int64_t pending_bytes() const { return pending_bytes_; }

 private:
  /// Adds (`sign` 1) or subtracts (-1) the bytes that wait in this sum.
  void count(const Aggregator& sum, int sign);

  const std::int64_t limit_bytes_;
  const std::size_t chunks_;
  const std::int64_t own_share_;          ///< of the limit: bytes of one contributor
  std::vector<std::size_t> contributed_;  ///< by contributor: its chunks of the current iteration
  std::size_t done_chunks_ = 0;           ///< of the current iteration
  std::vector<std::int64_t> pending_of_;  ///< by contributor: its waiting bytes in all sums
  std::int64_t pending_bytes_ = 0;        ///< of all contributors
  std::int64_t common_bytes_ = 0;         ///< used beyond the own shares, by all
};

}  // namespace poseidon
