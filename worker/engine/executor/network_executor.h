#pragma once

// The only Executor: walks the layers on a Device.
//
// Called by: the trainer. Calls: the device's operators.
//
// Invariants:
//  1. Everything is allocated in create(); forward and backward allocate nothing (the first
//     hold_state does). Outputs and their gradients share one range of memory by the plan of
//     tensor_lifetimes.h: a read outside the planned time returns other data.
//  2. Layers run in file order forward, in the opposite order backward; no order depends on data.
//  3. An output's gradient is complete before its layer's backward runs: its consumers come
//     later in the file, so earlier in backward; the last consumer writes, the others add.
//  4. Layers that are train_only do not run in Phase::kTest; their outputs are then stale.
//  5. On an asynchronous device (device.h) a pass queues all its work and hands layers back
//     (after_backward) as their gradients have arrived in host memory: asked for after each layer
//     with parameters, waited for after the last, in the order of the walk. When forward or
//     backward returns, with an error or without, the device has nothing queued.
//  6. A ReLU that is the only reader of its input may be computed by that input's layer, as the
//     device decides (Device::takes_relu); then the walk does not call it, in both passes or
//     forward.
//  7. A layer's backward runs only if a parameter layer is at or before it; nothing computes the
//     gradient of the data.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/device.h"
#include "worker/engine/executor.h"
#include "worker/engine/executor/factor_memory.h"
#include "worker/engine/executor/pass_times.h"
#include "worker/engine/executor/staged_batch.h"
#include "worker/engine/executor/tensor_lifetimes.h"

namespace poseidon {

class NetworkExecutor final : public Executor {
 public:
  /// INVALID_ARGUMENT for a batch size outside 1..kMaxDimension; errors of the device otherwise.
  static absl::StatusOr<std::unique_ptr<Executor>> create(const NetSpec& net,
                                                          const ExecutorOptions& options,
                                                          std::unique_ptr<Device> device);

  /// On any thread, which the device gets to know before its memory goes.
  ~NetworkExecutor() override { device_->finish().IgnoreError(); }

  const NetSpec& net() const override { return net_; }
  std::span<float> parameters(LayerIndex layer) override;
  std::span<float> gradients(LayerIndex layer) override;
  std::shared_ptr<const void> memory(LayerIndex layer) const override;
  absl::Status read_statistics(std::span<float> values) override;
  absl::Status write_statistics(std::span<const float> values) override;
  absl::StatusOr<ForwardResult> forward(const Batch& batch, Phase phase,
                                        const ExecutionHooks& hooks) override;
  absl::Status stage(const Batch& batch) override;
  absl::Status backward(const ExecutionHooks& hooks) override;
  DeviceTimes device_times() const override { return times_.times(); }
  bool times_itself() const override { return times_.has_clock(); }
  void time_passes(PassTiming wanted) override { times_.time(wanted); }
  absl::Status keep_factors(LayerIndex layer, int optimizer_slots) override;
  absl::StatusOr<FloatBuffer> allocate_factors(std::int64_t elements) override;
  absl::Status copy_factors(LayerIndex layer, std::span<float> output_gradient,
                            std::span<float> input) override;
  absl::Status step_from_factors(LayerIndex layer, const FactorStep& step) override;
  absl::StatusOr<FactorSquares> measure_factors(LayerIndex layer,
                                                std::span<const float> output_gradients,
                                                std::span<const float> inputs) override;
  absl::StatusOr<FactorSquares> measure_parameters(LayerIndex layer) override;
  absl::Status fetch_parameters(LayerIndex layer) override;
  absl::Status read_state(LayerIndex layer, const StateRange& range,
                          std::span<float> values) override;
  absl::Status write_state(LayerIndex layer, const StateRange& range,
                           std::span<const float> values) override;
  absl::Status hold_state(LayerIndex layer, std::span<const StateRange> ranges) override;
  absl::Status read_held_state(LayerIndex layer, const StateRange& range,
                               std::span<float> values) override;
  std::string first_nonfinite_layer() override;

 private:
  // One tensor of a parameter layer's host range and its twin on the device (the same memory where
  // the device shares the host's).
  struct ParameterRange {
    std::int64_t elements = 0;
    std::shared_ptr<void> host;  // may outlive us: see memory()
    DeviceMemory device{nullptr, nullptr};
    float* host_data = nullptr;
    float* device_data = nullptr;
    bool is_up = false;  // to the device's memory, since it was written
  };
  // A parameter layer on its way back to the host.
  struct Return {
    std::unique_ptr<DeviceTicket> ticket;
    // Of a layer whose factors are kept on a device with memory of its own.
    DeviceMemory output_gradient{nullptr, nullptr};
    DeviceMemory input{nullptr, nullptr};
  };
  // Pointers are into tensors_, on the device.
  struct Node {
    std::int64_t output_elements = 0;         // of the whole batch
    Layout layout = Layout::kPlain;           // of the output and its gradient
    std::unique_ptr<LayerOperator> op;        // null where nothing is left for it to do
    ReluShare takes_relu = ReluShare::kNone;  // of the one behind this layer
    ReluShare is_taken = ReluShare::kNone;    // this ReLU, by the layer before it
    float* output = nullptr;
    float* output_gradient = nullptr;
    std::vector<const float*> inputs;
    bool runs_backward = false;
    int parameter_layer = -1;             // LayerIndex, or -1
    float* statistics = nullptr;          // in statistics_
    std::vector<float*> input_gradients;  // what the operator writes; null: not needed
    // The summand for the gradient of an input that another layer has written before.
    struct Sum {
      float* target = nullptr;
      const float* addend = nullptr;
      std::int64_t elements = 0;
      Layout layout = Layout::kPlain;
    };
    std::vector<Sum> sums;
  };

