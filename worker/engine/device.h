#pragma once

// The seam under the executor: memory and layer operators of one kind of hardware. The walk over
// the network, its buffers, hooks and sums are shared (network_executor.h); a Device only computes.
//
// Called by: worker/engine/executor/network_executor.h. Calls: an implementation.
// Implementations: cpu/ (oneDNN), cuda/ (a plug-in), tests/twins/reference_device (plain loops, the
// in-memory twin for tests).

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "models/net/net.h"
#include "worker/engine/executor.h"
#include "worker/engine/layout.h"

namespace poseidon {

/// The inputs of an operator's forward. Pointers named "device" are in the device's memory. Tensors
/// lie in the layouts of OperatorOptions and begin at multiples of 64 bytes. They are float32,
/// except in Layout::kBfloat16, where pointers refer to the first byte.
struct ForwardArgs {
  std::span<const float* const> inputs;  ///< device; one per LayerSpec::inputs
  const float* parameters = nullptr;  ///< device; tensors end to end, 64-byte aligned at the start
  /// device; running statistics, tensors end to end: written in training, read in tests
  float* statistics = nullptr;
  float* output = nullptr;               ///< device; written whole
  const std::int32_t* labels = nullptr;  ///< device; one per sample (loss and accuracy)
  std::int64_t valid_samples = 0;  ///< number of leading samples that count (loss and accuracy)
  std::uint64_t first_sample = 0;  ///< as in Batch (dropout)
  Phase phase = Phase::kTrain;
};

/// The arguments of backward, for the last forward in Phase::kTrain.
struct BackwardArgs {
  /// The same pointers and values as in forward, except that inputs and output only keep their
  /// content where the layer's type needs it (backward_needs in tensor_lifetimes.h).
  ForwardArgs forward;
  const float* output_gradient = nullptr;  ///< device; nullptr for the loss, where gradients begin
  /// device; laid out like the parameters; overwritten. nullptr for a fully connected layer whose
  /// factors are kept instead.
  float* parameter_gradients = nullptr;
  std::span<float* const> input_gradients;  ///< device; overwritten; nullptr if not needed
};

/// How much of a ReLU the operator of the preceding layer computes in its own passes over memory.
enum class ReluShare {
  kNone,
  kForward,  ///< its output is the ReLU's; the ReLU's backward comes before its own
  /// As well; its output's gradient is that of the ReLU's output, which backward does not read.
  kBoth,
};

/// Types that work in place (works_in_place in tensor_lifetimes.h) must do so where a pointer they
/// write to is one they read from.
///
/// One layer on one device, for one batch size. Scratch memory belongs to the operator and is made
/// at creation: forward and backward allocate nothing. One thread only.
///
/// A loss writes the cross-entropy of each sample to its output (label smoothing included, loss
/// weight not; 0 for samples that do not count) and as its input gradient that of loss weight times
/// the mean over the valid samples. Accuracy writes 1 or 0. Batch normalisation in training takes
/// its statistics from the valid samples; INVALID_ARGUMENT when those are one value per channel.
class LayerOperator {
 public:
  virtual ~LayerOperator() = default;
  virtual absl::Status forward(const ForwardArgs& args) = 0;
  virtual absl::Status backward(const BackwardArgs& args) = 0;
};

struct OperatorOptions {
  std::int64_t batch_size = 0;
  std::uint64_t seed = 1;                 ///< of dropout
  bool wants_input_gradient = true;       ///< false: input_gradients will all be nullptr
  std::span<const Layout> input_layouts;  ///< one per LayerSpec::inputs, or none: all plain
  Layout output_layout = Layout::kPlain;
  ReluShare relu = ReluShare::kNone;  ///< of one behind the layer; what takes_relu said

  Layout input_layout(std::size_t input = 0) const {
    return input_layouts.empty() ? Layout::kPlain : input_layouts[input];
  }
};

/// A point in a device's work (Device::mark). Created once and reused.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
};

/// Marks that a device sets at the begin and end of a copy, on the stream that copies. Both are
/// null when not needed.
struct CopyMarks {
  DeviceMark* begin = nullptr;
  DeviceMark* end = nullptr;
};

/// A fully connected layer's step from stacked factors. The caller checks the sizes.
struct FactorStepArgs {
  std::int64_t rows = 0;     ///< of both factors
  std::int64_t outputs = 0;  ///< M
  std::int64_t inputs = 0;   ///< N
  bool has_bias = false;
  const float* output_gradients = nullptr;  ///< host; rows x M
  const float* input_values = nullptr;      ///< host; rows x N
  OptimizerStep weight_step, bias_step;
  std::span<float> parameters;      ///< device; M x N weights, then M biases
  std::span<float> state0, state1;  ///< device; as long, or empty; see apply_optimizer
  CopyMarks marks;                  ///< of both factors' way to the device
};

struct DeviceCopy {
  float* to = nullptr;
  const float* from = nullptr;
  std::int64_t elements = 0;
};

/// Owned by the caller; its deleter returns it to the device's allocator.
using DeviceMemory = std::unique_ptr<void, void (*)(void*)>;

inline constexpr std::int64_t kFloatBytes = sizeof(float);
inline float* floats(const DeviceMemory& memory) { return static_cast<float*>(memory.get()); }

