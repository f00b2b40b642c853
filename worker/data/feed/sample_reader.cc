#include "worker/data/feed/sample_reader.h"

#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"

namespace poseidon {

CorruptSamples::CorruptSamples(std::shared_ptr<const Dataset> dataset, double max_share,
                               std::shared_ptr<DataProbe> probe, Log log)
    : dataset_(std::move(dataset)),
      limit_(
          static_cast<std::int64_t>(std::ceil(max_share * static_cast<double>(dataset_->size())))),
      probe_(std::move(probe)),
      log_(std::move(log)) {}

absl::Status CorruptSamples::add(std::int64_t index, const absl::Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!found_.insert(index).second) return absl::OkStatus();
  const std::string text = str_cat(dataset_->sample_name(index), ": ", from_absl(reason.message()));
  if (static_cast<std::int64_t>(found_.size()) > limit_) {
    found_.erase(index);  // stays bounded, and the next one finds the same
    return absl::DataLossError(
        str_cat("more than ", limit_, " of ", dataset_->size(), " samples of ", dataset_->name(),
                " cannot be read, the last one is ", text,
                "; find them with `poseidon data check`, or raise data.max_corrupt_share"));
  }
  if (probe_ != nullptr) probe_->found_corrupt();
  if (!log_) return absl::OkStatus();
  if (found_.size() <= kMaxNamedSamples) {
    log_(str_cat("left out: ", text));
  } else if (found_.size() == kMaxNamedSamples + 1) {
    log_(str_cat(dataset_->name(), ": more samples that cannot be read are counted, not named"));
  }
  return absl::OkStatus();
}

void CorruptSamples::never_again(std::int64_t index) {
  const std::lock_guard lock(mutex_);
  if (found_.count(index) == 0) return;
  never_again_.insert(index);
  has_any_ = true;
}

std::int64_t CorruptSamples::next_candidate(std::int64_t index) const {
  if (!has_any_) return index;
  const std::lock_guard lock(mutex_);
  for (auto known = never_again_.find(index); known != never_again_.end() && *known == index;
       ++known) {
    ++index;
  }
  return index;
}

SampleReader::SampleReader(std::shared_ptr<const Dataset> dataset, Transform transform,
                           std::shared_ptr<CorruptSamples> corrupt)
    : dataset_(std::move(dataset)),
      corrupt_(std::move(corrupt)),
      transform_(std::move(transform)) {}

absl::Status SampleReader::read_this(std::int64_t index, std::uint64_t position, Phase phase,
                                     std::span<float> output, bool& everywhere) {
  everywhere = true;
  POSEIDON_RETURN_IF_ERROR(dataset_->read(index, sample_));
  if (sample_.encoding == Encoding::kPixels) {
    const Shape& shape = dataset_->sample_shape();
    POSEIDON_ASSIGN_OR_RETURN(const TransformSteps steps,
                              transform_.choose(shape[1], shape[2], position, phase));
    const ImageView image = ImageView::planar(sample_.bytes.data(), shape[0], shape[1], shape[2]);
    transform_.apply(image.part(steps.region), steps, output);
    return absl::OkStatus();
  }
  POSEIDON_ASSIGN_OR_RETURN(const ImageSize size, decoder_.open(sample_.bytes));
  POSEIDON_ASSIGN_OR_RETURN(const TransformSteps steps,
                            transform_.choose(size.height, size.width, position, phase));
  everywhere = decoder_.decodes_all();
  POSEIDON_RETURN_IF_ERROR(decoder_.decode(steps.region, transform_.output_shape()[0], image_));
  transform_.apply(image_.view(), steps, output);
  return absl::OkStatus();
}

absl::Status SampleReader::read(std::int64_t index, std::uint64_t position, Phase phase,
                                std::span<float> output, std::int32_t& label,
                                const std::atomic<bool>* stop) {
  const std::int64_t size = dataset_->size();
  // Behind the last sample comes the first; from `index` again on, all have been tried.
  for (std::int64_t i = index;; ++i) {
    if (i < size) i = corrupt_->next_candidate(i);
    if (i >= size) i = size + corrupt_->next_candidate(i - size);
    if (i >= index + size) break;
    if (stop != nullptr && *stop) return absl::CancelledError("the reading was stopped");
    const std::int64_t candidate = i < size ? i : i - size;
    bool everywhere = false;
    const absl::Status status = read_this(candidate, position, phase, output, everywhere);
    if (status.ok()) {
      label = sample_.label;
      return absl::OkStatus();
    }
    if (!is_unreadable(status)) {
      return absl::Status(status.code(), str_cat(dataset_->sample_name(candidate), ": ",
                                                 from_absl(status.message())));
    }
    POSEIDON_RETURN_IF_ERROR(corrupt_->add(candidate, status));
    if (everywhere) corrupt_->never_again(candidate);
  }
  return absl::DataLossError(
      str_cat(dataset_->name(), ": not one of its ", size, " samples can be read"));
}

}  // namespace poseidon
