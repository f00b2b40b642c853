#pragma once

// The sum of one chunk's gradients over all who contribute. Pure. One thread calls it; what it does
// to the elements is done by a team (common/threads/team.h), with the same bits whatever team that
// is.
//
// Before: server/shard/shard.h, or the relay of a group of workers (sync/relay/relay.h), checked
// the message. After: the optimizer takes the sum, or the relay sends it on.
//
// Contributors are numbered from 0 in the order in which they are summed: all workers by rank, or,
// with local aggregation, the leaders at the servers and a group's workers at its relay.
//
// Invariants
//  1. Contributions are added in that order whatever order they arrive in, so the sum has the same
//     bits in every run. One that is early waits as it arrived (its bytes are referred to, not
//     copied) until those before it are in. The sum is float32 whatever the contributions are:
//     16-bit elements are widened as they are added.
//  2. Each contributor counts once per round.
//  3. Nothing is allocated after the first round once buffers are warm, except by what waits.
//  4. The last contribution is never written to the sum: `drain` hands both to the
//     optimizer, which adds them in its registers. That saves a pass over the chunk (two with
//     one contributor). Where the step is held back, `settle` adds it after all and nothing of it
//     is kept: what waits for a step then takes no more memory than the sums.

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
  /// A sum of `elements` floats over so many contributors, who give them in `wire_type`.
  /// `settles`: rounds end with settle and next_round instead of drain. `team` outlives it.
  Aggregator(std::int64_t elements, std::size_t contributors,
             ElementType wire_type = ElementType::kFloat32, bool settles = false,
             Team* team = sequential_team());
  /// One that settles, in memory of somebody else, who keeps it for as long.
  Aggregator(std::span<float> sum, std::size_t contributors, ElementType wire_type, Team* team);

  bool has(std::size_t contributor) const { return contributed_[contributor]; }
  std::uint32_t contributed() const { return contributed_count_; }

  /// Counts a contribution, the first of this contributor; the payload's size must fit.
  void add(std::size_t contributor, const Bytes& payload);

  bool complete() const { return contributed_count_ == contributed_.size(); }

  /// Receives the elements [first, first + size) of the sum, as the two terms that they still are.
  using Consume =
      absl::FunctionRef<void(std::size_t first, std::size_t size, GradientTerms gradient)>;

  /// The sum of a complete round, in runs that lie within the team's ranges, each valid during its
  /// call only. The team's threads make the calls, under the rules of Team::Body. Begins the next
  /// round.
  void drain(Consume consume);

  /// The whole sum of a complete round, until next_round.
  std::span<const float> settle();
  void next_round();

  /// Bytes of contributions that are held as they arrived: they wait for one before them, or, the
  /// last, for `drain` or `settle`.
  std::int64_t pending_bytes() const { return pending_bytes_; }
  std::int64_t pending_bytes(std::size_t contributor) const {  ///< those of one
    return static_cast<std::int64_t>(waiting_[contributor].size());
  }
  std::int64_t memory_bytes() const { return own_.size_bytes(); }  ///< without what waits

 private:
  void add_in_order();
  void drain_range(const Bytes& last, std::size_t first, std::size_t size, Consume consume);

  const std::int64_t elements_;
  const ElementType wire_type_;
  FloatBuffer own_;       ///< memory of the sum, unless it is somebody else's
  std::span<float> sum_;  ///< of all but the last; empty with one contributor who is drained
  std::vector<bool> contributed_;
  std::vector<Bytes> waiting_;  ///< empty unless held
  std::uint32_t contributed_count_ = 0;
  std::size_t next_ = 0;  ///< the first that is not yet in sum_
  std::int64_t pending_bytes_ = 0;
  Team* const team_;
};

}  // namespace poseidon
