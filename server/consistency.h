#pragma once

#include <cstdint>

#include "common/ids.h"

namespace poseidon {

/// When a contribution counts and when a chunk's sum is complete: the only place that knows the
/// consistency model, so that bounded staleness can come as another implementation. Pure.
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
  /// Whether a sum with contributions of `contributed` out of `workers` ranks makes a step.
  virtual bool is_complete(std::uint32_t contributed, std::uint32_t workers) const = 0;
};

/// Bulk synchronous parallel: the step of iteration i takes exactly one gradient of each rank,
/// computed on parameters with exactly i steps.
class BspConsistency final : public ConsistencyPolicy {
 public:
  Push judge_push(Iteration version, Iteration pushed) const override {
    if (pushed == version) return Push::kCounts;
    if (pushed == version - 1) return Push::kAlreadyComplete;
    return pushed < version ? Push::kTooOld : Push::kFuture;
  }
  bool is_complete(std::uint32_t contributed, std::uint32_t workers) const override {
    return contributed == workers;
  }
};

}  // namespace poseidon
