#pragma once

// The identity of a daemon's directory, which outlives its process.
//
// Called by: server/main.cc (--data-dir) and coordinator/records/state_directory.h (--state-dir).
// They exchange identities, so the coordinator recognises a checkpoint store wherever its server
// starts, and a server knows which coordinator its checkpoints belong to
// (server/store/store_owner.h). Calls: common/files/file_io.h.

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace poseidon {

/// The identity of a daemon's directory: 32 hexadecimal digits in this file of it, created if
/// missing. It identifies a process that restarts elsewhere with the same directory. DATA_LOSS when
/// the file holds something else; `remedy` says what the user can do instead of restoring it.
absl::StatusOr<std::string> directory_identity(const std::filesystem::path& directory,
                                               std::string_view file, std::string_view remedy);

}  // namespace poseidon