  NetworkExecutor(NetSpec net, const ExecutorOptions& options, std::unique_ptr<Device> device);
  absl::Status build();
  absl::Status build_parameters();
  absl::Status build_statistics();
  void find_results();
  void choose_layouts();
  Layout layout_of(std::size_t input) const;  // a layer, or kNetworkInput
  absl::Status build_tensors();
  void share_relus();
  absl::Status build_node(std::size_t index);
  absl::Status make_range(std::int64_t elements, ParameterRange& range);
  absl::Status check(const Batch& batch) const;
  // Of a layer whose factors are kept (checked).
  std::size_t factor_node(LayerIndex layer) const;  // index into nodes_
  FactorMemory& factor_memory(LayerIndex layer) const;
  FactorStepArgs factor_args(LayerIndex layer, std::span<const float> output_gradients,
                             std::span<const float> inputs);
  absl::Status forward_node(std::size_t index, const ExecutionHooks& hooks);
  /// Makes the layer's parameters available on the device to all work that is queued from now on.
  absl::Status bring_parameters(LayerIndex layer, const ExecutionHooks& hooks);
  /// Has the batch on the device.
  absl::Status bring_batch(const Batch& batch);
  absl::StatusOr<ForwardResult> run_forward(const Batch& batch, const ExecutionHooks& hooks);
  absl::Status run_backward(const ExecutionHooks& hooks);
  absl::Status backward_node(std::size_t index);
  // Queues the copy of what after_backward promises.
  absl::Status return_layer(std::size_t index);
  // after_backward for those whose copies are done; waits for all of them if asked to.
  absl::Status hand_back(const ExecutionHooks& hooks, bool wait);
  ForwardArgs forward_args(const Node& node) const;
  bool runs_in_phase(std::size_t index) const;
  absl::StatusOr<std::string> find_nonfinite();
  absl::StatusOr<ForwardResult> collect_result();
  // Starts the way of a node's values of the valid samples to results_.
  absl::Status start_result(const Node& node);
  // The first `elements` of device memory for reading here: in place where the device shares the
  // host's memory, else by way of host_copy_.
  absl::StatusOr<std::span<const float>> fetch(const void* memory, std::int64_t elements);
  // Of any number of elements, in pieces.
  absl::StatusOr<bool> is_finite(const float* memory, std::int64_t elements, Layout layout);

  // Constant after create().
  const NetSpec net_;
  const ExecutorOptions options_;
  const std::unique_ptr<Device> device_;
  std::int64_t input_elements_ = 0;      // of one sample
  std::size_t loss_node_ = 0;            // the one that is not auxiliary
  std::vector<std::size_t> all_losses_;  // in forward order
  std::size_t accuracy_node_ = 0;
  // net_.layers, then an accuracy layer where the network has none of its own.
  std::vector<LayerSpec> layers_;
  TensorPlan plan_;  // of layers_

  // Declared after device_, so that they go first. nodes_ are in the order of layers_.
  DeviceMemory input_{nullptr, nullptr};
  PassTimes times_;
  std::unique_ptr<StagedBatch> staged_;  // null where the device shares the host's memory
  DeviceMemory labels_{nullptr, nullptr};
  DeviceMemory tensors_{nullptr, nullptr};     // outputs and their gradients
  DeviceMemory statistics_{nullptr, nullptr};  // of all layers, end to end
  std::vector<ParameterRange> parameters_;
  std::vector<ParameterRange> gradients_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<FactorMemory>> factors_;  // by LayerIndex; null: not kept
  std::vector<Return> returns_;                         // by LayerIndex
  std::unique_ptr<DeviceTicket> results_ticket_;
  // For results, and for pieces in the search for NaN; null where the device shares the host's.
  DeviceMemory host_copy_{nullptr, nullptr};
  std::int64_t host_copy_elements_ = 0;
  DeviceMemory host_labels_{nullptr, nullptr};  // likewise: of this pass

  // Of this forward, losses first: in place, or one after the other in host_copy_.
  std::vector<std::span<const float>> results_;
  // Of this backward: layers whose gradients are being copied, in order, and the number of those
  // that are done.
  std::vector<std::uint32_t> returning_;
  std::size_t handed_back_ = 0;

  // Of the last forward.
  std::int64_t valid_samples_ = 0;
  std::uint64_t first_sample_ = 0;
  Phase phase_ = Phase::kTest;
  bool can_backward_ = false;
  bool has_forward_ = false;
};

}  // namespace poseidon
