#pragma once

// Runs a network on a device, layer by layer, and calls hooks when a layer needs parameters or has
// gradients.
//
// Called by: worker/trainer.h, with a Batch from the data pipeline. Calls: the trainer's hooks;
// after_backward passes gradients to a SyncClient (sync/client/sync_client.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/memory/aligned_buffer.h"
#include "common/probes/stage.h"
#include "common/tensor/optimizer.h"
#include "models/net/net.h"
#include "worker/data/batch.h"

namespace poseidon {

/// Result of one forward pass over the valid samples.
struct ForwardResult {
  /// Sum over samples of the cross-entropies, each times its loss_weight: of all losses in
  /// training, of the one that is not auxiliary in tests.
  double loss_sum = 0.0;
  std::int64_t correct = 0;
  std::int64_t samples = 0;
  double mean_loss() const { return samples == 0 ? 0.0 : loss_sum / static_cast<double>(samples); }
};

/// A parameter layer computed from `begin` to `end`, and so did the layers without parameters that
/// count with it (worker/layer_clock.h).
struct LayerInterval {
  LayerIndex layer;
  Nanoseconds begin{0}, end{0};
};

/// One copy between the host's memory and a device's own.
struct CopyInterval {
  Stage stage = Stage::kUpload;     ///< is_device_copy of it
  std::optional<LayerIndex> layer;  ///< none: of a batch
  std::int64_t bytes = 0;
  Nanoseconds begin{0}, end{0};
};

/// A device's own times of a pass, from the moment when it got the pass's first work.
struct DeviceTimes {
  std::span<const LayerInterval> layers;  ///< in the order of the pass
  std::span<const CopyInterval> copies;   ///< in the order in which they were started
};

/// The parts of a pass that a device with its own clock measures. Each layer costs it four events,
/// each copy two, which the host has to record and to read.
enum class PassTiming { kNothing, kLayers, kLayersAndCopies };

/// Called for a layer whose parameters arrive in pieces: the first `elements` are final for its
/// forward, so they may be uploaded.
using PartArrived = std::function<absl::Status(std::int64_t elements)>;
/// A part of a layer gets a copy of its own from this many elements on (8 MiB: a third of a
/// millisecond by PCIe 4); no call tells of fewer since the one before.
inline constexpr std::int64_t kLeastPartElements = std::int64_t{2} << 20;

/// The trainer's callbacks. Called on the thread that runs the executor. On an asynchronous device
/// the walk runs ahead of the computation: after_backward still comes in order and not before the
/// layer's gradient is complete, but the time between two hooks is not a layer's.
struct ExecutionHooks {
  /// Before the forward of a parameter layer reads its parameters; an error aborts the pass. May
  /// call PartArrived meanwhile, whose errors are then its own; empty where nothing goes up: the
  /// device computes with the host's memory, keeps the layer's parameters or has them already.
  std::function<absl::Status(LayerIndex, const PartArrived&)> before_forward;
  /// For a forward: parameters() have not changed since the previous one, as between the parts of a
  /// batch. A device with its own memory then has them already.
  bool same_parameters = false;
  /// After the whole backward of a parameter layer (its gradient is complete in gradients(layer)
  /// and its parameters are not read again in this pass), last layer first.
  std::function<void(LayerIndex)> after_backward;
};

/// All workers' factors of a fully connected layer, for its step. Row-major, host memory, best of
/// Executor::allocate_factors.
struct FactorStep {
  std::span<const float> output_gradients;  ///< rows x M: dY of all workers, stacked
  std::span<const float> inputs;            ///< rows x N: X of all workers, stacked likewise
  /// Their gradient_scale turns the sum over rows into the mean.
  OptimizerStep weight_step, bias_step;
};

/// Sums of squares: of the gradient that stacked factors stand for (dY^T X, and the column sums of
/// dY), or of the parameters. 0 without a bias.
struct FactorSquares {
  double weight = 0.0, bias = 0.0;
};

/// The engine seam as the trainer sees it: one network on one device. One thread only. There is one
/// implementation, the layer walk of network_executor.h, shared by all devices; what differs is the
/// Device (device.h) under it: cpu/ on oneDNN, reference/ in plain loops for tests, cuda/ on GPUs.
///
/// Memory: parameters and gradients of one parameter layer are each one contiguous host range, all
/// tensors of the layer laid end to end in ParameterSpec order without padding, for the life of the
/// executor. 64-byte aligned at the start of each layer.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual const NetSpec& net() const = 0;
  virtual std::span<float> parameters(LayerIndex layer) = 0;
  virtual std::span<float> gradients(LayerIndex layer) = 0;
  /// The memory of both. A sender holds it without holding the executor, which it may outlive (no
  /// thread writes to it then). Released on any thread.
  virtual std::shared_ptr<const void> memory(LayerIndex layer) const = 0;

  /// Running statistics (batch normalisation) of all layers, end to end: the tensors of
  /// statistic_places(net()), `statistics_count()` elements. They begin as the layers' initialisers
  /// say, forward in Phase::kTrain moves them by this worker's batches alone, and forward in
  /// Phase::kTest computes with them. Not synchronised: rank 0's are saved. Between passes.
  virtual absl::Status read_statistics(std::span<float> values) = 0;
  virtual absl::Status write_statistics(std::span<const float> values) = 0;

