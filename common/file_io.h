#pragma once

// Whole files in and out, with bounds and with errors that name the path. The only file access of
// the job, safetensors and small-data-set readers, whose decoding is pure.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace poseidon {

/// The bytes of a file. Errors start with the path: NOT_FOUND when it is missing, INVALID_ARGUMENT
/// when it is not a regular file or larger than `max_bytes`, otherwise what the system said.
absl::StatusOr<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Writes the pieces one after the other so that `path` holds either what it held before or all of
/// the new bytes, on disk: a temporary file in the same folder, fsync, rename, fsync of the folder.
/// On an error (a full disk too) the temporary file is removed. Errors start with the path.
absl::Status write_file_atomically(const std::filesystem::path& path,
                                   std::span<const std::string_view> pieces);

}  // namespace poseidon
