// The CUDA device and the exports of its plug-in (device_plugin_entry.h).
//
// Order of work, all by events, none by waiting for the device as a whole:
//  1. Operators and sums run on `compute` as the walk queues them.
//  2. begin_pass: `upload` waits for `compute`, so no upload overwrites what an earlier pass reads.
//  3. start_upload: the copy runs on `upload`, then `compute` waits for it: the layer's operator,
//     queued next, reads the new values; layers queued before are not delayed. start_early_upload:
//     only the copy, for a later pass. Its memory was last read by a pass that finish() has waited
//     for, and the next pass begins after finish() has waited for it.
//  4. start_download: `download` waits for `compute` as far as it is queued now, copies, and
//     records the ticket's event; `compute` continues with the layers below. Marks of copies are
//     events on the copies' own streams, behind what a copy waits for.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/engine/cuda/cuda_context.h"
#include "worker/engine/cuda/cuda_factors.h"
#include "worker/engine/cuda/cuda_mark.h"
#include "worker/engine/cuda/cuda_operators.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/cuda_twin.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"
#include "worker/engine/cuda/pinned_memory.h"
#include "worker/engine/executor/layout_adapter.h"
#include "worker/engine/plugin/device_plugin_entry.h"

namespace poseidon {

absl::StatusOr<std::unique_ptr<CudaMark>> CudaMark::create() {
  auto mark = std::make_unique<CudaMark>();
  POSEIDON_CUDA(cudaEventCreate(&mark->event_));
  return mark;
}

CudaMark::~CudaMark() {
  if (event_ != nullptr) cuda_status(cudaEventDestroy(event_), "cudaEventDestroy").IgnoreError();
}

absl::Status CudaMark::record(cudaStream_t stream) {
  POSEIDON_CUDA(cudaEventRecord(event_, stream));
  return absl::OkStatus();
}

absl::StatusOr<Nanoseconds> CudaMark::time_since(const CudaMark& earlier) const {
  float milliseconds = 0;
  POSEIDON_CUDA(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
  return Nanoseconds(static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
}

namespace {

// ---- the device ----

class CudaTicket final : public DeviceTicket {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceTicket>> create() {
    auto ticket = std::make_unique<CudaTicket>();
    POSEIDON_CUDA(cudaEventCreateWithFlags(&ticket->event_, cudaEventDisableTiming));
    return ticket;
  }
  CudaTicket() = default;
  ~CudaTicket() override {
    if (event_ != nullptr) cuda_status(cudaEventDestroy(event_), "cudaEventDestroy").IgnoreError();
  }
  CudaTicket(const CudaTicket&) = delete;
  CudaTicket& operator=(const CudaTicket&) = delete;

  absl::StatusOr<bool> is_done() override { return CudaContext::is_done(event_); }
  absl::Status wait() override { return CudaContext::wait(event_); }

  absl::Status record(cudaStream_t stream) {
    POSEIDON_CUDA(cudaEventRecord(event_, stream));
    return absl::OkStatus();
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::string name, std::unique_ptr<CudaContext> context)
      : name_(std::move(name)), context_(std::move(context)), factors_(*context_) {}

  std::string name() const override { return name_; }
  bool shares_host_memory() const override { return false; }
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    return context_->allocate(bytes);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    return allocate_pinned(*context_, bytes);
  }

  // An error stays with the streams and comes out of the next call that can return it.
  void begin_pass() override {
    context_->use();
    context_->order(context_->compute(), context_->upload()).IgnoreError();
  }

  absl::Status upload(void* device, const void* host, std::int64_t bytes) override {
    return copy_and_wait(device, host, bytes, cudaMemcpyHostToDevice);
  }
  absl::Status download(void* host, const void* device, std::int64_t bytes) override {
    return copy_and_wait(host, device, bytes, cudaMemcpyDeviceToHost);
  }

  absl::StatusOr<std::unique_ptr<DeviceTicket>> make_ticket() override {
    context_->use();
    return CudaTicket::create();
  }
  absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                            const CopyMarks& marks) override {
    POSEIDON_RETURN_IF_ERROR(start_early_upload(device, host, bytes, marks));
    return context_->order(context_->upload(), context_->compute());
  }
  // A pass ends with finish(), which waits for `upload`.
  absl::Status start_early_upload(void* device, const void* host, std::int64_t bytes,
                                  const CopyMarks& marks) override {
    POSEIDON_RETURN_IF_ERROR(record_mark(marks.begin, context_->upload()));
    POSEIDON_CUDA(cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes),
                                  cudaMemcpyHostToDevice, context_->upload()));
    return record_mark(marks.end, context_->upload());
  }
  absl::Status start_download(void* host, const void* device, std::int64_t bytes,
                              DeviceTicket& ticket, const CopyMarks& marks) override {
    POSEIDON_RETURN_IF_ERROR(context_->order(context_->compute(), context_->download()));
    POSEIDON_RETURN_IF_ERROR(record_mark(marks.begin, context_->download()));
    if (bytes > 0) {
      POSEIDON_CUDA(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes),
                                    cudaMemcpyDeviceToHost, context_->download()));
    }
    POSEIDON_RETURN_IF_ERROR(record_mark(marks.end, context_->download()));
    return static_cast<CudaTicket&>(ticket).record(context_->download());  // make_ticket made it
  }
  absl::StatusOr<std::unique_ptr<DeviceMark>> make_mark() override {
    context_->use();
    return CudaMark::create();
  }
  absl::Status mark(DeviceMark& mark) override {  // make_mark made it, below too
    return record_mark(&mark, context_->compute());
  }
  absl::StatusOr<Nanoseconds> time_between(const DeviceMark& earlier,
                                           const DeviceMark& later) override {
    return static_cast<const CudaMark&>(later).time_since(static_cast<const CudaMark&>(earlier));
  }
  absl::Status finish() override {
    context_->use();
    absl::Status status = context_->wait(context_->upload());
    status.Update(context_->wait(context_->compute()));
    status.Update(context_->wait(context_->download()));
    return status;
  }

  absl::Status add(float* target, const float* addend, std::int64_t elements,
                   Layout layout) override {
    cuda::sum(context_->compute(), layout, target, addend, target, elements);
    return launch_status("add");
  }

  absl::Status copy(std::span<const DeviceCopy> copies) override { return factors_.copy(copies); }
  absl::Status fetch(void* host, const void* device, std::int64_t bytes) override {
    return factors_.fetch(host, device, bytes);
  }
  absl::StatusOr<double> square_sum(const float* values, std::int64_t elements) override {
    return factors_.square_sum(values, elements);
  }
  absl::Status step_from_factors(const FactorStepArgs& args) override {
    return factors_.step(args);
  }
  absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs& args) override {
    return factors_.measure(args);
  }

  // What lies between layers has channels last, in bf16 as bfloat16, from the first convolution on.
  // Images of one pixel are small and near the losses: they keep their digits.
  Layout output_layout(const LayerSpec& layer, std::span<const Layout> inputs) const override {
    const Layout own = image_layout();
    const Shape& shape = layer.output_shape;
    if (shape.size() < 3 || shape[1] * shape[2] == 1) return Layout::kPlain;
    if (layer.type == LayerType::kConvolution) return own;
    return passes_layouts_on(layer.type) && are_all(inputs, own) ? own : Layout::kPlain;
  }

  // Where our own kernel writes the output anyway.
  ReluShare takes_relu(const LayerSpec& layer) const override {
    if (layer.type == LayerType::kBatchNorm) return ReluShare::kBoth;
    const bool has_products =
        layer.type == LayerType::kConvolution || layer.type == LayerType::kFullyConnected;
    const bool adds_a_bias = has_products && layer.parameters.size() > 1;
    return adds_a_bias || layer.type == LayerType::kAdd ? ReluShare::kForward : ReluShare::kNone;
  }

  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    context_->use();
    MadeOperator made = make_in_layouts(layer, options);
    if (!made.ok()) return in_layer(layer.name, made.status());
    return made;
  }

 private:
  // As tensor cores want them. In fp16 each would need a scale of its own, and `fp32` keeps to what
  // has no tensor cores, as GPUs before Ampere do, which have neither bfloat16 nor TF32.
  Layout image_layout() const {
    if (!context_->is_ampere()) return Layout::kPlain;
    switch (context_->precision()) {
      case CudaPrecision::kBfloat16:
        return Layout::kBfloat16;
      case CudaPrecision::kTf32:
        return Layout::kChannelsLast;
      case CudaPrecision::kFloat16:
      case CudaPrecision::kFloat32:
        break;
    }
    return Layout::kPlain;
  }
  static bool are_all(std::span<const Layout> layouts, Layout one) {
    return std::all_of(layouts.begin(), layouts.end(),
                       [one](Layout layout) { return layout == one; });
  }

  // The operator itself where it computes in these layouts, or between conversions.
  MadeOperator make_in_layouts(const LayerSpec& layer, const OperatorOptions& options) {
    std::vector<Layout> layouts = {options.output_layout};
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      layouts.push_back(options.input_layout(i));
    }
    if (are_all(layouts, Layout::kPlain) ||
        (passes_layouts_on(layer.type) && are_all(layouts, image_layout()))) {
      return make_any(layer, options);
    }
    if (layer.type == LayerType::kConvolution) {
      MadeOperator made = make_any(layer, options);
      if (!absl::IsUnimplemented(made.status())) return made;
    }
    OperatorOptions plain = options;
    plain.input_layouts = {};
    plain.output_layout = Layout::kPlain;
    POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<LayerOperator> made, make_any(layer, plain));
    return adapt_layouts(std::move(made), layer, options,
                         [this, taken = std::size_t{0}](std::int64_t batch, const Shape& shape,
                                                        Layout layout) mutable {
                           return make_cuda_twin(batch, shape, layout, taken, *context_);
                         });
  }

  MadeOperator make_any(const LayerSpec& layer, const OperatorOptions& options) {
    switch (layer.type) {
      case LayerType::kConvolution:
        return make_cuda_convolution(layer, options, *context_);
      case LayerType::kPooling:
        return make_cuda_pooling(layer, options, *context_);
      case LayerType::kFullyConnected:
        return make_cuda_fully_connected(layer, options, *context_);
      case LayerType::kRelu:
        return make_cuda_relu(layer, options, *context_);
      case LayerType::kLrn:
        return make_cuda_lrn(layer, options, *context_);
      case LayerType::kDropout:
        return make_cuda_dropout(layer, options, *context_);
      case LayerType::kSoftmaxCrossEntropy:
        return make_cuda_loss(layer, options, *context_);
      case LayerType::kAccuracy:
        return make_cuda_accuracy(layer, options, *context_);
      case LayerType::kAdd:
        return make_cuda_add(layer, options, *context_);
      case LayerType::kBatchNorm:
        return make_cuda_batch_norm(layer, options, *context_);
      case LayerType::kConcat:
        return make_cuda_concat(layer, options, *context_);
    }
    POSEIDON_CHECK(false, "layer type without an operator");
    return nullptr;
  }

  absl::Status copy_and_wait(void* to, const void* from, std::int64_t bytes, cudaMemcpyKind kind) {
    context_->use();
    if (bytes == 0) return absl::OkStatus();
    POSEIDON_CUDA(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, context_->compute()));
    return context_->wait(context_->compute());
  }

  const std::string name_;
  const std::unique_ptr<CudaContext> context_;
  CudaFactors factors_;
};

