// What goes into checkpoints, and what comes from them.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/tensor/scan.h"
#include "server/shard/shard.h"

namespace poseidon {

absl::Status Shard::restore(ChunkId chunk, std::uint32_t slot, std::int64_t offset,
                            const Bytes& values) {
  Slot* found = find(chunk);
  if (found == nullptr || found->version >= 0 || slot > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", slot, " of chunk ", chunk.value(), " cannot be restored here"));
  }
  Values& into = found->current;
  FloatBuffer& buffer = slot == 0 ? into.parameters : slot == 1 ? into.state0 : into.state1;
  const std::span<float> all = buffer.floats();
  const std::size_t elements = values.size() / sizeof(float);
  const auto at = static_cast<std::size_t>(offset);
  if (offset < 0 || values.size() % sizeof(float) != 0 || elements > all.size() ||
      at > all.size() - elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint has ", values.size(), " bytes at element ", offset, " for slot ", slot,
        " of chunk ", chunk.value(), ", which has ", all.size(), " elements"));
  }
  copy_payload(values, all.subspan(at, elements));
  return absl::OkStatus();
}

Objection Shard::restored(Iteration version) {
  for (Slot& slot : slots_) {
    if (!round_parameters(slot)) return stop(slot, "the checkpoint's parameters");
    slot.version = version;
  }
  return {};
}

absl::Status Shard::freeze_at(Iteration version) {
  if (freeze_at_ && version < *freeze_at_) {
    return absl::OutOfRangeError(
        absl::StrCat("version ", *freeze_at_, " waits to be frozen, beyond ", version));
  }
  for (const Slot& slot : slots_) {
    if (slot.version <= version) continue;
    return absl::OutOfRangeError(absl::StrCat("chunk ", slot.id.value(), " is at version ",
                                              slot.version, ", beyond ", version));
  }
  if (slots_.empty() || (freeze_every_ > 0 && version % freeze_every_ == 0)) return {};
  // Their step did not know that it would be asked for.
  for (const Slot& slot : slots_) {
    if (slot.version == version) POSEIDON_RETURN_IF_ERROR(check_finite(slot, slot.current));
  }
  freeze_at_ = version;
  frozen_at_ = 0;
  for (Slot& slot : slots_) {  // others may be at the restored version, which is no checkpoint's
    if (slot.version == version) freeze_if_due(slot);
  }
  return absl::OkStatus();
}

/// Freezes a version once; later calls for it do nothing.
void Shard::freeze(Slot& slot, Iteration version) {
  if (std::exchange(slot.frozen[static_cast<std::size_t>(version % 2)], version) == version) return;
  const Values& values = version == slot.version ? slot.current : slot.previous;
  frozen_.push_back({slot.id, version, values.parameters, values.state0, values.state1});
}

HeldRange Shard::held() const {
  HeldRange held;
  for (const Slot& slot : slots_) {
    const bool has_previous = slot.previous.parameters.size_bytes() > 0;
    held.oldest = std::max(held.oldest, has_previous ? slot.version - 1 : slot.version);
    held.newest = std::min(held.newest, slot.version);
  }
  return held;
}

absl::Status Shard::freeze_held(Iteration version) {
  const HeldRange range = held();
  if (version < range.oldest || version > range.newest) {
    return absl::FailedPreconditionError(absl::StrCat("version ", version, " is not held; ",
                                                      range.oldest, " to ", range.newest, " are"));
  }
  for (const Slot& slot : slots_) {
    POSEIDON_RETURN_IF_ERROR(
        check_finite(slot, version == slot.version ? slot.current : slot.previous));
  }
  for (Slot& slot : slots_) freeze(slot, version);
  return absl::OkStatus();
}

absl::Status Shard::check_finite(const Slot& slot, const Values& values) const {
  if (all_finite(values.parameters.floats())) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the parameters of layer ", plan_.layers[plan_.chunks[slot.id.value()].layer.value()].name,
      " hold values that are infinite or not a number (chunk ", slot.id.value(),
      "), and go into no checkpoint: try a smaller optimizer.learning_rate"));
}

bool Shard::freezes_at(Iteration version) const {
  return freeze_at_ == version ||
         (freeze_every_ > 0 && version > 0 && version % freeze_every_ == 0);
}

void Shard::freeze_if_due(Slot& slot) {
  if (!freezes_at(slot.version)) return;
  freeze(slot, slot.version);
  if (freeze_at_ == slot.version && ++frozen_at_ == slots_.size()) freeze_at_.reset();
}

}  // namespace poseidon
