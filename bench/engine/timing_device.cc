#include "bench/engine/timing_device.h"

#include <chrono>
#include <cstddef>
#include <utility>

#include "common/status_macros.h"

namespace poseidon::bench {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class TimedOperator final : public LayerOperator {
 public:
  TimedOperator(std::unique_ptr<LayerOperator> inner, LayerTimes* times, std::size_t index)
      : inner_(std::move(inner)), times_(times), index_(index) {}

  absl::Status forward(const ForwardArgs& args) override {
    const double begin = now_seconds();
    absl::Status status = inner_->forward(args);
    (*times_)[index_].forward_seconds += now_seconds() - begin;
    return status;
  }
  absl::Status backward(const BackwardArgs& args) override {
    const double begin = now_seconds();
    absl::Status status = inner_->backward(args);
    (*times_)[index_].backward_seconds += now_seconds() - begin;
    return status;
  }

 private:
  const std::unique_ptr<LayerOperator> inner_;
  LayerTimes* const times_;
  const std::size_t index_;
};

class TimingDevice final : public Device {
 public:
  TimingDevice(std::unique_ptr<Device> inner, LayerTimes* times)
      : inner_(std::move(inner)), times_(times) {}

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
  absl::Status add(float* target, const float* addend, std::int64_t elements) override {
    return inner_->add(target, addend, elements);
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
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    POSEIDON_ASSIGN_OR_RETURN(auto inner, inner_->make_operator(layer, options));
    const std::size_t index = times_->size();
    times_->push_back({.layer = layer.name, .type = std::string(layer_type_name(layer.type))});
    return std::make_unique<TimedOperator>(std::move(inner), times_, index);
  }

 private:
  const std::unique_ptr<Device> inner_;
  LayerTimes* const times_;
};

}  // namespace

std::unique_ptr<Device> make_timing_device(std::unique_ptr<Device> inner, LayerTimes* times) {
  return std::make_unique<TimingDevice>(std::move(inner), times);
}

}  // namespace poseidon::bench
