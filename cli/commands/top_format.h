#pragma once

// What `poseidon top` shows: one screenful of a cluster, for any number of workers and layers.
// Pure: status and size in, lines out. Before: top_command.cc polls. After: the terminal.

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
