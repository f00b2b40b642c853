// A poseidon-worker whose device fails permanently in the middle of a job, like a GPU after a
// hardware error. It computes on the CPU until then. recovery_test.py starts it.

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "common/base/check.h"
#include "worker/engine/cpu/cpu_device.h"
#include "worker/worker_main.h"

namespace poseidon {
namespace {

struct Fault {
  int after = 0;  ///< forward passes
  std::atomic<int> passes{0};
  bool is_there() const { return passes > after; }
  static absl::Status error() { return absl::InternalError("an illegal memory access"); }
};

/// What it wraps, until the fault; then nothing but errors.
class FailingExecutor final : public Executor {
 public:
  FailingExecutor(std::unique_ptr<Executor> inner, std::shared_ptr<Fault> fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  const NetSpec& net() const override { return inner_->net(); }
  std::span<float> parameters(LayerIndex layer) override { return inner_->parameters(layer); }
  std::span<float> gradients(LayerIndex layer) override { return inner_->gradients(layer); }
  std::shared_ptr<const void> memory(LayerIndex layer) const override {
    return inner_->memory(layer);
  }
  absl::Status read_statistics(std::span<float> values) override {
    return fault_->is_there() ? Fault::error() : inner_->read_statistics(values);
  }
  absl::Status write_statistics(std::span<const float> values) override {
    return fault_->is_there() ? Fault::error() : inner_->write_statistics(values);
  }
  absl::StatusOr<ForwardResult> forward(const Batch& batch, Phase phase,
                                        const ExecutionHooks& hooks) override {
    ++fault_->passes;
    if (fault_->is_there()) return Fault::error();
    return inner_->forward(batch, phase, hooks);
  }
  absl::Status backward(const ExecutionHooks& hooks) override { return inner_->backward(hooks); }
  absl::Status keep_factors(LayerIndex layer, int optimizer_slots) override {
    return inner_->keep_factors(layer, optimizer_slots);
  }
  absl::StatusOr<FloatBuffer> allocate_factors(std::int64_t elements) override {
    return inner_->allocate_factors(elements);
  }
  absl::Status copy_factors(LayerIndex layer, std::span<float> output_gradient,
                            std::span<float> input) override {
    return inner_->copy_factors(layer, output_gradient, input);
  }
  absl::Status step_from_factors(LayerIndex layer, const FactorStep& step) override {
    return inner_->step_from_factors(layer, step);
  }
  absl::StatusOr<FactorSquares> measure_factors(LayerIndex layer,
                                                std::span<const float> output_gradients,
                                                std::span<const float> inputs) override {
    return inner_->measure_factors(layer, output_gradients, inputs);
  }
  absl::StatusOr<FactorSquares> measure_parameters(LayerIndex layer) override {
    return inner_->measure_parameters(layer);
  }
  absl::Status fetch_parameters(LayerIndex layer) override {
    return inner_->fetch_parameters(layer);
  }
  absl::Status read_state(LayerIndex layer, const StateRange& range,
                          std::span<float> values) override {
    return fault_->is_there() ? Fault::error() : inner_->read_state(layer, range, values);
  }
  absl::Status write_state(LayerIndex layer, const StateRange& range,
                           std::span<const float> values) override {
    return inner_->write_state(layer, range, values);
  }
  absl::Status hold_state(LayerIndex layer, std::span<const StateRange> ranges) override {
    return fault_->is_there() ? Fault::error() : inner_->hold_state(layer, ranges);
  }
  absl::Status read_held_state(LayerIndex layer, const StateRange& range,
                               std::span<float> values) override {
    return fault_->is_there() ? Fault::error() : inner_->read_held_state(layer, range, values);
  }
  std::string first_nonfinite_layer() override { return inner_->first_nonfinite_layer(); }

 private:
  const std::unique_ptr<Executor> inner_;
  const std::shared_ptr<Fault> fault_;
};

Engine failing_engine(int after) {
  auto fault = std::make_shared<Fault>();
  fault->after = after;
  return Engine{
      .device = "fragile",
      .make_executor = [fault](const NetSpec& net, const ExecutorOptions& options)
          -> absl::StatusOr<std::unique_ptr<Executor>> {
        if (fault->is_there()) return Fault::error();
        POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<Executor> inner, make_cpu_executor(net, options));
        return std::make_unique<FailingExecutor>(std::move(inner), fault);
      },
      .health = [fault] { return fault->is_there() ? Fault::error() : absl::OkStatus(); }};
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  CLI::App app("A worker of Poseidon whose device fails.", "poseidon-test-failing-worker");
  int after = 0;
  app.add_option("--fails-after", after, "forward passes")->required();
  return poseidon::worker_main(argc, argv, app,
                               [&after] { return poseidon::failing_engine(after); });
}