// ---- the plug-in ----

absl::StatusOr<int> device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) return 0;
  POSEIDON_RETURN_IF_ERROR(cuda_status(error, "cudaGetDeviceCount"));
  return count;
}

/// The oldest GPUs that our kernels and CUDA 13's libraries are compiled for (CMakeLists.txt).
constexpr int kOldestMajor = 7, kOldestMinor = 5;

absl::StatusOr<std::string> device_name(int ordinal) {
  cudaDeviceProp properties{};
  POSEIDON_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  if (std::pair(properties.major, properties.minor) < std::pair(kOldestMajor, kOldestMinor)) {
    return absl::UnimplementedError(absl::StrCat("GPU ", ordinal, " (", properties.name,
                                                 ") has compute capability ", properties.major, ".",
                                                 properties.minor, "; this version computes on ",
                                                 kOldestMajor, ".", kOldestMinor, " and later"));
  }
  return std::string(properties.name);
}

absl::StatusOr<std::string> device_bus_id(int ordinal) {
  std::array<char, 32> id{};
  POSEIDON_CUDA(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), ordinal));
  return absl::AsciiStrToLower(id.data());  // as the system writes it
}

absl::StatusOr<CudaPrecision> parse_precision(const std::string& precision) {
  if (precision == "fp32") return CudaPrecision::kFloat32;
  if (precision == "tf32") return CudaPrecision::kTf32;
  if (precision == "bf16") return CudaPrecision::kBfloat16;
  if (precision == "fp16") return CudaPrecision::kFloat16;
  return absl::InvalidArgumentError(absl::StrCat(
      "precision \"", precision, "\": expected one of \"fp32\", \"tf32\", \"bf16\", \"fp16\""));
}

