#include "worker/data/formats/records_dataset.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/text.h"
#include "common/files/file_io.h"
#include "worker/data/formats/record_format.h"

namespace poseidon {
namespace {

/// One open file.
struct Shard {
  std::string path;
  Descriptor file;
  RecordIndex index;
};

absl::Status in_file(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), str_cat(path, ": ", from_absl(status.message())));
}

absl::StatusOr<Shard> open_shard(const std::filesystem::path& path) {
  Shard shard{.path = path.string()};
  POSEIDON_ASSIGN_OR_RETURN(shard.file, open_file(path));
  const int fd = shard.file.get();
  struct stat info {};
  if (::fstat(fd, &info) != 0) return absl::InternalError(str_cat(shard.path, ": cannot read"));
  const auto file_bytes = static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
  if (file_bytes < kRecordFileHeaderBytes + kRecordFooterBytes) {
    return absl::DataLossError(str_cat(shard.path, ": is too short for a record file"));
  }
  std::array<std::uint8_t, kRecordFileHeaderBytes> header = {};
  POSEIDON_RETURN_IF_ERROR(read_exactly_at(fd, path, 0, header.data(), header.size()));
  if (absl::Status bad = check_record_file_header(header); !bad.ok()) {
    return in_file(shard.path, bad);
  }
  std::array<std::uint8_t, kRecordFooterBytes> end = {};
  POSEIDON_RETURN_IF_ERROR(
      read_exactly_at(fd, path, file_bytes - end.size(), end.data(), end.size()));
  const auto footer = decode_record_footer(end, file_bytes);
  if (!footer.ok()) return in_file(shard.path, footer.status());
  std::vector<std::uint8_t> bytes(footer->index_bytes());
  POSEIDON_RETURN_IF_ERROR(
      read_exactly_at(fd, path, footer->index_offset, bytes.data(), bytes.size()));
  auto index = decode_record_index(bytes, *footer);
  if (!index.ok()) return in_file(shard.path, index.status());
  shard.index = *std::move(index);
  return shard;
}

class RecordsDataset final : public Dataset {
 public:
  RecordsDataset(std::string folder, std::vector<Shard> shards)
      : folder_(std::move(folder)), shards_(std::move(shards)) {
    for (const Shard& shard : shards_) {
      size_ += static_cast<std::int64_t>(shard.index.labels.size());
      ends_.push_back(size_);
    }
  }

  std::int64_t size() const override { return size_; }
  const Shape& sample_shape() const override { return info().sample_shape; }
  const std::vector<std::string>& class_names() const override { return info().class_names; }
  const std::string& name() const override { return folder_; }

  absl::Status read(std::int64_t index, EncodedSample& sample) const override {
    const Place place = place_of(index);
    const Shard& shard = *place.shard;
    const std::uint64_t offset = shard.index.offsets[place.record];
    const std::uint64_t size = shard.index.offsets[place.record + 1] - offset;
    sample.buffer.resize(size);
    POSEIDON_RETURN_IF_ERROR(
        read_exactly_at(shard.file.get(), shard.path, offset, sample.buffer.data(), size));
    POSEIDON_RETURN_IF_ERROR(
        decode_record(sample.buffer, shard.index.labels[place.record], sample));
    // A set of encoded images has no shape of its own, and an empty record would fit it.
    const bool has_pixels = shape_values() != 0;
    if (has_pixels != (sample.encoding == Encoding::kPixels)) {
      return absl::DataLossError(has_pixels ? "an encoded image among pixels"
                                            : "pixels among encoded images");
    }
    if (has_pixels && static_cast<std::int64_t>(sample.bytes.size()) != shape_values()) {
      return absl::DataLossError("the record's pixels are not of the set's shape");
    }
    return absl::OkStatus();
  }

  std::string sample_name(std::int64_t index) const override {
    const Place place = place_of(index);
    return str_cat(place.shard->path, ", record ", place.record);
  }

