#pragma once

// The page's own files (HTML, style, script), compiled in.
//
// Before: status_page/, by cmake/PoseidonEmbed.cmake. After: coordinator/watch/status_site.h hands
// them out.

#include <span>

#include "common/files/embedded_file.h"

namespace poseidon {

/// Written at build time; they live as long as the program.
std::span<const EmbeddedFile> status_page_files();

}  // namespace poseidon
