#pragma once

// Formats `poseidon status` for people (common/pages/status_json.h does it for scripts). Pure.
//
// Called by: cli/commands and cli/doctor. Calls: cli/terminal/progress.h.

#include <string>
#include <vector>

#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// Several lines, the last one ended.
std::string status_to_text(const v1::GetStatusResponse& status);

/// One line per row, columns padded to the widest cell and two blanks apart. Rows may be
/// shorter than the first one.
std::string format_table(std::vector<std::vector<std::string>> table);

}  // namespace poseidon
