#pragma once

// Formats the screen of `poseidon top`: one page for any number of workers and layers. Pure: status
// and size in, lines out.
//
// Called by: top_command.cc, which polls and writes to the terminal. Calls: nothing.

#include <cstddef>
#include <string>
#include <vector>

#include "poseidon/v1/control.pb.h"

namespace poseidon {

struct TopSize {
  std::size_t columns = 80;
  std::size_t rows = 24;
};

/// At most `rows` lines of at most `columns` characters. Workers that are not as they should be
/// come first, then those that compute longest; layers that computing waits for most, then those
/// that move most. What does not fit is summed up in one line.
std::vector<std::string> top_lines(const v1::GetStatusResponse& status, const TopSize& size);

/// "[####      ]": a share of 0..1 in `width` characters; blank where it is NaN.
std::string share_bar(double share, std::size_t width);

}  // namespace poseidon
