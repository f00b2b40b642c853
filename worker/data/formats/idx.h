#pragma once

// The IDX format of MNIST and its relatives, plain or gzip, read into a MemoryDataset.
//
// Called by: worker/data/formats/dataset.h. Calls: worker/data/formats/gzip.h,
// common/files/file_io.h.
//
// Format: bytes 0, 0, element type (0x08: uint8), number of dimensions; one big-endian u32 per
// dimension; the elements. Gzip is recognised by its first bytes, never by the file's name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

struct IdxArray {
  std::vector<std::int64_t> dimensions;
  std::vector<std::uint8_t> values;  ///< C-contiguous
};

/// Larger sets do not belong in memory. Also bounds what a false header can make us allocate.
inline constexpr std::uint64_t kMaxIdxBytes = std::uint64_t{4} << 30;

/// Decodes a file's bytes. Memory grows as elements arrive, not by the header. Errors start with
/// `source`: wrong magic, element type, truncated, bytes after the end, corrupt gzip. Pure.
absl::StatusOr<IdxArray> decode_idx(std::string_view file_bytes, std::string_view source);

/// Reads images (N x H x W) and labels (N) into a data set with samples of 1 x H x W.
absl::StatusOr<std::shared_ptr<const Dataset>> open_idx_dataset(const std::filesystem::path& images,
                                                                const std::filesystem::path& labels,
                                                                std::int64_t classes);

}  // namespace poseidon
