#pragma once

// Reads the binary files of CIFAR-10 and CIFAR-100 into a MemoryDataset of 3 x 32 x 32.
//
// Called by: worker/data/formats/dataset.h. Calls: common/files/file_io.h.
//
// Format: records of the label or labels, one byte each, then 1024 bytes each of red, green and
// blue, row by row. CIFAR-10 has one label (0 to 9); CIFAR-100 the coarse one (0 to 19), then the
// fine one (0 to 99).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/formats/dataset.h"

namespace poseidon {

enum class CifarKind { kCifar10, kCifar100Fine, kCifar100Coarse };

/// Appends the records of one file's bytes. Errors start with `source`: empty, not whole records, a
/// label outside 0 to classes - 1. On an error the vectors are as they were. Pure.
absl::Status decode_cifar(std::string_view file_bytes, std::string_view source, CifarKind kind,
                          std::int64_t classes, std::vector<std::uint8_t>& pixels,
                          std::vector<std::uint8_t>& labels);

/// All files, one after the other.
absl::StatusOr<std::shared_ptr<const Dataset>> open_cifar_dataset(
    const std::vector<std::string>& files, CifarKind kind, std::int64_t classes);

}  // namespace poseidon