absl::StatusOr<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  POSEIDON_ASSIGN_OR_RETURN(const CudaPrecision precision, parse_precision(options.precision));
  POSEIDON_ASSIGN_OR_RETURN(std::string name, device_name(options.ordinal));
  POSEIDON_ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context,
                            CudaContext::create(options.ordinal, precision, program->warn));
  return std::make_unique<CudaDevice>(
      absl::StrCat("cuda:", options.ordinal, " (", name, ", ", options.precision, ")"),
      std::move(context));
}

/// An error within a kernel or of the GPU itself ends the process's use of it: every later call
/// returns it, this one, too, which waits for nothing.
absl::Status device_health(int ordinal) {
  POSEIDON_RETURN_IF_ERROR(CudaContext::patience());
  std::size_t free_bytes = 0, all_bytes = 0;
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &all_bytes);
  // Another process uses the GPU or its memory, and will release it.
  if (error == cudaErrorMemoryAllocation || error == cudaErrorDevicesUnavailable) {
    static_cast<void>(cudaGetLastError());
    return absl::OkStatus();
  }
  return cuda_status(error, "cudaMemGetInfo");
}

constexpr DevicePlugin kPlugin = {.device_count = device_count,
                                  .device_name = device_name,
                                  .device_bus_id = device_bus_id,
                                  .make_device = make_device,
                                  .device_health = device_health};

}  // namespace
}  // namespace poseidon

extern "C" const char* poseidon_device_plugin_interface() {
  return poseidon::kDevicePluginInterface;
}

extern "C" const poseidon::DevicePlugin* poseidon_device_plugin(
    const poseidon::DevicePluginHost* host) {
  poseidon::program = host;
  return &poseidon::kPlugin;
}
