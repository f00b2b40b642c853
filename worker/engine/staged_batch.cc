#include "worker/engine/staged_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace poseidon {
namespace {

/// 1 MiB: a tenth of a millisecond.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 18;

}  // namespace

absl::StatusOr<std::unique_ptr<StagedBatch>> StagedBatch::create(Device* device, PassTimes* times,
                                                                 std::int64_t elements) {
  std::unique_ptr<StagedBatch> staged(new StagedBatch(device, times, elements));
  POSEIDON_ASSIGN_OR_RETURN(staged->host_, device->allocate_host(elements * kFloatBytes));
  POSEIDON_ASSIGN_OR_RETURN(staged->device_memory_, device->allocate(elements * kFloatBytes));
  return staged;
}

std::size_t StagedBatch::pieces() const {
  return static_cast<std::size_t>((elements_ + kPieceElements - 1) / kPieceElements);
}

void StagedBatch::begin(const Batch& batch) {
  POSEIDON_CHECK(static_cast<std::int64_t>(batch.images.size()) == elements_, "a whole batch");
  batch_ = &batch;
  first_sample_ = batch.first_sample;
  copied_ = 0;
}

bool StagedBatch::is_of(const Batch& batch) const {
  return batch_ == &batch && first_sample_ == batch.first_sample;
}

absl::Status StagedBatch::copy_piece() {
  POSEIDON_CHECK(has_more(), "something to copy");
  const std::int64_t elements = std::min(kPieceElements, elements_ - copied_);
  float* const from = static_cast<float*>(host_.get()) + copied_;
  float* const to = static_cast<float*>(device_memory_.get()) + copied_;
  std::memcpy(from, batch_->images.data() + copied_,
              static_cast<std::size_t>(elements * kFloatBytes));
  copied_ += elements;
  const std::int64_t bytes = elements * kFloatBytes;
  return device_->start_upload(to, from, bytes, times_->copy(Stage::kUpload, std::nullopt, bytes));
}

absl::Status StagedBatch::take(DeviceMemory& buffer) {
  while (has_more()) POSEIDON_RETURN_IF_ERROR(copy_piece());
  batch_ = nullptr;
  std::swap(device_memory_, buffer);
  return absl::OkStatus();
}

}  // namespace poseidon
