#include "worker/data/feed/batch_ring.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

void size_batch(Batch& batch, std::int64_t samples, const Shape& shape) {
  batch.samples = samples;
  batch.images.resize(static_cast<std::size_t>(samples * element_count(shape)));
  batch.labels.resize(static_cast<std::size_t>(samples));
}

/// The place of sample `i` in the batch.
std::span<float> image_of(Batch& batch, std::int64_t i) {
  const std::size_t size = batch.images.size() / batch.labels.size();
  return std::span(batch.images).subspan(static_cast<std::size_t>(i) * size, size);
}

/// By repeating its last valid sample.
void fill_up(Batch& batch) {
  const std::span<const float> last = image_of(batch, batch.valid_samples - 1);
  const std::int32_t label = batch.labels[static_cast<std::size_t>(batch.valid_samples - 1)];
  for (std::int64_t i = batch.valid_samples; i < batch.samples; ++i) {
    std::copy(last.begin(), last.end(), image_of(batch, i).begin());
    batch.labels[static_cast<std::size_t>(i)] = label;
  }
}

}  // namespace

std::size_t BatchRing::slots_for(std::size_t batch_bytes, std::size_t most) {
  return std::clamp<std::size_t>(kMaxPrefetchBytes / batch_bytes, 2, most);
}

BatchRing::BatchRing(std::shared_ptr<const Dataset> dataset, Sampler sampler,
                     const BatchSequence& sequence, std::vector<SampleReader> readers,
                     const Shape& sample_shape, std::size_t slots, std::shared_ptr<DataProbe> probe)
    : dataset_(std::move(dataset)),
      sequence_(sequence),
      probe_(std::move(probe)),
      piece_samples_(std::clamp<std::int64_t>(
          sequence.batch_size / (4 * static_cast<std::int64_t>(readers.size())), 1,
          kMaxPieceSamples)),
      readers_(std::move(readers)),
      slots_(slots),
      sampler_(sampler),
      ahead_(std::move(sampler)) {
  POSEIDON_CHECK(slots >= 2, "a slot for the caller and one to read into");
  // Here rather than in a thread: memory that is missing is missed before training starts.
  for (Slot& slot : slots_) size_batch(slot.batch, sequence_.batch_size, sample_shape);
}

absl::Status BatchRing::start() {
  try {
    for (SampleReader& reader : readers_) {
      threads_.emplace_back([this, &reader] { work(reader); });
    }
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      return absl::ResourceExhaustedError(
          str_cat("no thread to read data with: ", error.what(), "; raise the limit on tasks"));
    }
  }
  return absl::OkStatus();
}

