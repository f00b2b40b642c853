#include "bench/engine/timing_device.h"

#include <chrono>
#include <cstddef>
#include <utility>

#include "common/base/check.h"
#include "worker/engine/executor/forwarding_device.h"

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

class TimingDevice final : public ForwardingDevice {
 public:
  TimingDevice(std::unique_ptr<Device> inner, LayerTimes* times)
      : ForwardingDevice(std::move(inner)), times_(times) {}

  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    POSEIDON_ASSIGN_OR_RETURN(auto made, inner().make_operator(layer, options));
    const std::size_t index = times_->size();
    times_->push_back({.layer = layer.name, .type = std::string(layer_type_name(layer.type))});
    return std::make_unique<TimedOperator>(std::move(made), times_, index);
  }

 private:
  LayerTimes* const times_;
};

}  // namespace

std::unique_ptr<Device> make_timing_device(std::unique_ptr<Device> inner, LayerTimes* times) {
  return std::make_unique<TimingDevice>(std::move(inner), times);
}

}  // namespace poseidon::bench
