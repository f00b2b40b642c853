#include "bench/transport/shared_sums.h"

#include "absl/strings/str_cat.h"
#include "bench/transport/variant.h"
#include "common/base/check.h"

namespace poseidon::bench {

SharedSums::SharedSums(const Plan& plan, ServerIndex self)
    : workers_(plan.workers()), slots_(plan.chunks.size()) {
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    if (plan.chunks[i].server != self) continue;
    slots_[i].sum = FloatBuffer(plan.chunks[i].elements);
    ++owned_chunks_;
  }
}

std::size_t SharedSums::elements(ChunkId chunk) const {
  return chunk.value() < slots_.size() ? slots_[chunk.value()].sum.floats().size() : 0;
}

absl::StatusOr<std::span<float>> SharedSums::begin_add(ChunkId chunk, WorkerRank rank) {
  Slot& slot = slots_[chunk.value()];
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kEndTimeout, [&] { return slot.turn == rank.value(); })) {
    return absl::DeadlineExceededError(
        absl::StrCat("chunk ", chunk.value(), " waits for worker ", slot.turn));
  }
  return slot.sum.floats();
}

void SharedSums::end_add(ChunkId chunk) {
  const std::lock_guard lock(mutex_);
  ++slots_[chunk.value()].turn;
  changed_.notify_all();
}

bool SharedSums::is_complete(ChunkId chunk) {
  const std::lock_guard lock(mutex_);
  return slots_[chunk.value()].turn == workers_;
}

absl::Status SharedSums::wait_complete(ChunkId chunk) {
  Slot& slot = slots_[chunk.value()];
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kEndTimeout, [&] { return slot.turn == workers_; })) {
    return absl::DeadlineExceededError(
        absl::StrCat("chunk ", chunk.value(), " waits for worker ", slot.turn));
  }
  return absl::OkStatus();
}

std::span<const float> SharedSums::sum(ChunkId chunk) const {
  return slots_[chunk.value()].sum.floats();
}

void SharedSums::sent(ChunkId chunk) {
  Slot& slot = slots_[chunk.value()];
  const std::lock_guard lock(mutex_);
  if (++slot.sent < workers_) return;
  slot.turn = 0;
  slot.sent = 0;
  changed_.notify_all();
}

absl::Status Contributor::contribute(ChunkId chunk, const Take& take, const Send& send) {
  POSEIDON_ASSIGN_OR_RETURN(const std::span<float> sum, sums_->begin_add(chunk, rank_));
  POSEIDON_RETURN_IF_ERROR(take(sum, rank_ == WorkerRank(0)));
  sums_->end_add(chunk);
  unanswered_.push_back(chunk);
  const bool all_are_in = ++contributed_ == sums_->owned_chunks();
  while (!unanswered_.empty()) {
    const ChunkId next = unanswered_.front();
    if (all_are_in) {
      POSEIDON_RETURN_IF_ERROR(sums_->wait_complete(next));
    } else if (!sums_->is_complete(next)) {
      break;
    }
    POSEIDON_RETURN_IF_ERROR(send(next, sums_->sum(next)));
    sums_->sent(next);
    unanswered_.pop_front();
  }
  if (all_are_in) contributed_ = 0;
  return absl::OkStatus();
}

}  // namespace poseidon::bench