BatchRing::~BatchRing() {
  stopping_ = true;
  {
    const std::lock_guard lock(mutex_);  // so that a thread about to wait does not miss the word
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<const Batch*> BatchRing::next(Milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  // The slot handed out by the last successful call is the caller's until now.
  released_ = taken_;
  changed_.notify_all();
  const bool is_ready = changed_.wait_until(
      lock, start + timeout, [this] { return produced_ > taken_ || taken_ >= failed_batch_; });
  const auto waited = std::chrono::steady_clock::now() - start;
  if (probe_ != nullptr) {
    probe_->stalled(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count()));
  }
  if (produced_ > taken_) {
    if (probe_ != nullptr) probe_->ready(produced_ - taken_ - 1);
    Batch& batch = slot_of(taken_++).batch;
    lock.unlock();
    fill_up(batch);
    return &batch;
  }
  if (is_ready) return failure_;
  return absl::DeadlineExceededError(
      str_cat(dataset_->name(), ": the next batch was not read and transformed within ",
              timeout.count(), " ms"));
}

const Batch* BatchRing::peek() {
  const std::lock_guard lock(mutex_);
  return produced_ > taken_ ? &slot_of(taken_).batch : nullptr;
}

/// Its number in its pass.
std::uint64_t BatchRing::in_pass(std::uint64_t batch) const {
  if (sequence_.pass_samples == 0) return batch;
  const std::int64_t batches =
      (sequence_.pass_samples + sequence_.batch_size - 1) / sequence_.batch_size;
  return batch % static_cast<std::uint64_t>(batches);
}

std::int64_t BatchRing::valid_samples(std::uint64_t batch) const {
  if (sequence_.pass_samples == 0) return sequence_.batch_size;
  const auto before = static_cast<std::int64_t>(in_pass(batch)) * sequence_.batch_size;
  return std::min(sequence_.batch_size, sequence_.pass_samples - before);
}

std::uint64_t BatchRing::position_of(std::uint64_t batch, std::int64_t i) const {
  return sequence_.first + in_pass(batch) * sequence_.stride + static_cast<std::uint64_t>(i);
}

/// Waits until there is something to do; false when there never will be.
bool BatchRing::take(Piece& piece) {
  std::unique_lock lock(mutex_);
  // Woken by next() and by the destructor, one of which comes: no deadline needed.
  changed_.wait(lock, [&] {
    return stopping_ || failed_batch_ != kNever || next_batch_ < released_ + slots_.size();
  });
  if (stopping_ || failed_batch_ != kNever) return false;
  piece.batch = next_batch_;
  piece.first = next_sample_;
  if (next_sample_ == 0) begin_batch(next_batch_);
  const std::int64_t valid = valid_samples(next_batch_);
  const std::int64_t end = std::min(valid, next_sample_ + piece_samples_);
  piece.indices.clear();
  piece.ahead.clear();
  for (; next_sample_ < end; ++next_sample_) {
    piece.indices.push_back(sampler_.index_at(position_of(next_batch_, next_sample_)));
    if (dataset_->reads_ahead()) piece.ahead.push_back(ahead_.index_at(position_ahead()));
  }
  if (next_sample_ == valid) {
    next_sample_ = 0;
    ++next_batch_;
  }
  return true;
}

/// Of the sample kReadAheadSamples behind the next one, or near it.
std::uint64_t BatchRing::position_ahead() const {
  const std::int64_t sample = next_sample_ + kReadAheadSamples;
  const std::uint64_t batch =
      next_batch_ + static_cast<std::uint64_t>(sample / sequence_.batch_size);
  return position_of(batch, std::min(sample % sequence_.batch_size, valid_samples(batch) - 1));
}

void BatchRing::begin_batch(std::uint64_t number) {
  Slot& slot = slot_of(number);
  slot.missing = valid_samples(number);
  slot.batch.first_sample = position_of(number, 0);
  slot.batch.valid_samples = slot.missing;
}

void BatchRing::work(SampleReader& reader) {
  Piece piece;
  while (take(piece)) {
    for (const std::int64_t index : piece.ahead) dataset_->will_read(index);
    const absl::Status status = fill(reader, piece);
    if (stopping_) return;
    const std::lock_guard lock(mutex_);
    if (status.ok()) {
      slot_of(piece.batch).missing -= static_cast<std::int64_t>(piece.indices.size());
    } else if (piece.batch < failed_batch_) {
      failed_batch_ = piece.batch;
      failure_ = status;
    }
    const std::uint64_t begun = next_batch_ + (next_sample_ > 0 ? 1 : 0);
    while (produced_ < begun && slot_of(produced_).missing == 0) ++produced_;
    changed_.notify_all();
  }
}

absl::Status BatchRing::fill(SampleReader& reader, const Piece& piece) {
  Batch& batch = slot_of(piece.batch).batch;
  for (std::size_t i = 0; i < piece.indices.size() && !stopping_; ++i) {
    const std::int64_t place = piece.first + static_cast<std::int64_t>(i);
    POSEIDON_RETURN_IF_ERROR(reader.read(
        piece.indices[i], position_of(piece.batch, place), sequence_.phase, image_of(batch, place),
        batch.labels[static_cast<std::size_t>(place)], &stopping_));
  }
  return absl::OkStatus();
}

}  // namespace poseidon
