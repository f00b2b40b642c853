#include "worker/data/dataset.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/text.h"
#include "worker/data/cifar.h"
#include "worker/data/idx.h"

namespace poseidon {

MemoryDataset::MemoryDataset(std::string name, Shape sample_shape, std::vector<std::uint8_t> pixels,
                             std::vector<std::uint8_t> labels)
    : name_(std::move(name)),
      sample_shape_(std::move(sample_shape)),
      sample_bytes_(labels.empty() ? 0 : pixels.size() / labels.size()),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)) {
  POSEIDON_CHECK(sample_shape_.size() == 3, "a sample has channels, height and width");
  const std::int64_t sample_bytes = sample_shape_[0] * sample_shape_[1] * sample_shape_[2];
  POSEIDON_CHECK(static_cast<std::int64_t>(sample_bytes_) == sample_bytes &&
                     pixels_.size() == sample_bytes_ * labels_.size(),
                 "pixels and labels do not fit together");
}

absl::Status MemoryDataset::read(std::int64_t index, std::span<std::uint8_t> pixels,
                                 std::int32_t& label) const {
  POSEIDON_CHECK(index >= 0 && index < size(), "sample index out of range");
  POSEIDON_CHECK(pixels.size() == sample_bytes_, "buffer of another size than the sample");
  const auto position = static_cast<std::size_t>(index);
  std::copy_n(pixels_.begin() + static_cast<std::ptrdiff_t>(position * sample_bytes_),
              sample_bytes_, pixels.begin());
  label = labels_[position];
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_dataset(const DataSourceSpec& source,
                                                            std::int64_t classes) {
  if (source.format == "idx") return open_idx_dataset(source.images, source.labels, classes);
  if (source.format == "cifar10") return open_cifar10_dataset(source.files, classes);
  return absl::InvalidArgumentError(
      str_cat("data format \"", source.format, "\": expected \"idx\" or \"cifar10\""));
}

}  // namespace poseidon
