#pragma once

// Sums of one server for variants with one thread per connection (raw, naive).
//
// Every chunk has one accumulator and two counters: whose turn it is to add, and how many workers
// have been sent the sum. Ranks add in order 0, 1, ..., so the sum has the same bits in every run.

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "bench/transport/workload.h"
#include "common/base/ids.h"
#include "common/memory/aligned_buffer.h"
#include "common/threads/mutex.h"

namespace poseidon::bench {

/// Thread-safe.
class SharedSums {
 public:
  SharedSums(const Plan& plan, ServerIndex self);

  /// The accumulator; null size: this server does not own the chunk.
  std::size_t elements(ChunkId chunk) const;
  std::size_t owned_chunks() const { return owned_chunks_; }

  /// Waits until all lower ranks have added, and the previous sum has been sent to all.
  absl::StatusOr<std::span<float>> begin_add(ChunkId chunk, WorkerRank rank);
  void end_add(ChunkId chunk);
  bool is_complete(ChunkId chunk);
  absl::Status wait_complete(ChunkId chunk);
  std::span<const float> sum(ChunkId chunk) const;  ///< complete and not yet sent by the caller
  void sent(ChunkId chunk);

 private:
  struct Slot {
    FloatBuffer sum;
    std::uint32_t turn = 0;  ///< rank that adds next; the number of workers: complete
    std::uint32_t sent = 0;
  };

  const std::uint32_t workers_;
  std::size_t owned_chunks_ = 0;
  Mutex mutex_;  ///< guards the counters; the thread that has the turn, or sends, may touch the
                 ///< floats
  CondVar changed_;
  std::vector<Slot> slots_;  ///< by ChunkId; empty where another server owns it
};

/// One connection's thread: adds received chunks, and answers complete ones, in order.
class Contributor {
 public:
  /// Puts the payload into the sum; `first`: the sum holds nothing yet.
  using Take = std::function<absl::Status(std::span<float> sum, bool first)>;
  using Send = std::function<absl::Status(ChunkId chunk, std::span<const float> sum)>;

  Contributor(SharedSums* sums, WorkerRank rank) : sums_(sums), rank_(rank) {}

  /// One chunk of this worker. After the last one of an iteration it waits for the sums that are
  /// still missing, for there is nothing else to read.
  absl::Status contribute(ChunkId chunk, const Take& take, const Send& send);

 private:
  SharedSums* const sums_;
  const WorkerRank rank_;
  std::deque<ChunkId> unanswered_;
  std::size_t contributed_ = 0;  ///< of the current iteration
};

/// The obvious loop: what the naive variant and the raw one add with.
inline void add_floats(std::span<const float> from, std::span<float> sum) {
  const float* in = from.data();
  float* out = sum.data();
  for (std::size_t i = 0; i < from.size(); ++i) out[i] += in[i];
}

}  // namespace poseidon::bench
