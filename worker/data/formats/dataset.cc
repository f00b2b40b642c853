#include "worker/data/formats/dataset.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"
#include "worker/data/formats/cifar.h"
#include "worker/data/formats/idx.h"
#include "worker/data/formats/image_folder.h"
#include "worker/data/formats/record_format.h"
#include "worker/data/formats/records_dataset.h"

namespace poseidon {

bool is_unreadable(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
         absl::IsInvalidArgument(status);
}

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

absl::Status MemoryDataset::read(std::int64_t index, EncodedSample& sample) const {
  POSEIDON_CHECK(index >= 0 && index < size(), "sample index out of range");
  const auto position = static_cast<std::size_t>(index);
  sample.encoding = Encoding::kPixels;
  sample.bytes = std::span(pixels_).subspan(position * sample_bytes_, sample_bytes_);
  sample.label = labels_[position];
  return absl::OkStatus();
}

std::string MemoryDataset::sample_name(std::int64_t index) const {
  return str_cat(name_, ", sample ", index);
}

absl::StatusOr<std::shared_ptr<const Dataset>> open_dataset(const DataSourceSpec& source,
                                                            std::int64_t classes) {
  if (source.format == "idx") return open_idx_dataset(source.images, source.labels, classes);
  if (source.format == "cifar10") {
    return open_cifar_dataset(source.files, CifarKind::kCifar10, classes);
  }
  if (source.format == "cifar100") {
    const CifarKind kind =
        source.label_kind == "coarse" ? CifarKind::kCifar100Coarse : CifarKind::kCifar100Fine;
    return open_cifar_dataset(source.files, kind, classes);
  }
  if (source.format == "image_folder") return open_image_folder(source.path, classes);
  if (source.format == "records") return open_records_dataset(source.path, classes);
  return absl::InvalidArgumentError(
      str_cat("data format \"", source.format,
              "\": expected \"idx\", \"cifar10\", \"cifar100\", \"image_folder\" or \"records\""));
}

absl::Status check_same_classes(const std::vector<std::string>& train,
                                const std::vector<std::string>& test) {
  // A folder's name need not be UTF-8; a packed name is.
  const std::vector<std::string> trained = utf8_names(train), tested = utf8_names(test);
  if (trained.empty() || tested.empty() || trained == tested) return absl::OkStatus();
  const std::size_t both = std::min(trained.size(), tested.size());
  std::size_t label = 0;
  while (label < both && trained[label] == tested[label]) ++label;
  const auto name = [label](const std::vector<std::string>& names) {
    return label < names.size() ? str_cat("\"", names[label], "\"") : std::string("nothing");
  };
  return absl::InvalidArgumentError(
      str_cat("label ", label, " is ", name(trained), " in data.train (", trained.size(),
              " classes) and ", name(tested), " in data.test (", tested.size(),
              " classes): both need the same classes, as folders in the same order"));
}

absl::StatusOr<std::vector<std::string>> class_names_of(const DataSourceSpec& source) {
  if (source.format == "image_folder") return list_classes(source.path);
  if (source.format == "records") return read_record_classes(source.path);
  return std::vector<std::string>();
}

}  // namespace poseidon
