#include "coordinator/job/reports/idle_recoveries.h"

#include "absl/strings/str_cat.h"

namespace poseidon {

void IdleRecoveries::count(Iteration began_at, Nanoseconds now) {
  if (began_at > last_began_at_) in_a_row_ = 0;
  last_began_at_ = began_at;
  ++since_new_;
  if (in_a_row_ > 0 && now - counted_ < options_.spacing) return;
  ++in_a_row_;
  counted_ = now;
}

std::optional<std::string> IdleRecoveries::too_often() const {
  if (in_a_row_ > options_.most) return absl::StrCat(options_.most, " times in a row");
  if (since_new_ > options_.most_on_the_way * options_.most)
    return absl::StrCat(since_new_, " times");
  return std::nullopt;
}

}  // namespace poseidon