  /// Batch of exactly the batch size given at creation; read during the call only. In Phase::kTest
  /// dropout is the identity, batch normalisation uses the running statistics, layers that lead to
  /// auxiliary losses alone do not run (nor before_forward for them), and nothing is kept for
  /// backward. `correct` counts arg max hits of the accuracy layer, or of the loss's scores where
  /// the network has none. Errors: INVALID_ARGUMENT for a batch of the wrong size, a label out of
  /// range, or one value per channel to normalise; whatever before_forward returns.
  virtual absl::StatusOr<ForwardResult> forward(const Batch& batch, Phase phase,
                                                const ExecutionHooks& hooks) = 0;
  /// Between forward and backward in Phase::kTrain: the batch that the next such forward is likely
  /// to have. A device with memory of its own takes it there while it computes; any other batch may
  /// come first, or instead. `batch` must stay as it is until that forward returns or another one
  /// is named.
  virtual absl::Status stage(const Batch& /*batch*/) { return absl::OkStatus(); }
  /// After forward in Phase::kTrain. Gradients of the mean loss over the batch's valid samples;
  /// overwritten, not accumulated. FAILED_PRECONDITION without such a forward.
  virtual absl::Status backward(const ExecutionHooks& hooks) = 0;

  /// Whether device_times() tells what layers took. If not, they compute between the hooks.
  virtual bool times_itself() const { return false; }
  /// The requested figures of the last pass. What lies between two layers is the device's wait for
  /// parameters; copies are those of the pass and of steps within it. Until the next pass begins.
  virtual DeviceTimes device_times() const { return {}; }
  /// Applies from the next pass on; initially kLayers. No effect when the device does not time
  /// itself.
  virtual void time_passes(PassTiming /*wanted*/) {}

  /// From now on backward leaves this fully connected layer's gradients out (gradients(layer)
  /// becomes empty, its memory is given back) and copy_factors and step_from_factors take their
  /// place. The optimizer's slots begin as zeros. They and the parameters are where the device
  /// computes: from the layer's next pass or step on parameters(layer) is a copy as old as the last
  /// fetch_parameters, and the executor does not read new values there. INVALID_ARGUMENT for any
  /// other layer.
  virtual absl::Status keep_factors(LayerIndex layer, int optimizer_slots) = 0;
  /// Host memory for stacked factors, from which steps take them fast (pinned on a GPU) and which
  /// can be sent from. Zeroed. May outlive the executor and be released on any thread.
  /// RESOURCE_EXHAUSTED when there is none.
  virtual absl::StatusOr<FloatBuffer> allocate_factors(std::int64_t elements) = 0;
  /// After the layer's backward and before the next forward: its factors, the gradient of its
  /// output (K x M) and its input (K x N), whose product dY^T X is the weight's gradient.
  virtual absl::Status copy_factors(LayerIndex layer, std::span<float> output_gradient,
                                    std::span<float> input) = 0;
  /// One optimizer step of the layer's parameters with the gradient of the stacked factors: weight
  /// dY^T X, bias the column sums of dY. Not while a pass works on this layer (hooks of another
  /// one's are a good time). The same bits for the same factors on every machine with this CPU's
  /// instructions, whatever the number of threads.
  virtual absl::Status step_from_factors(LayerIndex layer, const FactorStep& step) = 0;
  /// Sums of squares of that gradient, without a step; likewise the same everywhere. Costs another
  /// product: the gradient is never in memory as a whole.
  virtual absl::StatusOr<FactorSquares> measure_factors(LayerIndex layer,
                                                        std::span<const float> output_gradients,
                                                        std::span<const float> inputs) = 0;
  /// For the layer's current parameters; likewise.
  virtual absl::StatusOr<FactorSquares> measure_parameters(LayerIndex layer) = 0;

  // For a layer whose factors are kept; while a pass works on it, only a step is allowed.

  /// Makes parameters(layer) what the layer computes with.
  virtual absl::Status fetch_parameters(LayerIndex layer) = 0;
  virtual absl::Status read_state(LayerIndex layer, const StateRange& range,
                                  std::span<float> values) = 0;
  virtual absl::Status write_state(LayerIndex layer, const StateRange& range,
                                   std::span<const float> values) = 0;
  /// Keeps a copy of these as they are now, in the device's memory, in place of the layer's copy
  /// before. Allocates when the ranges are others than last time.
  virtual absl::Status hold_state(LayerIndex layer, std::span<const StateRange> ranges) = 0;
  /// Reads one of the ranges held last.
  virtual absl::Status read_held_state(LayerIndex layer, const StateRange& range,
                                       std::span<float> values) = 0;

  /// After a forward: name of the first layer, in forward order, whose parameters or output hold a
  /// NaN or an infinity (and which of the two), or "" when there is none. For people:
  /// "conv1 (parameters)", "ip2 (output)", "input (data)". Computes the forward pass again.
  virtual std::string first_nonfinite_layer() = 0;
};

struct ExecutorOptions {
  std::int64_t batch_size = 0;
  std::uint64_t seed = 1;  ///< of dropout
  int threads = 0;         ///< 0: all cores this process may use
  /// Of products and convolutions: "fp32", "tf32", "bf16" or "fp16"; parameters, gradients and sums
  /// are float32 always. "tf32" is a permission. INVALID_ARGUMENT from a device that cannot.
  std::string precision = "fp32";
};

}  // namespace poseidon