  bool reads_ahead() const override { return true; }
  void will_read(std::int64_t index) const override {
    const Place place = place_of(index);
    const std::vector<std::uint64_t>& offsets = place.shard->index.offsets;
    const auto begin = static_cast<off_t>(offsets[place.record]);
    const auto end = static_cast<off_t>(offsets[place.record + 1]);
    ::posix_fadvise(place.shard->file.get(), begin, end - begin, POSIX_FADV_WILLNEED);
  }

 private:
  struct Place {
    const Shard* shard;
    std::size_t record;
  };
  Place place_of(std::int64_t index) const {
    POSEIDON_CHECK(index >= 0 && index < size_, "sample index out of range");
    const auto shard = static_cast<std::size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const std::int64_t first = shard == 0 ? 0 : ends_[shard - 1];
    return {&shards_[shard], static_cast<std::size_t>(index - first)};
  }
  const RecordSetInfo& info() const { return shards_.front().index.info; }
  std::int64_t shape_values() const {
    return sample_shape()[0] * sample_shape()[1] * sample_shape()[2];
  }

  const std::string folder_;
  const std::vector<Shard> shards_;
  std::int64_t size_ = 0;
  std::vector<std::int64_t> ends_;  ///< by shard: index behind its last sample
};

absl::Status check_labels(const Shard& shard, std::int64_t classes) {
  for (std::size_t i = 0; i < shard.index.labels.size(); ++i) {
    const std::uint32_t label = shard.index.labels[i];
    if (label < classes) continue;
    return absl::InvalidArgumentError(str_cat(shard.path, ": label ", i, " is ", label,
                                              ", the network tells ", classes,
                                              " classes apart (0 to ", classes - 1, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string shard_name(std::int64_t shard) { return absl::StrFormat("shard-%05d.records", shard); }

absl::StatusOr<std::shared_ptr<const Dataset>> open_records_dataset(
    const std::filesystem::path& folder, std::int64_t classes) {
  std::vector<Shard> shards;
  std::int64_t samples = 0;
  do {
    const auto number = static_cast<std::int64_t>(shards.size());
    const std::filesystem::path path = folder / shard_name(number);
    auto shard = open_shard(path);
    if (!shard.ok()) {
      if (!absl::IsNotFound(shard.status())) return shard.status();
      return absl::NotFoundError(
          str_cat(from_absl(shard.status().message()),
                  "; a folder of records is what `poseidon data pack --to FOLDER` leaves"));
    }
    POSEIDON_RETURN_IF_ERROR(check_labels(*shard, classes));
    const RecordSetInfo& info = shard->index.info;
    const RecordSetInfo& first = shards.empty() ? info : shards.front().index.info;
    if (info.shard != number || info.shards != first.shards || info.set != first.set ||
        info.samples != first.samples || info.sample_shape != first.sample_shape ||
        info.class_names != first.class_names) {
      return absl::DataLossError(str_cat(shard->path, ": is shard ", info.shard, " of ",
                                         info.shards, " of another set than its neighbours"));
    }
    samples += static_cast<std::int64_t>(shard->index.labels.size());
    // The first one's are kept: of ten thousands of classes each copy is a megabyte.
    if (number > 0) shard->index.info.class_names = std::vector<std::string>();
    shards.push_back(*std::move(shard));
  } while (static_cast<std::int64_t>(shards.size()) < shards.front().index.info.shards);
  if (samples != shards.front().index.info.samples) {
    return absl::DataLossError(str_cat(folder.string(), ": its shards have ", samples, " samples, ",
                                       shards.front().index.info.samples, " were packed"));
  }
  return std::make_shared<const RecordsDataset>(folder.string(), std::move(shards));
}

absl::StatusOr<std::vector<std::string>> read_record_classes(const std::filesystem::path& folder) {
  POSEIDON_ASSIGN_OR_RETURN(Shard shard, open_shard(folder / shard_name(0)));
  return std::move(shard.index.info.class_names);
}

}  // namespace poseidon
