#pragma once

// FactorEngine and FactorState on our own engine, which steps SFB layers on the worker.
//
// Called by: sync/client/sync_client.h, on the trainer's thread. Calls: worker/engine/executor.h,
// which computes and owns the values.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/tensor/optimizer.h"
#include "sync/client/factor_engine.h"
#include "sync/states/factor_state.h"
#include "worker/engine/executor.h"

namespace poseidon {

/// Trainer's thread only.
class ExecutorFactors final : public FactorEngine, public FactorState {
 public:
  /// Makes the executor keep the factors of the plan's SFB layers. Both layouts must be the same
  /// network's. Null when the plan has no such layer. `micro_batches`: parts in which each worker
  /// works its batch. RESOURCE_EXHAUSTED when the exchanged factors cannot fit in memory.
  static absl::StatusOr<std::unique_ptr<ExecutorFactors>> create(std::shared_ptr<Executor> executor,
                                                                 const Plan& plan,
                                                                 OptimizerSpec optimizer,
                                                                 std::int64_t micro_batches);

  FloatBuffer allocate(std::int64_t elements) override;
  absl::Status copy_factors(LayerIndex layer, const OwnFactors& to) override;
  absl::StatusOr<std::vector<TensorSquares>> measure(LayerIndex layer, Iteration iteration,
                                                     const StackedFactors& factors) override;
  absl::Status step(LayerIndex layer, Iteration iteration, const StackedFactors& factors,
                    double all_gradients) override;
  absl::Status fetch_parameters(LayerIndex layer) override {
    return executor_->fetch_parameters(layer);
  }

  int optimizer_slots() const override { return optimizer_state_slots(optimizer_); }
  absl::Status read(LayerIndex layer, const StateRange& range, std::span<float> values) override {
    return executor_->read_state(layer, range, values);
  }
  absl::Status write(LayerIndex layer, const StateRange& range,
                     std::span<const float> values) override {
    return executor_->write_state(layer, range, values);
  }
  absl::Status hold(LayerIndex layer, std::span<const StateRange> ranges) override {
    return executor_->hold_state(layer, ranges);
  }
  absl::Status read_held(LayerIndex layer, const StateRange& range,
                         std::span<float> values) override {
    return executor_->read_held_state(layer, range, values);
  }

 private:
  struct State {
    std::vector<StepMultipliers> tensors;  ///< weight, bias; one where the plan names none
    Iteration measured = -1;
    std::vector<TensorSquares> squares;  ///< of `measured`
  };
  ExecutorFactors(std::shared_ptr<Executor> executor, float gradient_scale, OptimizerSpec optimizer)
      : executor_(std::move(executor)),
        gradient_scale_(gradient_scale),
        optimizer_(std::move(optimizer)) {}

  const std::shared_ptr<Executor> executor_;
  /// Every worker has K samples in every iteration (docs/sampling.md), and dY is of the mean over
  /// one of their equal parts: the mean over all is the sum over the stack, times 1 / (workers *
  /// parts).
  const float gradient_scale_;
  const OptimizerSpec optimizer_;
  std::vector<State> states_;  ///< by LayerIndex; empty for PS layers
};

}  // namespace poseidon
