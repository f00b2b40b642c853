#pragma once

// What somebody most likely meant who wrote a name that nobody knows.

#include <span>
#include <string>
#include <string_view>

namespace poseidon {

/// The known name that `unknown` most likely meant, for "did you mean" in error messages: smallest
/// edit distance (insert, delete, replace, swap neighbours; letter case is free), the first of
/// several; at most a third of the longer name may differ. Otherwise the first that it is a part of
/// or that is a part of it ("rate", "max_iterations"), or that it abbreviates ("lr"). "" when
/// nothing is near. Pure.
std::string nearest_name(std::string_view unknown, std::span<const std::string> known);
std::string nearest_name(std::string_view unknown, std::span<const std::string_view> known);

/// Whether `written` is within that distance of `meant`.
bool is_likely_misspelling(std::string_view written, std::string_view meant);

/// " (did you mean \"kernel\"?)", or "" when nothing is near: ready to append to a message.
std::string did_you_mean(std::string_view unknown, std::span<const std::string> known);

}  // namespace poseidon
