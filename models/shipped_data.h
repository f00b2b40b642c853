#pragma once

#include <span>

#include "common/files/embedded_file.h"

namespace poseidon {

/// The network files of this folder: NAME.json, sorted. Written at build time.
std::span<const EmbeddedFile> shipped_models();

}  // namespace poseidon
