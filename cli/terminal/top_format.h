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

/// At most `rows` lines of at most `columns` characters. Workers with problems come first, then the
/// slowest; layers with the longest stalls come first, then those that move most bytes. One line
/// sums up the rest.
std::vector<std::string> top_lines(const v1::GetStatusResponse& status, const TopSize& size);

/// "[####      ]": a share of 0..1 in `width` characters; blank where it is NaN.
std::string share_bar(double share, std::size_t width);

}  // namespace poseidon
