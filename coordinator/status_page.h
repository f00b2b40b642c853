#pragma once

#include <span>

#include "common/embedded_file.h"

namespace poseidon {

/// The files of status_page/. Written at build time.
std::span<const EmbeddedFile> status_page_files();

}  // namespace poseidon
