#include "worker/data/formats/records_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/text.h"
#include "worker/data/formats/records_dataset.h"

namespace poseidon {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;

std::filesystem::path beside(const std::filesystem::path& folder) {
  std::filesystem::path path = folder;
  path += str_cat(".tmp-", ::getpid());
  return path;
}

absl::Status sync_folder(const std::filesystem::path& folder) {
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.is_open() || ::fsync(directory.get()) != 0) {
    return system_error(folder, "cannot sync the folder", errno);
  }
  return absl::OkStatus();
}

/// "a/b/" is the folder "a/b".
std::filesystem::path without_slash(const std::filesystem::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

}  // namespace

RecordsWriter::RecordsWriter(std::filesystem::path folder, ExclusiveRename rename)
    : folder_(std::move(folder)), temporary_(beside(folder_)), rename_(rename) {}

RecordsWriter::~RecordsWriter() {
  std::error_code ignored;
  if (removes_temporary_) std::filesystem::remove_all(temporary_, ignored);
}

absl::StatusOr<std::unique_ptr<RecordsWriter>> RecordsWriter::create(
    const std::filesystem::path& folder, ExclusiveRename rename) {
  auto writer = std::unique_ptr<RecordsWriter>(new RecordsWriter(without_slash(folder), rename));
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(writer->folder_, error))) {
    return absl::InvalidArgumentError(
        str_cat(writer->folder_.string(), ": already exists; give another folder, or remove it"));
  }
  std::filesystem::path unnamed = writer->temporary_;
  unnamed += "-new";
  if (::mkdir(unnamed.c_str(), 0777) != 0) {
    return system_error(unnamed, "cannot make the folder", errno);
  }
  // Tests what finish() will do: if folders cannot be renamed, that shows before hours of work.
  const absl::Status named = rename_folder(unnamed, writer->temporary_, rename);
  if (!named.ok()) {
    ::rmdir(unnamed.c_str());
    return named;
  }
  writer->removes_temporary_ = true;
  return writer;
}

absl::Status RecordsWriter::begin_shard() {
  POSEIDON_RETURN_IF_ERROR(end_shard());
  if (shards() == kMaxShards) {
    return absl::InvalidArgumentError(str_cat(folder_.string(), ": more than ", kMaxShards,
                                              " shards; make them larger with --shard-bytes"));
  }
  const std::filesystem::path path = temporary_ / shard_name(shards());
  file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.is_open()) return system_error(path, "cannot create", errno);
  const auto header = encode_record_file_header();
  buffer_.append(reinterpret_cast<const char*>(header.data()), header.size());
  indexes_.emplace_back().offsets = {header.size()};
  return absl::OkStatus();
}

std::uint64_t RecordsWriter::shard_bytes() const {
  return indexes_.empty() ? 0 : indexes_.back().offsets.back();
}

absl::Status RecordsWriter::add(const EncodedSample& sample) {
  POSEIDON_CHECK(file_.is_open(), "no shard was begun");
  if (sample.bytes.size() > kMaxRecordBytes) {
    return absl::InvalidArgumentError(str_cat("a sample of ", sample.bytes.size(),
                                              " bytes; at most ", kMaxRecordBytes, " are packed"));
  }
  RecordIndex& index = indexes_.back();
  if (index.labels.size() == kMaxShardRecords) {
    return absl::InvalidArgumentError(
        str_cat("more than ", kMaxShardRecords, " samples in one shard; ask for more --shards"));
  }
  const auto label = static_cast<std::uint32_t>(sample.label);
  const auto header = encode_record_header(sample.encoding, label, sample.bytes);
  set_ = crc32c(header, set_);
  buffer_.append(reinterpret_cast<const char*>(header.data()), header.size());
  buffer_.append(reinterpret_cast<const char*>(sample.bytes.data()), sample.bytes.size());
  index.offsets.push_back(index.offsets.back() + header.size() + sample.bytes.size());
  index.labels.push_back(label);
  bytes_ += header.size() + sample.bytes.size();
  ++samples_;
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : flush();
}

absl::Status RecordsWriter::flush() {
  const std::filesystem::path path = temporary_ / shard_name(shards() - 1);
  POSEIDON_RETURN_IF_ERROR(write_fully(file_.get(), path, buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status RecordsWriter::end_shard() {
  if (!file_.is_open()) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(flush());
  if (!file_.close()) {
    return system_error(temporary_ / shard_name(shards() - 1), "cannot close", errno);
  }
  return absl::OkStatus();
}

absl::Status RecordsWriter::write_index(std::size_t shard) {
  const std::filesystem::path path = temporary_ / shard_name(static_cast<std::int64_t>(shard));
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.is_open()) return system_error(path, "cannot open", errno);
  POSEIDON_RETURN_IF_ERROR(write_fully(file.get(), path, encode_record_index(indexes_[shard])));
  if (::fsync(file.get()) != 0) return system_error(path, "cannot sync", errno);
  if (!file.close()) return system_error(path, "cannot close", errno);
  return absl::OkStatus();
}

absl::Status RecordsWriter::finish(const Shape& sample_shape,
                                   const std::vector<std::string>& class_names) {
  POSEIDON_CHECK(samples_ > 0, "a set without samples");
  POSEIDON_RETURN_IF_ERROR(end_shard());
  for (std::size_t shard = 0; shard < indexes_.size(); ++shard) {
    indexes_[shard].info = {.shard = static_cast<std::int64_t>(shard),
                            .shards = shards(),
                            .samples = samples_,
                            .set = set_,
                            .sample_shape = sample_shape,
                            .class_names = class_names};
    POSEIDON_RETURN_IF_ERROR(write_index(shard));
  }
  removes_temporary_ = false;  // all the work is done and on disk
  absl::Status named = sync_folder(temporary_);
  if (named.ok()) named = rename_folder(temporary_, folder_, rename_);
  if (!named.ok()) {
    return absl::Status(named.code(),
                        str_cat(from_absl(named.message()), "; all samples are packed and stay in ",
                                temporary_.string(), ": rename that folder yourself"));
  }
  return sync_folder(folder_.has_parent_path() ? folder_.parent_path() : ".");
}

}  // namespace poseidon
