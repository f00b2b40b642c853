#pragma once

// Teams that split loops differently from those of programs, on one thread. Results must not depend
// on it.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/threads/team.h"

namespace poseidon::testing_support {

/// Not at all: the reference.
class WholeTeam final : public Team {
 public:
  void for_ranges(std::size_t elements, Body body) override {
    if (elements > 0) body(0, elements);
  }
};

/// Anywhere, in any order.
class OddTeam final : public Team {
 public:
  void for_ranges(std::size_t elements, Body body) override {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t first = 0; first < elements;) {
      const std::size_t size = std::min<std::size_t>(1 + random_.below(9'000), elements - first);
      ranges.emplace_back(first, size);
      first += size;
    }
    while (!ranges.empty()) {
      std::swap(ranges[random_.below(ranges.size())], ranges.back());
      body(ranges.back().first, ranges.back().second);
      ranges.pop_back();
    }
  }

 private:
  SplitMix64 random_{77};
};

}  // namespace poseidon::testing_support
