#include "common/nearest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

// Longer names are cut: the cost is quadratic, and the unknown name may be hostile.
constexpr std::size_t kMaxComparedLength = 128;

// Optimal string alignment distance, three rolling rows.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

template <typename Name>
std::string nearest(std::string_view unknown, std::span<const Name> known) {
  const auto shortened = [](std::string_view name) {
    return absl::AsciiStrToLower(std::string(name.substr(0, kMaxComparedLength)));
  };
  const std::string wanted = shortened(unknown);
  std::string best;
  std::size_t best_distance = 0;
  for (const Name& name : known) {
    const std::string candidate = shortened(name);
    const std::size_t distance = edit_distance(wanted, candidate);
    const std::size_t allowed =
        std::max<std::size_t>(1, std::max(wanted.size(), candidate.size()) / 3);
    if (distance > allowed || distance >= candidate.size()) continue;
    if (best.empty() || distance < best_distance) {
      best = std::string(name);
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

std::string nearest_name(std::string_view unknown, std::span<const std::string> known) {
  return nearest(unknown, known);
}

std::string nearest_name(std::string_view unknown, std::span<const std::string_view> known) {
  return nearest(unknown, known);
}

std::string did_you_mean(std::string_view unknown, std::span<const std::string> known) {
  const std::string name = nearest_name(unknown, known);
  return name.empty() ? "" : absl::StrCat(" (did you mean \"", name, "\"?)");
}

}  // namespace poseidon
