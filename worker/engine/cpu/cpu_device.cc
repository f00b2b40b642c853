#include "worker/engine/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/process_load.h"
#include "common/tensor/scan.h"
#include "worker/engine/cpu/factor_step.h"
#include "worker/engine/cpu/loop_operators.h"
#include "worker/engine/cpu/onednn_operator.h"
#include "worker/engine/cpu/onednn_twin.h"
#include "worker/engine/cpu/parallel.h"
#include "worker/engine/cpu/vector_loops.h"
#include "worker/engine/executor/layout_adapter.h"
#include "worker/engine/executor/memory_plan.h"
#include "worker/engine/executor/network_executor.h"
#include "worker/engine/executor/tensor_lifetimes.h"

namespace poseidon {
namespace {

constexpr int kMaxThreads = 4096;
constexpr std::int64_t kAddGrainElements = 16384;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {}

  std::string name() const override { return absl::StrCat("cpu (oneDNN, ", threads_, " threads)"); }
  bool shares_host_memory() const override { return true; }
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    return allocate_aligned(bytes);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    return allocate_sendable(bytes);
  }
  // oneDNN asks OpenMP for the number of threads when a primitive is made and when it runs; the
  // setting belongs to the calling thread, which may be another one than at creation.
  void begin_pass() override { set_openmp_threads(threads_); }
  absl::Status upload(void* device, const void* host, std::int64_t bytes) override {
    std::memcpy(device, host, static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status download(void* host, const void* device, std::int64_t bytes) override {
    std::memcpy(host, device, static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status add(float* target, const float* addend, std::int64_t elements,
                   Layout /*layout*/) override {
    parallel_for(elements, kAddGrainElements, [&](std::int64_t begin, std::int64_t end) {
      vector_loops().sum(target + begin, addend + begin, target + begin, end - begin);
    });
    return absl::OkStatus();
  }

  absl::Status copy(std::span<const DeviceCopy> copies) override {
    for (const DeviceCopy& one : copies) {
      std::memcpy(one.to, one.from, static_cast<std::size_t>(one.elements) * sizeof(float));
    }
    return absl::OkStatus();
  }
  absl::Status fetch(void* host, const void* device, std::int64_t bytes) override {
    return download(host, device, bytes);
  }
  absl::StatusOr<double> square_sum(const float* values, std::int64_t elements) override {
    return poseidon::square_sum({values, static_cast<std::size_t>(elements)});
  }
  absl::Status step_from_factors(const FactorStepArgs& args) override {
    begin_pass();
    factor_scratch_.resize(factor_step_scratch(threads_));
    return cpu_step_from_factors(args, threads_, factor_scratch_);
  }
  absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs& args) override {
    begin_pass();
    factor_scratch_.resize(factor_step_scratch(threads_));
    return cpu_measure_factors(args, threads_, factor_scratch_);
  }

  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    begin_pass();
    try {
      return make_in_layouts(layer, options);
    } catch (const dnnl::error& error) {
      return absl::InternalError(
          absl::StrCat("layer '", layer.name, "': oneDNN cannot set it up: ", error.what()));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "layer '", layer.name, "': not enough memory; use a smaller batch or network"));
    }
  }

  // Images whose channels fill whole vectors stay in the layout of oneDNN's primitives
  // (channel_block). The layers between convolutions keep the layout of their input.
  Layout output_layout(const LayerSpec& layer, std::span<const Layout> inputs) const override {
    const std::int64_t block = channel_block();
    if (block == 1 || is_flexible(layer.output_shape) || layer.output_shape.front() % block != 0) {
      return Layout::kPlain;
    }
    if (layer.type == LayerType::kConvolution) return Layout::kDevice;
    const bool all = std::all_of(inputs.begin(), inputs.end(),
                                 [](Layout layout) { return layout == Layout::kDevice; });
    return all && passes_layouts_on(layer.type) ? Layout::kDevice : Layout::kPlain;
  }

 private:
  // Vectors, and images of one pixel: the same in both layouts.
  static bool is_flexible(const Shape& shape) {
    return shape.size() < 3 || shape[1] * shape[2] == 1;
  }