/// Tells when queued work is done. Created once, with the executor, and reused
/// (Device::start_download). This class is that of a synchronous device: always done.
class DeviceTicket {
 public:
  virtual ~DeviceTicket() = default;
  virtual absl::StatusOr<bool> is_done() { return true; }
  /// Has a deadline of the device's own: DEADLINE_EXCEEDED when it does not answer.
  virtual absl::Status wait() { return absl::OkStatus(); }
};

/// One thread only, the executor's. The device outlives its memory and its operators.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< for people: "cpu (oneDNN, 2 threads)"

  /// Whether operators compute directly on host memory. If not, the executor keeps a second copy of
  /// the parameters and gradients in device memory and moves them with upload and download.
  virtual bool shares_host_memory() const = 0;

  /// Zeroed, aligned to 64 bytes. RESOURCE_EXHAUSTED when there is no such amount.
  virtual absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) = 0;
  /// Likewise, host memory from which upload and download are fast (pinned on a GPU). May outlive
  /// the device and be freed on any thread.
  virtual absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) = 0;

  /// Called at the start of every forward and backward.
  virtual void begin_pass() = 0;
  /// Ordered with the operators' work; complete on return.
  virtual absl::Status upload(void* device, const void* host, std::int64_t bytes) = 0;
  virtual absl::Status download(void* host, const void* device, std::int64_t bytes) = 0;

  // For asynchronous devices to override. `host` is of allocate_host: from other memory an upload
  // is slow, and its caller may wait for it. A synchronous device has no marks.

  virtual absl::StatusOr<std::unique_ptr<DeviceTicket>> make_ticket() {
    return std::make_unique<DeviceTicket>();
  }
  /// Operators queued from now on read the new values; no work of an earlier pass reads them.
  /// `host` must stay as it is until work that was queued later is known to be done.
  virtual absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                                    const CopyMarks& /*marks*/) {
    return upload(device, host, bytes);
  }
  /// Like start_upload, but only for operators of later passes: those of this pass do not wait.
  virtual absl::Status start_early_upload(void* device, const void* host, std::int64_t bytes,
                                          const CopyMarks& marks) {
    return start_upload(device, host, bytes, marks);
  }
  /// Copies what the operators queued until now have written. `ticket` is done when this copy is,
  /// and all that were started before it. `bytes` may be 0: nothing is copied.
  virtual absl::Status start_download(void* host, const void* device, std::int64_t bytes,
                                      DeviceTicket& /*ticket*/, const CopyMarks& /*marks*/) {
    return bytes == 0 ? absl::OkStatus() : download(host, device, bytes);
  }
  /// Returns when nothing is queued any more, also after an error. The last call before the
  /// device's memory, operators, tickets and marks go, on the thread on which they go.
  virtual absl::Status finish() { return absl::OkStatus(); }

  /// Null on a synchronous device, whose times are those of its caller.
  virtual absl::StatusOr<std::unique_ptr<DeviceMark>> make_mark() { return nullptr; }
  /// From now on the mark is the moment when the operators queued until now are done, and the
  /// uploads that they wait for.
  virtual absl::Status mark(DeviceMark& /*mark*/) { return absl::OkStatus(); }
  /// The time between two past marks of any kind; negative when `earlier` was later.
  virtual absl::StatusOr<Nanoseconds> time_between(const DeviceMark& /*earlier*/,
                                                   const DeviceMark& /*later*/) {
    return Nanoseconds{0};
  }

  /// target[i] += addend[i], for outputs that several layers read; both in `layout`.
  virtual absl::Status add(float* target, const float* addend, std::int64_t elements,
                           Layout layout) = 0;

  // For layers whose factors are kept. Complete when they return; what they touch must not be that
  // of operators still queued.

  /// Within device memory; the ranges do not overlap.
  virtual absl::Status copy(std::span<const DeviceCopy> copies) = 0;
  /// Like download, but does not wait for queued operators.
  virtual absl::Status fetch(void* host, const void* device, std::int64_t bytes) = 0;
  /// Of device memory. Not dependent on the number of threads, as below.
  virtual absl::StatusOr<double> square_sum(const float* values, std::int64_t elements) = 0;
  /// Product and optimizer in one pass (executor.h: step_from_factors). Its sums must not depend on
  /// the number of threads: replicas on several machines stay equal by it.
  virtual absl::Status step_from_factors(const FactorStepArgs& args) = 0;
  /// For the same gradient, without a step: steps, parameters and state are not used.
  virtual absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs& args) = 0;

  /// The layout in which the layer should write its output when it reads `inputs`. Asked for layers
  /// whose readers are all this device's; a device that returns another layout than kPlain must
  /// accept it as input of any layer. A layer that works in place gets one place for both only
  /// where they lie in one layout.
  virtual Layout output_layout(const LayerSpec& /*layer*/,
                               std::span<const Layout> /*inputs*/) const {
    return Layout::kPlain;
  }

  /// How much the layer's operator can take over from a ReLU that works in place on its output and
  /// is its only reader. The bits must equal those of separate operators, except that a library may
  /// sum in another order.
  virtual ReluShare takes_relu(const LayerSpec& /*layer*/) const { return ReluShare::kNone; }

  /// Errors name the layer. UNIMPLEMENTED for a layer type that the device does not know.
  virtual absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) = 0;
};

/// Zeroed host memory aligned to 64 bytes: what CPU devices allocate.
absl::StatusOr<DeviceMemory> allocate_aligned(std::int64_t bytes);

/// The same for tensors that will be sent (common/memory/tensor_memory.h).
absl::StatusOr<DeviceMemory> allocate_sendable(std::int64_t bytes);

}  // namespace poseidon
