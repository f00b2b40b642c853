#include "worker/engine/executor/factor_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/base/check.h"

namespace poseidon {
namespace {

std::int64_t bytes_of(const StateRange& range, std::size_t values) {
  POSEIDON_CHECK(static_cast<std::int64_t>(values) == range.elements, "as many values as named");
  return range.elements * kFloatBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FactorMemory>> FactorMemory::create(Device* device,
                                                                   std::span<float> host,
                                                                   float* device_parameters,
                                                                   int optimizer_slots) {
  std::unique_ptr<FactorMemory> memory(new FactorMemory(device, host, device_parameters));
  POSEIDON_CHECK(static_cast<std::size_t>(optimizer_slots) <= memory->slots_.size(),
                 "optimizers have two slots at most");
  for (int slot = 0; slot < optimizer_slots; ++slot) {
    POSEIDON_ASSIGN_OR_RETURN(memory->slots_[static_cast<std::size_t>(slot)],
                              device->allocate(static_cast<std::int64_t>(host.size_bytes())));
  }
  return memory;
}

absl::Status FactorMemory::bring_up() {
  if (is_up_) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(device_->upload(device_parameters_, host_.data(),
                                           static_cast<std::int64_t>(host_.size_bytes())));
  is_up_ = true;
  return absl::OkStatus();
}

absl::Status FactorMemory::start_bringing_up(const CopyMarks& marks) {
  if (is_up_) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(device_->start_upload(
      device_parameters_, host_.data(), static_cast<std::int64_t>(host_.size_bytes()), marks));
  is_up_ = true;
  return absl::OkStatus();
}

absl::Status FactorMemory::fetch_parameters() {
  if (is_shared() || host_is_current_) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(device_->fetch(host_.data(), device_parameters_,
                                          static_cast<std::int64_t>(host_.size_bytes())));
  host_is_current_ = true;
  return absl::OkStatus();
}

std::span<float> FactorMemory::slot(int number) {
  const DeviceMemory& memory = slots_[static_cast<std::size_t>(number)];
  return memory == nullptr ? std::span<float>() : std::span<float>(floats(memory), host_.size());
}

float* FactorMemory::place(const StateRange& range) {
  const std::span<float> all = range.slot > 0 ? slot(range.slot - 1)
                               : is_up_       ? parameters()
                                              : host_;
  POSEIDON_CHECK(range.offset >= 0 && range.elements >= 0 &&
                     range.offset + range.elements <= static_cast<std::int64_t>(all.size()),
                 "a range within the layer");
  return all.data() + range.offset;
}

absl::Status FactorMemory::read(const StateRange& range, std::span<float> values) {
  const std::int64_t bytes = bytes_of(range, values.size());
  if (range.slot > 0 || is_up_) return device_->fetch(values.data(), place(range), bytes);
  std::memcpy(values.data(), place(range), static_cast<std::size_t>(bytes));
  return absl::OkStatus();
}

absl::Status FactorMemory::write(const StateRange& range, std::span<const float> values) {
  const std::int64_t bytes = bytes_of(range, values.size());
  if (range.slot > 0 || is_up_) {
    if (range.slot == 0) host_is_current_ = false;
    return device_->upload(place(range), values.data(), bytes);
  }
  std::memcpy(place(range), values.data(), static_cast<std::size_t>(bytes));
  return absl::OkStatus();
}

absl::Status FactorMemory::hold(std::span<const StateRange> ranges) {
  POSEIDON_RETURN_IF_ERROR(bring_up());
  if (!std::equal(ranges.begin(), ranges.end(), held_.begin(), held_.end())) {
    std::int64_t elements = 0;
    for (const StateRange& range : ranges) elements += range.elements;
    held_.clear();
    held_values_.reset();
    if (ranges.empty()) return absl::OkStatus();
    POSEIDON_ASSIGN_OR_RETURN(held_values_, device_->allocate(elements * kFloatBytes));
    held_.assign(ranges.begin(), ranges.end());
  }
  std::vector<DeviceCopy> copies;
  copies.reserve(held_.size());
  float* to = floats(held_values_);
  for (const StateRange& range : held_) {
    copies.push_back({.to = to, .from = place(range), .elements = range.elements});
    to += range.elements;
  }
  return device_->copy(copies);
}

absl::Status FactorMemory::read_held(const StateRange& range, std::span<float> values) {
  const float* from = floats(held_values_);
  for (const StateRange& held : held_) {
    if (held == range) return device_->fetch(values.data(), from, bytes_of(range, values.size()));
    from += held.elements;
  }
  return absl::NotFoundError("this part of the layer's state was not held");
}

}  // namespace poseidon
