#pragma once

// A device that forwards to another one. Decorators that watch or delay a device override single
// functions.

#include <memory>
#include <string>
#include <utility>

#include "worker/engine/device.h"

namespace poseidon {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  bool shares_host_memory() const override { return inner_->shares_host_memory(); }
  absl::StatusOr<DeviceMemory> allocate(std::int64_t bytes) override {
    return inner_->allocate(bytes);
  }
  absl::StatusOr<DeviceMemory> allocate_host(std::int64_t bytes) override {
    return inner_->allocate_host(bytes);
  }
  void begin_pass() override { inner_->begin_pass(); }
  absl::Status upload(void* device, const void* host, std::int64_t bytes) override {
    return inner_->upload(device, host, bytes);
  }
  absl::Status download(void* host, const void* device, std::int64_t bytes) override {
    return inner_->download(host, device, bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceTicket>> make_ticket() override {
    return inner_->make_ticket();
  }
  absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                            const CopyMarks& marks) override {
    return inner_->start_upload(device, host, bytes, marks);
  }
  absl::Status start_early_upload(void* device, const void* host, std::int64_t bytes,
                                  const CopyMarks& marks) override {
    return inner_->start_early_upload(device, host, bytes, marks);
  }
  absl::Status start_download(void* host, const void* device, std::int64_t bytes,
                              DeviceTicket& ticket, const CopyMarks& marks) override {
    return inner_->start_download(host, device, bytes, ticket, marks);
  }
  absl::Status finish() override { return inner_->finish(); }
  absl::StatusOr<std::unique_ptr<DeviceMark>> make_mark() override { return inner_->make_mark(); }
  absl::Status mark(DeviceMark& mark) override { return inner_->mark(mark); }
  absl::StatusOr<Nanoseconds> time_between(const DeviceMark& earlier,
                                           const DeviceMark& later) override {
    return inner_->time_between(earlier, later);
  }
  absl::Status add(float* target, const float* addend, std::int64_t elements,
                   Layout layout) override {
    return inner_->add(target, addend, elements, layout);
  }
  absl::Status copy(std::span<const DeviceCopy> copies) override { return inner_->copy(copies); }
  absl::Status fetch(void* host, const void* device, std::int64_t bytes) override {
    return inner_->fetch(host, device, bytes);
  }
  absl::StatusOr<double> square_sum(const float* values, std::int64_t elements) override {
    return inner_->square_sum(values, elements);
  }
  absl::Status step_from_factors(const FactorStepArgs& args) override {
    return inner_->step_from_factors(args);
  }
  absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs& args) override {
    return inner_->measure_factors(args);
  }
  Layout output_layout(const LayerSpec& layer, std::span<const Layout> inputs) const override {
    return inner_->output_layout(layer, inputs);
  }
  ReluShare takes_relu(const LayerSpec& layer) const override { return inner_->takes_relu(layer); }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    return inner_->make_operator(layer, options);
  }

 protected:
  Device& inner() { return *inner_; }

 private:
  const std::unique_ptr<Device> inner_;
};

}  // namespace poseidon
