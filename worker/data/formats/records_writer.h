#pragma once

// Writes a folder of record files, which records_dataset.h reads.
//
// Called by: pack.h, which has the samples. Calls: record_format.h.
//
// The folder appears whole or not at all: everything is written to FOLDER.tmp-<process> beside it,
// synced to disk and renamed last. If only the rename fails, the complete folder keeps its
// temporary name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/files/file_io.h"
#include "worker/data/formats/record_format.h"

namespace poseidon {

/// One thread.
class RecordsWriter {
 public:
  /// INVALID_ARGUMENT when a file or folder of that name exists: nothing is overwritten. Errors too
  /// where folders cannot be renamed.
  static absl::StatusOr<std::unique_ptr<RecordsWriter>> create(
      const std::filesystem::path& folder, ExclusiveRename rename = exclusive_rename);
  ~RecordsWriter();  ///< removes all written files unless finish() has synced them
  RecordsWriter(const RecordsWriter&) = delete;
  RecordsWriter& operator=(const RecordsWriter&) = delete;

  /// Begins the next file; add() needs one. At most kMaxShards.
  absl::Status begin_shard();
  /// Appends a sample. INVALID_ARGUMENT when it is larger than kMaxRecordBytes; RESOURCE_EXHAUSTED
  /// when the disk is full.
  absl::Status add(const EncodedSample& sample);
  /// Writes the indexes and gives the folder its name. If only the name cannot be given, the error
  /// says where the folder is.
  absl::Status finish(const Shape& sample_shape, const std::vector<std::string>& class_names);

  std::int64_t shards() const { return static_cast<std::int64_t>(indexes_.size()); }
  std::uint64_t shard_bytes() const;  ///< of the file begun last, so far
  std::uint64_t bytes() const { return bytes_; }
  std::int64_t samples() const { return samples_; }

 private:
  RecordsWriter(std::filesystem::path folder, ExclusiveRename rename);
  absl::Status flush();
  absl::Status end_shard();
  absl::Status write_index(std::size_t shard);

  const std::filesystem::path folder_;
  const std::filesystem::path temporary_;
  const ExclusiveRename rename_;
  bool removes_temporary_ = false;
  Descriptor file_;                   ///< of the last shard
  std::string buffer_;                ///< records not written yet
  std::vector<RecordIndex> indexes_;  ///< by shard
  std::uint32_t set_ = 0;             ///< checksum over the headers of all records
  std::uint64_t bytes_ = 0;
  std::int64_t samples_ = 0;
};

}  // namespace poseidon
