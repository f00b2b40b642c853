#include "worker/engine/reference/reference_device.h"

#include <cstring>
#include <memory>
#include <string>

#include "worker/engine/reference/reference_operators.h"

namespace poseidon {
namespace {

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
  absl::Status add(float* target, const float* addend, std::int64_t elements) override {
    for (std::int64_t i = 0; i < elements; ++i) target[i] += addend[i];
    return absl::OkStatus();
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
      default:
        return reference_simple(layer, options);
    }
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace poseidon
