#include "cli/remote/metrics_page.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

/// Of a line that is no metric, so much is told.
constexpr std::size_t kToldLineBytes = 60;
/// Ours have four; each takes more memory here than it has text.
constexpr std::size_t kMostLabels = 16;

absl::string_view name_at(absl::string_view& rest) {
  std::size_t end = 0;
  while (end < rest.size() && (absl::ascii_isalnum(static_cast<unsigned char>(rest[end])) ||
                               rest[end] == '_' || rest[end] == ':')) {
    ++end;
  }
  const absl::string_view name = rest.substr(0, end);
  rest.remove_prefix(end);
  return name;
}

/// Behind the opening quote, to the closing one.
std::optional<std::string> quoted(absl::string_view& rest) {
  std::string text;
  while (!rest.empty()) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c == '"') return text;
    if (c != '\\') {
      text += c;
      continue;
    }
    if (rest.empty()) return std::nullopt;
    text += rest.front() == 'n' ? '\n' : rest.front();
    rest.remove_prefix(1);
  }
  return std::nullopt;
}

/// `{name="value",...}`, which may be missing.
std::optional<MetricsPage::Labels> labels_at(absl::string_view& rest) {
  MetricsPage::Labels labels;
  if (!absl::ConsumePrefix(&rest, "{")) return labels;
  while (!absl::ConsumePrefix(&rest, "}")) {
    if (labels.size() == kMostLabels) return std::nullopt;
    const absl::string_view name = name_at(rest);
    if (name.empty() || !absl::ConsumePrefix(&rest, "=\"")) return std::nullopt;
    std::optional<std::string> value = quoted(rest);
    if (!value) return std::nullopt;
    labels.emplace_back(std::string(name), *std::move(value));
    if (!absl::ConsumePrefix(&rest, ",") && !absl::StartsWith(rest, "}")) return std::nullopt;
  }
  return labels;
}

bool has(const MetricsPage::Labels& labels, const std::pair<std::string, std::string>& label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

bool is_one_of(absl::Span<const std::string_view> names, absl::string_view name) {
  return std::any_of(names.begin(), names.end(), [name](std::string_view one) {
    return one == std::string_view(name.data(), name.size());
  });
}

}  // namespace

absl::StatusOr<MetricsPage> MetricsPage::parse(std::string_view text,
                                               absl::Span<const std::string_view> names) {
  MetricsPage page;
  std::size_t number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    absl::string_view rest = line;
    const absl::string_view name = name_at(rest);
    // Most of a page are buckets of layers, which nobody asks for.
    if (!name.empty() && !is_one_of(names, name)) continue;
    std::optional<Labels> labels = labels_at(rest);
    double value = 0.0;
    // A time may follow the value.
    const std::vector<absl::string_view> values =
        absl::StrSplit(rest, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (name.empty() || !labels || values.empty() || values.size() > 2 ||
        !absl::SimpleAtod(values.front(), &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number,
                       " is no metric: ", printable(std::string(line.substr(0, kToldLineBytes)))));
    }
    page.series_[std::string(name)].push_back({.labels = *std::move(labels), .value = value});
  }
  return page;
}

std::optional<double> MetricsPage::sum(std::string_view name, const Labels& labels) const {
  const auto found = series_.find(name);
  if (found == series_.end()) return std::nullopt;
  std::optional<double> sum;
  for (const Series& series : found->second) {
    if (std::all_of(labels.begin(), labels.end(),
                    [&](const auto& label) { return has(series.labels, label); })) {
      sum = sum.value_or(0.0) + series.value;
    }
  }
  return sum && std::isfinite(*sum) ? sum : std::nullopt;
}

std::map<std::string, double> MetricsPage::by(std::string_view name, std::string_view label) const {
  std::map<std::string, double> sums;
  const auto found = series_.find(name);
  if (found == series_.end()) return sums;
  for (const Series& series : found->second) {
    for (const auto& [key, value] : series.labels) {
      if (key == label) sums[value] += series.value;
    }
  }
  std::erase_if(sums, [](const auto& entry) { return !std::isfinite(entry.second); });
  return sums;
}

}  // namespace poseidon
