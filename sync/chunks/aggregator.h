#pragma once

// The sum of one chunk's gradients over all contributors. Pure. One thread calls it. A team
// (common/threads/team.h) does the work on the elements; the bits of the result do not depend on
// the team.
//
// Called by: server/shard/shard.h, and sync/relay/relay.h for a group of workers, with gradients
// that they have checked. Calls: common/tensor/kernels.h. The optimizer takes the sum, or the relay
// sends it to the servers.
//
// Contributors are numbered from 0 in the order in which they are summed: all workers by rank, or,
// with local aggregation, the leaders at the servers and a group's workers at its relay.
//
// Invariants
//  1. Contributions are added in the order of their numbers, in whatever order they arrive, so the
//     sum has the same bits in every run. An early contribution waits in its received message,
//     without a copy, until those before it have been added. The sum is float32 whatever the
//     contributions are: 16-bit elements are widened as they are added.
//  2. Each contributor counts once per round.
//  3. After the first round, with warm buffers, the only memory that grows is that of waiting
//     contributions.
//  4. The last contribution is never written to the sum: `drain` hands the sum and the last
//     contribution to the optimizer, which adds them in its registers. That saves a pass over the
//     chunk (two with one contributor). When a step is held back, `settle` adds the last
//     contribution to the sum and releases its message. A held-back step then takes no more memory
//     than the sums.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/memory/aligned_buffer.h"
#include "common/tensor/element_type.h"
#include "common/tensor/kernels.h"
#include "common/threads/team.h"
#include "common/transport/transport.h"

namespace poseidon {

class Aggregator {
 public:
  /// A sum of `elements` floats over `contributors` contributions in `wire_type`. `settles`: rounds
  /// end with settle and next_round instead of drain. `team` must outlive it.
  Aggregator(std::int64_t elements, std::size_t contributors,
             ElementType wire_type = ElementType::kFloat32, bool settles = false,
             Team* team = sequential_team());
  /// A sum that settles, in memory of the caller, which must outlive it.
  Aggregator(std::span<float> sum, std::size_t contributors, ElementType wire_type, Team* team);

  bool has(std::size_t contributor) const { return contributed_[contributor]; }
  std::uint32_t contributed() const { return contributed_count_; }

  /// Adds the contribution of a contributor that has none in this round yet. The payload's size
  /// must fit.
  void add(std::size_t contributor, const Bytes& payload);

  bool complete() const { return contributed_count_ == contributed_.size(); }

  /// Receives the elements [first, first + size) of the sum as two terms, which are not added yet.
  using Consume =
      absl::FunctionRef<void(std::size_t first, std::size_t size, GradientTerms gradient)>;

  /// The sum of a complete round, in runs that lie within the team's ranges, each valid during its
  /// call only. The team's threads make the calls, under the rules of Team::Body. Begins the next
  /// round.
  void drain(Consume consume);

  /// The whole sum of a complete round, until next_round.
  std::span<const float> settle();
  void next_round();

  /// Bytes of contributions that are held in their messages: they wait for an earlier contributor
  /// or, the last one, for `drain` or `settle`.
  std::int64_t pending_bytes() const { return pending_bytes_; }
  std::int64_t pending_bytes(std::size_t contributor) const {  ///< of one contributor
    return static_cast<std::int64_t>(waiting_[contributor].size());
  }
  std::int64_t memory_bytes() const {
    return own_.size_bytes();
  }  ///< without waiting contributions

 private:
  void add_in_order();
  void drain_range(const Bytes& last, std::size_t first, std::size_t size, Consume consume);

  const std::int64_t elements_;
  const ElementType wire_type_;
  FloatBuffer own_;  ///< memory of the sum; empty when the caller owns it
  std::span<float>
      sum_;  ///< of all contributions but the last; empty with one contributor and drain
  std::vector<bool> contributed_;
  std::vector<Bytes> waiting_;  ///< by contributor; empty unless held
  std::uint32_t contributed_count_ = 0;
  std::size_t next_ = 0;  ///< the first that is not yet in sum_
  std::int64_t pending_bytes_ = 0;
  Team* const team_;
};

}  // namespace poseidon
