#include "common/base/log_limit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace poseidon {
namespace {

constexpr std::size_t kKeyBytes = 120;  // of a message; the rest is not compared

/// Without digits and quoted text, which may come from strangers.
std::string key_of(std::string_view line) {
  std::string key;
  bool quoted = false, escaped = false;
  for (const char c : line) {
    if (quoted) {
      quoted = escaped || c != '"';
      escaped = !escaped && c == '\\';
      continue;
    }
    quoted = c == '"';
    if (absl::ascii_isdigit(static_cast<unsigned char>(c))) continue;
    key += c;
    if (key.size() == kKeyBytes) break;
  }
  return key;
}

}  // namespace

double LogLimit::tokens_at(const Kind& kind, Nanoseconds now) const {
  const double refill = std::chrono::duration<double>(now - kind.refilled) /
                        std::chrono::duration<double>(options_.interval);
  return std::min(kind.tokens + std::max(refill, 0.0), static_cast<double>(options_.burst));
}

/// When too many are in use, new kinds share one.
LogLimit::Kind& LogLimit::kind_of(std::string key, Nanoseconds now) {
  const Kind fresh{static_cast<double>(options_.burst), now, /*left_out=*/0};
  if (const auto found = kinds_.find(key); found != kinds_.end()) return found->second;
  if (kinds_.size() >= options_.max_kinds) {
    std::erase_if(kinds_, [&](const auto& entry) {
      return tokens_at(entry.second, now) >= static_cast<double>(options_.burst);  // as good as new
    });
  }
  if (kinds_.size() >= options_.max_kinds) key.clear();
  return kinds_.try_emplace(std::move(key), fresh).first->second;
}

std::optional<std::uint64_t> LogLimit::admit(std::string_view line, Nanoseconds now) {
  Kind& kind = kind_of(key_of(line), now);
  kind.tokens = tokens_at(kind, now);
  kind.refilled = now;
  if (kind.tokens < 1.0) {
    ++kind.left_out;
    return std::nullopt;
  }
  kind.tokens -= 1.0;
  return std::exchange(kind.left_out, 0);
}

}  // namespace poseidon
