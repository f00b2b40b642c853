#include "common/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <optional>
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

std::string shortened(std::string_view name) {
  return absl::AsciiStrToLower(std::string(name.substr(0, kMaxComparedLength)));
}

/// "lr" and "iters" of "learning_rate" and "iterations": the first letter, and then letters in
/// order.
bool abbreviates(std::string_view brief, std::string_view whole) {
  if (brief.size() < 2 || whole.empty() || brief.front() != whole.front()) return false;
  std::size_t found = 0;
  for (const char letter : whole) {
    if (found < brief.size() && letter == brief[found]) ++found;
  }
  return found == brief.size();
}

/// Of two names of a thing the longer one says more: "rate", "max_iterations".
bool is_part_of(std::string_view part, std::string_view whole) {
  constexpr std::size_t kFewestLetters = 4;
  return part.size() >= kFewestLetters && whole.find(part) != std::string_view::npos;
}

/// For a user who writes a name that is too long or too short.
template <typename Name>
std::string related(const std::string& wanted, std::span<const Name> known) {
  for (const auto related : {is_part_of, abbreviates}) {
    for (const Name& name : known) {
      const std::string candidate = shortened(name);
      if (related(wanted, candidate) || is_part_of(candidate, wanted)) return std::string(name);
    }
  }
  return "";
}

/// Nothing where more than a third of the longer name differs.
std::optional<std::size_t> small_distance(const std::string& wanted, const std::string& candidate) {
  const std::size_t distance = edit_distance(wanted, candidate);
  const std::size_t allowed =
      std::max<std::size_t>(1, std::max(wanted.size(), candidate.size()) / 3);
  if (distance > allowed || distance >= candidate.size()) return std::nullopt;
  return distance;
}

template <typename Name>
std::string nearest(std::string_view unknown, std::span<const Name> known) {
  const std::string wanted = shortened(unknown);
  std::string best;
  std::optional<std::size_t> best_distance;
  for (const Name& name : known) {
    const std::optional<std::size_t> distance = small_distance(wanted, shortened(name));
    if (!distance || (best_distance && *distance >= *best_distance)) continue;
    best = std::string(name);
    best_distance = distance;
  }
  return best_distance ? best : related(wanted, known);
}

}  // namespace

std::string nearest_name(std::string_view unknown, std::span<const std::string> known) {
  return nearest(unknown, known);
}

std::string nearest_name(std::string_view unknown, std::span<const std::string_view> known) {
  return nearest(unknown, known);
}

bool is_likely_misspelling(std::string_view written, std::string_view meant) {
  return small_distance(shortened(written), shortened(meant)).has_value();
}

std::string did_you_mean(std::string_view unknown, std::span<const std::string> known) {
  const std::string name = nearest_name(unknown, known);
  return name.empty() ? "" : absl::StrCat(" (did you mean \"", name, "\"?)");
}

}  // namespace poseidon
