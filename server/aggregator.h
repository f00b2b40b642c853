#pragma once

// The sum of one chunk's gradients over all workers. Pure, one thread only.
//
// Before: server/shard.h checked the message. After: the optimizer takes the sum.
//
// Invariants
//  1. Contributions are added in rank order 0, 1, ..., P1-1 whatever order they arrive in, so
//     the sum has the same bits in every run. One that is early waits as it arrived (its bytes
//     are referred to, not copied) until the ranks before it are in. The sum is float32
//     whatever the contributions are: 16-bit elements are widened as they are added.
//  2. Each rank counts once per round.
//  3. Nothing is allocated after the first round once buffers are warm, except by what waits.
//  4. The last rank's contribution is never written to the sum: `drain` hands both to the
//     optimizer, which adds them in its registers. That saves a pass over the chunk (two with
//     one worker). Where the step is held back, `settle` adds it after all and nothing of it is
//     kept: what waits for a step then takes no more memory than the sums.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/aligned_buffer.h"
#include "common/element_type.h"
#include "common/ids.h"
#include "common/kernels.h"
#include "common/transport.h"

namespace poseidon {

class Aggregator {
 public:
  /// A sum of `elements` floats over `workers` ranks, whose contributions are of `wire_type`.
  /// `settles`: rounds end with settle and next_round instead of drain.
  Aggregator(std::int64_t elements, std::uint32_t workers,
             ElementType wire_type = ElementType::kFloat32, bool settles = false);

  bool has(WorkerRank rank) const { return contributed_[rank.value()]; }
  std::uint32_t contributed() const { return contributed_count_; }

  /// Counts a contribution of `rank`, which must not have one yet; the payload's size must fit.
  void add(WorkerRank rank, const Bytes& payload);

  bool complete() const { return contributed_count_ == contributed_.size(); }

  /// Receives the elements [first, first + size) of the sum, as the two terms that they still are.
  using Consume =
      absl::FunctionRef<void(std::size_t first, std::size_t size, GradientTerms gradient)>;

  /// The sum of a complete round, in ascending runs, each valid during its call only. Begins the
  /// next round.
  void drain(Consume consume);

  /// The whole sum of a complete round, until next_round.
  std::span<const float> settle();
  void next_round();

  /// Bytes of contributions that are held as they arrived: they wait for a rank before them, or,
  /// the last rank's, for `drain`.
  std::int64_t pending_bytes() const { return pending_bytes_; }
  std::int64_t pending_bytes(WorkerRank rank) const {  ///< those of one rank
    return static_cast<std::int64_t>(waiting_[rank.value()].size());
  }
  std::int64_t memory_bytes() const { return sum_.size_bytes(); }  ///< without what waits

 private:
  void add_in_order();

  const std::int64_t elements_;
  const ElementType wire_type_;
  FloatBuffer sum_;  ///< of all ranks but the last; empty with one worker
  std::vector<bool> contributed_;
  std::vector<Bytes> waiting_;  ///< by rank; empty unless held
  std::uint32_t contributed_count_ = 0;
  std::uint32_t next_rank_ = 0;  ///< first rank not yet in sum_
  std::int64_t pending_bytes_ = 0;
};

}  // namespace poseidon
