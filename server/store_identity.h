#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace poseidon {

/// The identity of the checkpoint store in this directory, made when there is none: 32 hexadecimal
/// digits in the file STORE_IDENTITY. A server that is started again elsewhere, but with the same
/// directory, is known by it. DATA_LOSS, with the remedy, when the file holds something else.
absl::StatusOr<std::string> store_identity(const std::filesystem::path& directory);

}  // namespace poseidon
