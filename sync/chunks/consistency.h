#pragma once

// The interface of consistency models: when a contribution counts, and when a chunk's sum is
// complete. BSP is the only model; bounded staleness would be another implementation. Pure; any
// thread.
//
// Called by: server/shard/shard.h and sync/relay/relay.h, for a gradient that fits the plan. Calls:
// nothing. The caller then adds the gradient, answers with the parameters that it has, or refuses.

#include <cstdint>

#include "common/base/ids.h"

namespace poseidon {

/// Versions and iterations as in common/base/ids.h: parameters of version v have v steps in them.
class ConsistencyPolicy {
 public:
  enum class Push {
    kCounts,           ///< belongs to the sum that is being formed
    kAlreadyComplete,  ///< its sum is in the parameters: answer with them
    kTooOld,           ///< the sender has newer parameters: drop it
    kFuture,           ///< impossible for a correct sender: refuse it
  };

  virtual ~ConsistencyPolicy() = default;
  /// A gradient of iteration `pushed` for a chunk whose parameters have `version` steps in them.
  virtual Push judge_push(Iteration version, Iteration pushed) const = 0;
  /// Whether a sum of `contributed` out of `contributors` contributions makes a step. Contributors
  /// are all workers or, with local aggregation, the leaders.
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
