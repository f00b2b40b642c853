#include "tests/twins/reference_device/reference_device.h"

#include <cstring>
#include <memory>
#include <string>

#include "common/tensor/scan.h"
#include "tests/twins/reference_device/reference_operators.h"

namespace poseidon {
namespace {

/// use(step of the tensor, place in the layer, gradient there) for every parameter.
template <typename Use>
void for_each_gradient(const FactorStepArgs& args, const Use& use) {
  for (std::int64_t m = 0; m < args.outputs; ++m) {
    double bias = 0.0;
    for (std::int64_t r = 0; r < args.rows; ++r) {
      bias += args.output_gradients[r * args.outputs + m];
    }
    if (args.has_bias) {
      use(args.bias_step, args.outputs * args.inputs + m, static_cast<float>(bias));
    }
    for (std::int64_t n = 0; n < args.inputs; ++n) {
      double sum = 0.0;
      for (std::int64_t r = 0; r < args.rows; ++r) {
        sum += static_cast<double>(args.output_gradients[r * args.outputs + m]) *
               args.input_values[r * args.inputs + n];
      }
      use(args.weight_step, m * args.inputs + n, static_cast<float>(sum));
    }
  }
}

class ReferenceDevice final : public Device {
 public:
  std::string name() const override { return "reference"; }
  bool shares_host_memory() const override { return false; }
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    return allocate_aligned(bytes);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    return allocate_sendable(bytes);
  }
  void begin_pass() override {}
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
    for (std::int64_t i = 0; i < elements; ++i) target[i] += addend[i];
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
    for_each_gradient(args, [&args](const OptimizerStep& rule, std::int64_t at, float gradient) {
      const auto one = [at](std::span<float> all) {
        return all.empty() ? all : all.subspan(static_cast<std::size_t>(at), 1);
      };
      apply_optimizer(rule, {&gradient, 1}, one(args.parameters), one(args.parameters),
                      one(args.state0), one(args.state1));
    });
    return absl::OkStatus();
  }
  absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs& args) override {
    FactorSquares squares;
    for_each_gradient(args, [&](const OptimizerStep&, std::int64_t at, float gradient) {
      (at < args.outputs * args.inputs ? squares.weight : squares.bias) +=
          static_cast<double>(gradient) * gradient;
    });
    return squares;
  }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    switch (layer.type) {
      case LayerType::kConvolution:
        return reference_convolution(layer, options);
      case LayerType::kPooling:
        return reference_pooling(layer, options);
      case LayerType::kLrn:
        return reference_lrn(layer, options);
      case LayerType::kBatchNorm:
        return reference_batch_norm(layer, options);
      case LayerType::kSoftmaxCrossEntropy:
      case LayerType::kAccuracy:
        return reference_scores(layer, options);
      default:
        return reference_simple(layer, options);
    }
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace poseidon
