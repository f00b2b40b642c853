#pragma once

// The seam to consistency models: when a contribution counts and when a chunk's sum is complete.
// BSP is the only model; bounded staleness would be another implementation. Pure; any thread.
//
// Before: server/shard/shard.h or sync/relay/relay.h has a gradient that fits the plan. After: it
// adds the gradient, answers with what is there, or refuses.

#include <cstdint>

#include "common/base/ids.h"

namespace poseidon {

/// Versions and iterations as in common/base/ids.h: parameters of version v have v steps in them.
class ConsistencyPolicy {
 public:
  enum class Push {
    kCounts,           ///< belongs into the sum that is being formed
    kAlreadyComplete,  ///< its sum is in the parameters: answer with them
    kTooOld,           ///< the sender itself has moved on since: drop it
    kFuture,           ///< the sender cannot have got so far: refuse it
  };

  virtual ~ConsistencyPolicy() = default;
  /// A gradient of iteration `pushed` for a chunk whose parameters have `version` steps in them.
  virtual Push judge_push(Iteration version, Iteration pushed) const = 0;
  /// Whether a sum with contributions of `contributed` out of `contributors` makes a step. Those
  /// are all workers, or with local aggregation the leaders.
  virtual bool is_complete(std::uint32_t contributed, std::uint32_t contributors) const = 0;
};

/// Bulk synchronous parallel (Valiant: "A Bridging Model for Parallel Computation", CACM 1990): the
/// step of iteration i takes exactly one gradient of each rank, computed on parameters with exactly
/// i steps.
class BspConsistency final : public ConsistencyPolicy {
 public:
  Push judge_push(Iteration version, Iteration pushed) const override {
    if (pushed == version) return Push::kCounts;
    if (pushed == version - 1) return Push::kAlreadyComplete;
    return pushed < version ? Push::kTooOld : Push::kFuture;
  }
  bool is_complete(std::uint32_t contributed, std::uint32_t contributors) const override {
    return contributed == contributors;
  }
};

}  // namespace poseidon
