// Plug-ins for device_plugin_test.cc, built three times: libposeidon_fake.so has one memory-only
// device, libposeidon_stale.so (POSEIDON_FAKE_STALE) is of another build, and libposeidon_hollow.so
// (POSEIDON_FAKE_HOLLOW) lacks a function.

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/engine/plugin/device_plugin_entry.h"

namespace {

using namespace poseidon;

const DevicePluginHost* program = nullptr;

// Memory comes from the program, copies are memcpy; there are no operators.
class MemoryDevice final : public Device {
 public:
  explicit MemoryDevice(const DeviceOptions& options) : options_(options) {}
  std::string name() const override {
    return absl::StrCat("fake:", options_.ordinal, " ", options_.precision);
  }
  bool shares_host_memory() const override { return false; }
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    return DeviceMemory(program->allocate_tensor_memory(static_cast<std::size_t>(bytes)),
                        program->free_tensor_memory);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    return allocate(bytes);
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
  absl::Status add(float*, const float*, std::int64_t, Layout) override { return refuse(); }
  absl::Status copy(std::span<const DeviceCopy>) override { return refuse(); }
  absl::Status fetch(void*, const void*, std::int64_t) override { return refuse(); }
  absl::StatusOr<double> square_sum(const float*, std::int64_t) override { return refuse(); }
  absl::Status step_from_factors(const FactorStepArgs&) override { return refuse(); }
  absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs&) override { return refuse(); }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(const LayerSpec&,
                                                               const OperatorOptions&) override {
    return refuse();
  }

 private:
  static absl::Status refuse() { return absl::UnimplementedError("memory only"); }
  const DeviceOptions options_;
};

absl::StatusOr<int> device_count() { return 2; }
absl::StatusOr<std::string> device_name(int ordinal) {
  if (ordinal < 2) return absl::StrCat("Fake ", ordinal);
  return absl::InvalidArgumentError("no such fake");
}

absl::StatusOr<std::string> device_bus_id(int ordinal) {
  return absl::StrCat("0000:0", ordinal, ":00.0");
}
absl::StatusOr<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  return std::make_unique<MemoryDevice>(options);
}

absl::Status device_health(int ordinal) {
  return ordinal == 0 ? absl::OkStatus() : absl::InternalError("worn out");
}

constexpr DevicePlugin kPlugin = {.device_count = device_count,
                                  .device_name = device_name,
                                  .device_bus_id = device_bus_id,
                                  .make_device = make_device,
                                  .device_health = device_health};

}  // namespace

extern "C" const char* poseidon_device_plugin_interface() {
#ifdef POSEIDON_FAKE_STALE
  return "poseidon device 0, compiler 1, abseil 1";
#else
  return poseidon::kDevicePluginInterface;
#endif
}

#ifndef POSEIDON_FAKE_HOLLOW
extern "C" const poseidon::DevicePlugin* poseidon_device_plugin(
    const poseidon::DevicePluginHost* host) {
  program = host;
  return &kPlugin;
}
#else
extern "C" const void* poseidon_unused() { return &kPlugin; }
#endif
