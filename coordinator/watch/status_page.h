#pragma once

// The page's own files (HTML, style, script), compiled in.
//
// Called by: coordinator/watch/status_site.h, which serves them. Calls: nothing;
// cmake/PoseidonEmbed.cmake compiles status_page/ in.

#include <span>

#include "common/files/embedded_file.h"

namespace poseidon {

/// Written at build time; they live as long as the program.
std::span<const EmbeddedFile> status_page_files();

}  // namespace poseidon
