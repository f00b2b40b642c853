#pragma once

// Suggests a known name for a misspelt one.
//
// Called by: readers of job files, network files and command lines. Calls: nothing.

#include <span>
#include <string>
#include <string_view>

namespace poseidon {

/// The known name that `unknown` most likely meant, for "did you mean" in error messages: smallest
/// edit distance (insert, delete, replace, swap neighbours; letter case is free), the first of
/// several; at most a third of the longer name may differ. Otherwise the first that contains it or
/// is contained in it ("rate", "max_iterations"), or that it abbreviates ("lr"). "" when no name is
/// near. Pure.
std::string nearest_name(std::string_view unknown, std::span<const std::string> known);
std::string nearest_name(std::string_view unknown, std::span<const std::string_view> known);

/// Whether `written` is within the same edit distance of `meant`.
bool is_likely_misspelling(std::string_view written, std::string_view meant);

/// " (did you mean \"kernel\"?)", or "" when no name is near. To append to a message.
std::string did_you_mean(std::string_view unknown, std::span<const std::string> known);

}  // namespace poseidon
