// The part of NetworkExecutor that copies to and from the device in a pass.

#include <cstring>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "worker/engine/executor/network_executor.h"

namespace poseidon {

absl::Status NetworkExecutor::bring_parameters(LayerIndex layer, const ExecutionHooks& hooks) {
  ParameterRange& range = parameters_[layer.value()];
  FactorMemory* const kept = factors_[layer.value()].get();
  std::int64_t brought = 0;
  const auto bring_up_to = [&](std::int64_t elements) -> absl::Status {
    const std::int64_t first = std::exchange(brought, elements);
    const std::int64_t bytes = (elements - first) * kFloatBytes;
    return device_->start_upload(range.device_data + first, range.host_data + first, bytes,
                                 times_.copy(Stage::kUpload, layer, bytes));
  };
  const bool is_elsewhere = kept == nullptr && range.device_data != range.host_data;
  const bool takes_parts = is_elsewhere && !(hooks.same_parameters && range.is_up);
  if (hooks.before_forward) {
    POSEIDON_RETURN_IF_ERROR(
        hooks.before_forward(layer, takes_parts ? PartArrived(bring_up_to) : PartArrived()));
  }
  if (takes_parts) {
    POSEIDON_RETURN_IF_ERROR(bring_up_to(range.elements));
    range.is_up = true;
    return absl::OkStatus();
  }
  if (kept == nullptr || kept->is_up()) return absl::OkStatus();
  return kept->start_bringing_up(times_.copy(Stage::kUpload, layer, range.elements * kFloatBytes));
}

absl::Status NetworkExecutor::stage(const Batch& batch) {
  if (staged_ == nullptr) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(check(batch));
  staged_->name(batch);
  return absl::OkStatus();
}

absl::Status NetworkExecutor::bring_batch(const Batch& batch) {
  if (staged_ != nullptr && staged_->is_of(batch)) {
    POSEIDON_RETURN_IF_ERROR(staged_->take(input_));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (std::size_t k = 0; k < layers_[i].inputs.size(); ++k) {
        if (layers_[i].inputs[k] == kNetworkInput) nodes_[i].inputs[k] = floats(input_);
      }
    }
  } else {
    // Not the announced batch, which may come later; this happens in tests only.
    if (staged_ != nullptr && phase_ == Phase::kTrain) staged_->rest();
    const std::int64_t bytes = static_cast<std::int64_t>(batch.images.size()) * kFloatBytes;
    POSEIDON_RETURN_IF_ERROR(
        device_->start_upload(input_.get(), batch.images.data(), bytes,
                              times_.copy(Stage::kUpload, std::nullopt, bytes)));
  }
  const std::int64_t label_bytes = batch.samples * static_cast<std::int64_t>(sizeof(std::int32_t));
  if (host_labels_ == nullptr) {
    return device_->upload(labels_.get(), batch.labels.data(), label_bytes);
  }
  // Unused: the previous pass left nothing queued.
  std::memcpy(host_labels_.get(), batch.labels.data(), static_cast<std::size_t>(label_bytes));
  return device_->start_upload(labels_.get(), host_labels_.get(), label_bytes,
                               times_.copy(Stage::kUpload, std::nullopt, label_bytes));
}

absl::Status NetworkExecutor::return_layer(std::size_t index) {
  const Node& node = nodes_[index];
  const LayerIndex layer(static_cast<std::uint32_t>(node.parameter_layer));
  const ParameterRange& range = gradients_[layer.value()];
  const Return& place = returns_[layer.value()];
  const auto start = [&](void* host, const void* device, std::int64_t elements) {
    const std::int64_t bytes = elements * kFloatBytes;
    return device_->start_download(
        host, device, bytes, *place.ticket,
        bytes == 0 ? CopyMarks() : times_.copy(Stage::kDownload, layer, bytes));
  };
  const bool is_elsewhere = range.device_data != range.host_data;  // and not both null
  POSEIDON_RETURN_IF_ERROR(
      start(range.host_data, range.device_data, is_elsewhere ? range.elements : 0));
  if (factors_[layer.value()] != nullptr && !device_->shares_host_memory()) {
    const std::int64_t inputs = options_.batch_size * element_count(layers_[index].input_shape);
    POSEIDON_RETURN_IF_ERROR(
        start(place.output_gradient.get(), node.output_gradient, node.output_elements));
    POSEIDON_RETURN_IF_ERROR(start(place.input.get(), node.inputs[0], inputs));
  }
  returning_.push_back(layer.value());
  return absl::OkStatus();
}

absl::Status NetworkExecutor::hand_back(const ExecutionHooks& hooks, bool wait) {
  const auto advance = [this] {
    return staged_ == nullptr ? absl::OkStatus() : staged_->advance();
  };
  POSEIDON_RETURN_IF_ERROR(advance());
  for (; handed_back_ < returning_.size(); ++handed_back_) {
    const std::uint32_t layer = returning_[handed_back_];
    DeviceTicket& ticket = *returns_[layer].ticket;
    if (wait) {
      POSEIDON_RETURN_IF_ERROR(ticket.wait());
      POSEIDON_RETURN_IF_ERROR(advance());
    } else {
      POSEIDON_ASSIGN_OR_RETURN(const bool is_done, ticket.is_done());
      if (!is_done) return absl::OkStatus();
    }
    if (hooks.after_backward) hooks.after_backward(LayerIndex(layer));
  }
  return absl::OkStatus();
}

}  // namespace poseidon
