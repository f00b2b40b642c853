#include "common/log_limit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace poseidon {
namespace {

constexpr std::size_t kKeyBytes = 120;  // of a line; what follows makes no difference

std::string key_of(std::string_view line) {
  std::string key;
  for (const char c : line.substr(0, kKeyBytes)) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) key += c;
  }
  return key;
}

}  // namespace

std::optional<std::uint64_t> LogLimit::admit(std::string_view line, Nanoseconds now) {
  const std::string key = key_of(line);
  auto found = kinds_.find(key);
  if (found == kinds_.end()) {
    if (kinds_.size() >= options_.max_kinds) forget_oldest();
    found =
        kinds_.emplace(key, Kind{static_cast<double>(options_.burst), now, /*left_out=*/0}).first;
  }
  Kind& kind = found->second;
  const double refill = std::chrono::duration<double>(now - kind.refilled) /
                        std::chrono::duration<double>(options_.interval);
  kind.tokens = std::min(kind.tokens + std::max(refill, 0.0), static_cast<double>(options_.burst));
  kind.refilled = now;
  if (kind.tokens < 1.0) {
    ++kind.left_out;
    return std::nullopt;
  }
  kind.tokens -= 1.0;
  return std::exchange(kind.left_out, 0);
}

void LogLimit::forget_oldest() {
  const auto oldest = std::min_element(
      kinds_.begin(), kinds_.end(),
      [](const auto& a, const auto& b) { return a.second.refilled < b.second.refilled; });
  kinds_.erase(oldest);
}

}  // namespace poseidon
