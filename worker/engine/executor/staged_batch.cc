#include "worker/engine/executor/staged_batch.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

/// 4 MiB: half a millisecond of copying, and few pieces to queue.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<StagedBatch>> StagedBatch::create(Device* device, PassTimes* times,
                                                                 std::int64_t elements) {
  std::unique_ptr<StagedBatch> staged(new StagedBatch(device, times, elements));
  POSEIDON_ASSIGN_OR_RETURN(staged->host_, device->allocate_host(elements * kFloatBytes));
  POSEIDON_ASSIGN_OR_RETURN(staged->device_memory_, device->allocate(elements * kFloatBytes));
  try {
    staged->copier_ = std::thread([one = staged.get()] { one->copy_batches(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no thread to copy batches with: ", error.what(), "; raise the limit on tasks"));
  }
  return staged;
}

StagedBatch::~StagedBatch() {
  if (!copier_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  copier_.join();
}

std::size_t StagedBatch::pieces() const {
  return static_cast<std::size_t>((elements_ + kPieceElements - 1) / kPieceElements);
}

void StagedBatch::copy_batches() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (!copy_piece(lock)) changed_.wait(lock);
  }
}

bool StagedBatch::copy_piece(std::unique_lock<std::mutex>& lock) {
  if (from_ == nullptr || copied_ == elements_) return false;
  const std::int64_t elements = std::min(kPieceElements, elements_ - copied_);
  const float* const from = from_ + copied_;
  float* const to = static_cast<float*>(host_.get()) + copied_;
  is_reading_ = true;
  lock.unlock();
  std::memcpy(to, from, static_cast<std::size_t>(elements * kFloatBytes));
  lock.lock();
  is_reading_ = false;
  copied_ += elements;
  changed_.notify_all();
  return true;
}

void StagedBatch::name(const Batch& batch) {
  POSEIDON_CHECK(static_cast<std::int64_t>(batch.images.size()) == elements_, "a whole batch");
  rest();
  batch_ = &batch;
  images_ = batch.images.data();
  first_sample_ = batch.first_sample;
}

bool StagedBatch::is_of(const Batch& batch) const {
  return batch_ == &batch && first_sample_ == batch.first_sample;
}

void StagedBatch::begin() {
  if (batch_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    from_ = images_;
  }
  changed_.notify_all();
}

absl::Status StagedBatch::start_up(std::int64_t copied, StartUpload start) {
  if (started_ == copied) return absl::OkStatus();
  const std::int64_t bytes = (copied - started_) * kFloatBytes;
  POSEIDON_RETURN_IF_ERROR((device_->*start)(static_cast<float*>(device_memory_.get()) + started_,
                                             static_cast<const float*>(host_.get()) + started_,
                                             bytes,
                                             times_->copy(Stage::kUpload, std::nullopt, bytes)));
  started_ = copied;
  return absl::OkStatus();
}

absl::Status StagedBatch::advance() {
  std::int64_t copied = 0;
  {
    const std::lock_guard lock(mutex_);
    copied = copied_;
  }
  return start_up(copied, &Device::start_early_upload);
}

absl::Status StagedBatch::complete() { return start_rest(&Device::start_early_upload); }

absl::Status StagedBatch::start_rest(StartUpload start) {
  if (batch_ == nullptr) return absl::OkStatus();
  {
    std::unique_lock lock(mutex_);
    POSEIDON_CHECK(from_ != nullptr, "a batch that was begun");
    changed_.wait(lock, [this] { return copied_ == elements_; });
  }
  return start_up(elements_, start);
}

// What is on its way up may be on it still: its buffers are those of the next batch, whose pieces
// are copied when the pass that started it has ended.
void StagedBatch::rest() {
  std::unique_lock lock(mutex_);
  from_ = nullptr;
  changed_.wait(lock, [this] { return !is_reading_; });
  batch_ = nullptr;
  copied_ = started_ = 0;
}

absl::Status StagedBatch::take(DeviceMemory& buffer) {
  begin();
  POSEIDON_RETURN_IF_ERROR(start_rest(&Device::start_upload));
  rest();
  std::swap(device_memory_, buffer);
  return absl::OkStatus();
}

}  // namespace poseidon
