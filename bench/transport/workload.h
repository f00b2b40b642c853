#pragma once

// The work of every variant: one plan, one worker's memory, and the expected result. Pure.
//
// Called by: the two ends of a variant (variant.h), which move the chunks; the command line sets
// the Shape. Calls: common/plan.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/memory/aligned_buffer.h"
#include "common/plan/plan.h"

namespace poseidon::bench {

struct Shape {
  std::uint32_t workers = 1;
  std::uint32_t servers = 1;
  std::int64_t mib = 256;  ///< of float32, per worker and iteration
  std::int64_t chunk_bytes = std::int64_t{2} << 20;
  /// What the production classes send; raw and naive send float32 always.
  ElementType wire_type = ElementType::kFloat32;

  /// Both directions, over all workers; of float32, whatever travels.
  std::int64_t bytes_per_iteration() const { return 2 * workers * (mib << 20); }
};

/// The production planner's answer for a synthetic network: layers like a real one's, many small
/// ones and one that is a third of all.
absl::StatusOr<Plan> plan_for(const Shape& shape, std::vector<std::string> server_addresses);

/// Where a chunk lies when all layers are laid end to end.
struct ChunkPlace {
  std::size_t begin = 0;     ///< elements
  std::size_t elements = 0;  ///< > 0
  ServerIndex server;
};
std::vector<ChunkPlace> chunk_places(const Plan& plan);  ///< by ChunkId

/// The expected content of a worker's results after an iteration.
enum class Answer {
  kSum,         ///< of this iteration's gradients over all workers
  kParameters,  ///< steps of plain SGD with learning rate 1 from zero
};

/// One worker's memory.
class Workload {
 public:
  Workload(const Plan& plan, WorkerRank rank);

  std::span<const float> gradients() const { return gradients_.floats(); }
  std::span<float> results() { return results_.floats(); }
  const std::vector<ChunkPlace>& chunks() const { return chunks_; }

  /// Changes a few gradients of every chunk, so that results of an earlier iteration or of another
  /// chunk are wrong for this one. Their number is too small to matter for time.
  void prepare(Iteration iteration);

  /// Whether the results are correct after iterations 0 to `iteration`, at a few places of every
  /// chunk.
  absl::Status check(Answer answer, Iteration iteration) const;

 private:
  const std::uint32_t workers_;
  const ElementType wire_type_;
  const WorkerRank rank_;
  const std::vector<ChunkPlace> chunks_;
  FloatBuffer gradients_;
  FloatBuffer results_;
};

}  // namespace poseidon::bench