  // The operator itself where it computes in these layouts, or between conversions.
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_in_layouts(const LayerSpec& layer,
                                                                 const OperatorOptions& options) {
    if (layer.type == LayerType::kConvolution) return make(layer, options);
    const bool input_flexible = is_flexible(layer.input_shape);
    const bool output_flexible = is_flexible(layer.output_shape);
    bool any = !output_flexible && options.output_layout == Layout::kDevice;
    bool all = output_flexible || options.output_layout == Layout::kDevice;
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      const bool blocked = options.input_layout(i) == Layout::kDevice;
      any |= blocked && !input_flexible;
      all &= blocked || input_flexible;
    }
    OperatorOptions inner = options;
    inner.input_layouts = {};
    inner.output_layout = Layout::kPlain;
    if (!any) return make(layer, inner);
    if (!all || !passes_layouts_on(layer.type)) {
      return adapt_layouts(make(layer, inner), layer, options,
                           [this](std::int64_t batch, const Shape& shape, Layout layout) {
                             return make_onednn_twin(batch, shape, layout, context_);
                           });
    }
    const std::vector<Layout> layouts(layer.inputs.size(), Layout::kDevice);
    inner.input_layouts = layouts;
    inner.output_layout = Layout::kDevice;
    return make(layer, inner);
  }

  std::unique_ptr<LayerOperator> make(const LayerSpec& layer, const OperatorOptions& options) {
    switch (layer.type) {
      case LayerType::kConvolution:
        return make_convolution(layer, options, context_);
      case LayerType::kPooling:
        return layer.pool == LayerSpec::Pool::kMax ? make_max_pooling(layer, options)
                                                   : make_average_pooling(layer, options, context_);
      case LayerType::kFullyConnected:
        return make_fully_connected(layer, options, context_);
      case LayerType::kRelu:
        return make_relu(layer, options);
      case LayerType::kLrn:
        return make_lrn(layer, options, context_);
      case LayerType::kDropout:
        return make_dropout(layer, options);
      case LayerType::kSoftmaxCrossEntropy:
        return make_softmax_cross_entropy(layer, options);
      case LayerType::kAccuracy:
        return make_accuracy(layer, options);
      case LayerType::kAdd:
        return make_add(layer, options);
      case LayerType::kBatchNorm:
        return make_batch_norm(layer, options);
      case LayerType::kConcat:
        return make_concat(layer, options);
    }
    POSEIDON_CHECK(false, "layer type without an operator");
    return nullptr;
  }

  const int threads_;
  OnednnContext context_;
  std::vector<float> factor_scratch_;  ///< from the first step on
};

// A lower bound of the executor's allocations. `installed`: more than this is refused anyway.
double needed_bytes(const NetSpec& net, std::int64_t batch_size, double installed) {
  double needed = 2.0 * sizeof(float) * static_cast<double>(net.parameter_count());
  std::vector<OutputSpace> outputs;
  for (const LayerSpec& layer : net.layers) {
    const double bytes = static_cast<double>(element_count(layer.output_shape)) *
                         static_cast<double>(batch_size) * sizeof(float);
    if (bytes > installed) return needed + bytes;  // the plan could not count that far
    outputs.push_back({.bytes = static_cast<std::int64_t>(bytes)});
  }
  needed += static_cast<double>(plan_memory(plan_tensors(net.layers, outputs).buffers).total_bytes);
  return needed + static_cast<double>(element_count(net.input_shape)) *
                      static_cast<double>(batch_size) * sizeof(float);
}

absl::Status check_memory(const NetSpec& net, std::int64_t batch_size) {
  const auto installed = static_cast<double>(installed_memory_bytes());
  const double needed = needed_bytes(net, batch_size, installed);
  if (needed <= installed) return absl::OkStatus();
  constexpr double kMebibyte = 1024.0 * 1024.0;
  return absl::ResourceExhaustedError(
      absl::StrCat("network '", net.name, "' with batch size ", batch_size, " needs at least ",
                   static_cast<std::int64_t>(needed / kMebibyte), " MiB, this machine has ",
                   static_cast<std::int64_t>(installed / kMebibyte),
                   " MiB; use a smaller batch size or network"));
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  POSEIDON_CHECK(threads > 0, "a device computes on at least one thread");
  return std::make_unique<CpuDevice>(threads);
}

absl::StatusOr<std::unique_ptr<Executor>> make_cpu_executor(const NetSpec& net,
                                                            const ExecutorOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads must be from 0 (all cores) to ",
                                                   kMaxThreads, ", got ", options.threads));
  }
  // "tf32" is a permission that this device does not use.
  if (options.precision != "fp32" && options.precision != "tf32") {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision \"", options.precision,
        "\" needs a GPU: the CPU engine computes in float32; set precision to \"fp32\""));
  }
  if (options.batch_size > 0) {
    if (absl::Status status = check_memory(net, options.batch_size); !status.ok()) return status;
  }
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  try {
    return NetworkExecutor::create(net, options, make_cpu_device(threads));
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN cannot use this CPU: ", error.what()));
  }
}

}  // namespace poseidon
