#pragma once

// Who a daemon is, by what it keeps on disk.
//
// Before: server/main.cc (--data-dir) or coordinator/records/state_directory.h (--state-dir) opens
// its directory. After: they tell each other. So a checkpoint store is known wherever its server is
// started, and a server knows whose checkpoints it has (server/store/store_owner.h).

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace poseidon {

/// The identity of a daemon's directory, made when there is none: 32 hexadecimal digits in this
/// file of it. A process that is started again elsewhere, but with the same directory, is known by
/// it. DATA_LOSS when the file holds something else; `remedy` says what to do besides restoring it.
absl::StatusOr<std::string> directory_identity(const std::filesystem::path& directory,
                                               std::string_view file, std::string_view remedy);

}  // namespace poseidon
