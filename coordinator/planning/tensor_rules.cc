#include "coordinator/planning/tensor_rules.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/nearest.h"

namespace poseidon {

bool matches_glob(std::string_view pattern, std::string_view text) {
  // On a mismatch, the last star takes one letter more: no other needs to be tried again.
  std::size_t p = 0, t = 0, after_star = std::string_view::npos, starred = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      starred = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      t = ++starred;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

absl::Status apply_tensor_rules(const std::vector<TensorRule>& rules,
                                std::vector<PlannerLayer>& layers) {
  std::vector<bool> matched(rules.size(), false);
  std::vector<std::string> names;
  for (PlannerLayer& layer : layers) {
    for (PlanTensor& tensor : layer.tensors) {
      names.push_back(absl::StrCat(layer.name, ".", tensor.name));
      bool decided = false;
      for (std::size_t i = 0; i < rules.size(); ++i) {
        if (!matches_glob(rules[i].match, names.back())) continue;
        matched[i] = true;  // also where an earlier rule has decided: it is no typing error
        if (!decided) tensor.multipliers = rules[i].multipliers;
        decided = true;
      }
    }
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (matched[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.layers[", i, "].match: no tensor's name, <layer>.<tensor>, fits \"",
                     rules[i].match, "\"", did_you_mean(rules[i].match, names),
                     "; `poseidon models` lists a network's layers"));
  }
  return absl::OkStatus();
}

}  // namespace poseidon
