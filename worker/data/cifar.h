#pragma once

// The binary form of CIFAR-10. Before: files. After: a MemoryDataset of 3 x 32 x 32.
//
// Format: records of 3073 bytes: the label (0 to 9), then 1024 bytes each of red, green and blue,
// row by row.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace poseidon {

/// Appends the records of one file's bytes. Errors start with `source`: empty, not whole records, a
/// label outside 0 to classes - 1. On an error the vectors are as they were. Pure.
absl::Status decode_cifar10(std::string_view file_bytes, std::string_view source,
                            std::int64_t classes, std::vector<std::uint8_t>& pixels,
                            std::vector<std::uint8_t>& labels);

/// All files, one after the other.
absl::StatusOr<std::shared_ptr<const Dataset>> open_cifar10_dataset(
    const std::vector<std::string>& files, std::int64_t classes);

}  // namespace poseidon
