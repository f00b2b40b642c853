#pragma once

// The format of a packed record file (a shard of a set). Pure. docs/data.md describes it for users.
//
// Called by: records_writer.h and records_dataset.h. Calls: nothing.
//
// All numbers little-endian:
//   file header  16: magic "PSDNREC\n", u32 version, u32 CRC-32C of the 12 bytes before
//   records      each: header of 16: u32 CRC-32C of the following 12 bytes and the payload, u32
//                payload bytes, u32 label, u8 encoding (Encoding), three bytes 0; then the payload
//   index        u64 offset of each record in the file, one more for their end; u32 label of each;
//                then the set's description in JSON (RecordSetInfo)
//   footer       40: u64 where the index begins, u64 records, u32 bytes of JSON, u32 CRC-32C of the
//                index, u32 version, u32 CRC-32C of the 28 bytes before, magic "PSDNEND\n"
// A file with a valid footer is complete. Damage inside a record affects only that record.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

inline constexpr std::uint32_t kRecordVersion = 1;
inline constexpr std::size_t kRecordFileHeaderBytes = 16;
inline constexpr std::size_t kRecordHeaderBytes = 16;
inline constexpr std::size_t kRecordFooterBytes = 40;
inline constexpr std::uint64_t kMaxRecordBytes = 64 << 20;  ///< payload
inline constexpr std::uint64_t kMaxShardRecords = std::uint64_t{1} << 28;
inline constexpr std::uint32_t kMaxRecordInfoBytes = 64 << 20;
inline constexpr std::int64_t kMaxShards = 512;  ///< each is one open file per reader

/// CRC-32C (Castagnoli) of `bytes`, going on from the checksum of what stands before.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);

/// The data that all shards of a set share, and the number of this shard.
struct RecordSetInfo {
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  std::int64_t samples = 0;  ///< of all shards
  std::uint32_t set = 0;     ///< checksum over all records: tells sets apart
  Shape sample_shape;        ///< Dataset::sample_shape
  std::vector<std::string> class_names;
};

/// The places of the records of one shard.
struct RecordIndex {
  std::vector<std::uint64_t> offsets;  ///< one more than records
  std::vector<std::uint32_t> labels;
  RecordSetInfo info;
};

std::array<std::uint8_t, kRecordFileHeaderBytes> encode_record_file_header();
std::array<std::uint8_t, kRecordHeaderBytes> encode_record_header(
    Encoding encoding, std::uint32_t label, std::span<const std::uint8_t> payload);
/// As record files have names of classes: folders' names need not be UTF-8, and a name with a
/// replaced letter beats an exception.
std::vector<std::string> utf8_names(std::vector<std::string> names);
/// Index and footer; `index.offsets` ends where the index will stand.
std::string encode_record_index(const RecordIndex& index);

/// DATA_LOSS with the fault; the caller adds the file's name.
absl::Status check_record_file_header(std::span<const std::uint8_t> bytes);

struct RecordFooter {
  std::uint64_t index_offset = 0;
  std::uint64_t records = 0;
  std::uint32_t info_bytes = 0;
  std::uint32_t index_crc = 0;
  std::uint64_t index_bytes() const { return 8 * (records + 1) + 4 * records + info_bytes; }
};
/// Checks it against the file's size too, so that memory for the promised records may be allocated.
absl::StatusOr<RecordFooter> decode_record_footer(std::span<const std::uint8_t> bytes,
                                                  std::uint64_t file_bytes);
absl::StatusOr<RecordIndex> decode_record_index(std::span<const std::uint8_t> bytes,
                                                const RecordFooter& footer);

/// One whole record: checksum, size, encoding and label must fit. Fills in encoding, label and
/// where in `bytes` the payload is.
absl::Status decode_record(std::span<const std::uint8_t> bytes, std::uint32_t expected_label,
                           EncodedSample& sample);

}  // namespace poseidon
